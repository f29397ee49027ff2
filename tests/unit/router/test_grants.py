"""What a client may do goes with its call, through every service, and none can widen it."""

from __future__ import annotations

import pytest

from kernel.router.generation import RoutedCall
from kernel.router.record import take_key
from proto.errors import Forbidden
from proto.grants import Grant
from proto.operation import Params, operation_of
from proto.ops.kernel import ServicesRestart
from proto.origin import Origin
from proto.wire import frames
from tests.unit.router.ops import Put, Relay, Said, Say
from tests.unit.router.rig import Rig, rig


async def of_front(r: Rig, params: Params[Said], grant: Grant | None, service: str = "speaker") -> Said:
    """A call that a service makes in a client's name."""
    name = operation_of(params).name
    body = await r.outgoing[service].raw(name, frames.pack_body(params), Origin("client", grant=grant), limit_s=5)
    said: Said = frames.read_body(body, Said)
    return said


async def test_grant_that_a_front_names_reaches_the_handler() -> None:
    async with rig(fronts=("speaker",)) as r:
        assert (await of_front(r, Say(text="x"), Grant("ci"))).grant == "ci"
        assert (await of_front(r, Say(text="x"), None)).grant == ""


async def test_the_grant_of_a_call_is_passed_on_to_inner_calls_and_not_widened() -> None:
    async with rig(fronts=("speaker",)) as r:
        await r.up("relay")
        passed_on = await of_front(r, Relay(text="on"), Grant("ci", read_only=True))
        assert (passed_on.caller, passed_on.grant) == ("relay", "ci")
        assert (await of_front(r, Relay(text="widen"), Grant("ci", read_only=True))).grant == "ci"


async def test_other_service_has_its_own_grant_whatever_it_names() -> None:
    async with rig() as r:
        await r.up("relay")
        assert (await of_front(r, Say(text="x"), Grant("mine"), service="relay")).grant == "relay"


@pytest.mark.parametrize(
    ("grant", "why"),
    [
        (Grant("ci", read_only=True), "may only read"),
        (Grant("ci", surfaces=("files",)), "on no surface of the token ci, which has: files"),
        (Grant("ci", roots=("/a",)), "the token ci is limited to /a"),
    ],
)
async def test_call_beyond_its_grant_is_refused_before_it_is_delivered(grant: Grant, why: str) -> None:
    async with rig(fronts=("speaker",)) as r:
        with pytest.raises(Forbidden, match=why):
            await of_front(r, Put(text="x"), grant)
        assert r.seen == []


def test_an_idempotency_key_counts_for_one_token_with_one_set_of_limits() -> None:
    """A token that has the name of a revoked one, or narrower limits, must not get the answers of the former."""
    seen = []
    for grant in (
        Grant("ci", id="0"), Grant("ci", id="1"), Grant("ci", surfaces=("speaker",), id="0"),
        Grant("ci", roots=("/a",), id="0"), None, Grant("renamed", id="0"),
    ):  # fmt: skip
        call = RoutedCall(
            op=operation_of(Put), params=b"", origin=Origin("client", grant=grant), deadline=0, limit_s=1,
            done=lambda outcome: None, span="0", parent_span="",
        )  # fmt: skip
        take_key(call, "k")
        seen.append(call.origin.key)
    assert len(set(seen[:5])) == 5
    assert seen[5] == seen[0]


@pytest.mark.parametrize(
    ("grant", "why"),
    [
        (Grant("ci", read_only=True), "may only read"),
        (Grant("ci", surfaces=("files",)), "on no surface of the token ci"),
        (Grant("ci", roots=("/a",)), "the token ci is limited to /a"),
        (Grant("ci"), ""),
    ],
)
def test_services_are_restarted_only_by_clients_that_may_write_everywhere(grant: Grant, why: str) -> None:
    restart = operation_of(ServicesRestart(service="yaml"))
    assert restart.admits("client")
    assert not restart.admits("files")
    assert why in restart.refusal(grant)
    assert bool(why) == bool(restart.refusal(grant))
