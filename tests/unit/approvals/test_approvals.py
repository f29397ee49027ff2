"""The service `approvals`: what a decision counts for, and for how long."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError, Overloaded
from proto.mounts import MountRequest
from proto.ops.approvals import Approval, ApprovalDecide, ApprovalListParams, ApprovalWait, Decision
from proto.wire import frames
from services.approvals import preview, store
from services.approvals.main import open_service
from services.approvals.operations import ApprovalShow
from tests.in_process import Bench, services_in_process

PARAMS = frames.pack_body({"path": "/notes/a.md"})


def asked(wait: str, **others: Any) -> ApprovalWait:
    given: dict[str, Any] = {"operation": "delete", "who": "ci", "params": PARAMS, "timeout_s": 600.0, **others}
    return ApprovalWait(wait=wait, size=len(given["params"]), **given)


@contextlib.asynccontextmanager
async def service(folder: Path) -> AsyncIterator[Bench]:
    async with services_in_process({"approvals": open_service}, folder) as bench:
        yield bench


class Waiting:
    """A call that waits."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.decision: Decision | None = None

    async def run(self, bench: Bench, call: ApprovalWait) -> None:
        with self.scope, contextlib.suppress(LinckiaError):
            self.decision = await bench.call(call, caller="kernel")
        self.ended.set()


async def listed(bench: Bench) -> list[Approval]:
    return (await bench.call(ApprovalListParams(), caller="operator")).pending


async def until(bench: Bench, **wanted: object) -> Approval:
    """Wait until one approval is pending that has these members."""
    while True:
        found = [each for each in await listed(bench) if all(getattr(each, n) == v for n, v in wanted.items())]
        if found:
            return found[0]
        await trio.lowlevel.checkpoint()


async def decide(bench: Bench, id_: str, *, approve: bool = True, who: str = "eva", **others: str) -> None:
    await bench.call(ApprovalDecide(id=id_, approve=approve, who=who, **others), caller="operator")


async def test_a_decision_counts_once(tmp_path: Path) -> None:
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        first, second = Waiting(), Waiting()
        nursery.start_soon(first.run, bench, asked("1"))
        one = await until(bench)
        nursery.start_soon(second.run, bench, asked("2"))
        while len(await listed(bench)) < 2:
            await trio.lowlevel.checkpoint()
        await decide(bench, one.id, approve=False, reason="no")
        await first.ended.wait()
        assert first.decision == Decision(id=one.id, approved=False, by="eva", reason="no")
        other = await until(bench, waiting=True)
        assert other.id != one.id
        await decide(bench, other.id)
        await second.ended.wait()
        assert second.decision is not None
        assert second.decision.approved
        third = Waiting()
        nursery.start_soon(third.run, bench, asked("3"))
        assert (await until(bench, waiting=True)).id not in (one.id, other.id)
        nursery.cancel_scope.cancel()


async def test_a_withdrawn_call_keeps_its_place_and_a_repetition_gets_the_decision(tmp_path: Path) -> None:
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        call = Waiting()
        nursery.start_soon(call.run, bench, asked("1"))
        one = await until(bench, waiting=True)
        call.scope.cancel()
        await until(bench, id=one.id, waiting=False)
        await decide(bench, one.id)
        # Another client's equal call does not get it.
        other = Waiting()
        nursery.start_soon(other.run, bench, asked("2", who="cd"))
        await until(bench, asker="cd")
        assert (await bench.call(asked("3"), caller="kernel")).id == one.id
        nursery.cancel_scope.cancel()


async def test_pending_calls_outlive_the_service(tmp_path: Path) -> None:
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        call = Waiting()
        nursery.start_soon(call.run, bench, asked("1"))
        one = await until(bench, waiting=True)
        await bench.stop("approvals")
        await call.ended.wait()
        await bench.start("approvals")
        assert (await until(bench, waiting=False)).id == one.id
        again = Waiting()
        nursery.start_soon(again.run, bench, asked("1"))
        assert (await until(bench, waiting=True)).id == one.id
        await decide(bench, one.id)
        await again.ended.wait()
        assert again.decision is not None
        # The answer was lost with the service: the same wait gets it again.
        assert (await bench.call(asked("1"), caller="kernel")).id == one.id


async def test_a_decision_about_a_call_with_a_key_counts_for_its_repetitions(tmp_path: Path) -> None:
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        calls = [Waiting(), Waiting()]
        for number, call in enumerate(calls):
            nursery.start_soon(call.run, bench, asked(str(number), key="k"))
        one = await until(bench, waiting=True)
        await decide(bench, one.id)
        for call in calls:
            await call.ended.wait()
            assert call.decision is not None
        assert (await bench.call(asked("3", key="k"), caller="kernel")).id == one.id
        assert await listed(bench) == []


@pytest.mark.parametrize("allow", [False, True])
async def test_the_default_decides_when_the_time_is_over(tmp_path: Path, *, allow: bool) -> None:
    async with service(tmp_path) as bench:
        call = asked("1", timeout_s=0.01, allow_on_time_out=allow)
        decision = await bench.call(call, caller="kernel")
        assert (decision.approved, decision.by) == (allow, "time-out")
        assert decision.reason == "nobody decided within 0.01 s"


async def test_nobody_decides_about_a_call_whose_time_is_over(tmp_path: Path) -> None:
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        call = Waiting()
        nursery.start_soon(call.run, bench, asked("1", timeout_s=0.2))
        one = await until(bench, waiting=True)
        call.scope.cancel()
        while await listed(bench):
            await trio.lowlevel.checkpoint()
        with pytest.raises(OperationError, match="is over"):
            await decide(bench, one.id)


async def test_the_first_decision_counts(tmp_path: Path) -> None:
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        call = Waiting()
        nursery.start_soon(call.run, bench, asked("1"))
        one = await until(bench, waiting=True)
        for field, name in (("operation", "other"), ("asker_name", "cd")):
            with pytest.raises(InvalidParams, match="is about"):
                await bench.call(ApprovalDecide(id=one.id, approve=True, **{field: name}), caller="operator")
        await decide(bench, one.id, approve=False, operation="delete", asker_name="ci")
        await decide(bench, one.id, approve=False)
        with pytest.raises(OperationError, match="was denied by eva"):
            await decide(bench, one.id)


async def test_one_client_cannot_fill_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_PENDING_EACH", 1)
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        nursery.start_soon(Waiting().run, bench, asked("1"))
        await until(bench, waiting=True)
        with pytest.raises(Overloaded, match="of ci"):
            await bench.call(asked("2"), caller="kernel")
        nursery.start_soon(Waiting().run, bench, asked("3", who="cd"))
        await until(bench, asker="cd")
        nursery.cancel_scope.cancel()


def of_tool(trace: str, text: str = "hi") -> ApprovalWait:
    params = json.dumps({"name": "echo", "arguments": {"text": text}, "_meta": {"traceparent": trace}}).encode()
    body = frames.pack_body(MountRequest(method="tools/call", name="echo", params=params))
    return asked("1", operation="mcp_one.change", is_mounted=True, params=body)


def test_a_repeated_call_of_a_mounted_tool_is_equal_whatever_its_trace() -> None:
    assert preview.digest(of_tool("a")) == preview.digest(of_tool("b"))
    assert preview.digest(of_tool("a")) != preview.digest(of_tool("a", "ho"))
    assert preview.tool(of_tool("a")) == "mcp.one.echo"
    assert preview.shown(of_tool("a")) == '{"text":"hi"}'


@pytest.mark.parametrize(
    "params",
    [b"", b"\xc1", b"\xff" * 10, frames.pack_body(["x"] * 9_000), frames.pack_body({"a": b"\x00\xff", "b": None})],
)
def test_previews_are_bounded(params: bytes) -> None:
    for is_mounted in (False, True):
        shown = preview.shown(asked("1", params=params, is_mounted=is_mounted))
        assert shown
        assert len(shown) <= preview.PREVIEW_CHARS


async def test_the_parameters_of_a_call_that_waits_are_shown_whole(tmp_path: Path) -> None:
    long = "x" * 50_000
    calls = [
        asked("1", params=frames.pack_body({"path": "/notes/a.md", "content": long, "encoding": None})),
        asked("2", params=b"\x81\xa1a\xc1"),
        asked("3", digest="of more than is sent"),
    ]
    async with service(tmp_path) as bench, trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(Waiting().run, bench, call)
        while len(await listed(bench)) < len(calls):
            await trio.lowlevel.checkpoint()
        found = {each.id: await bench.call(ApprovalShow(id=each.id), caller="operator") for each in await listed(bench)}
        shown = [each for each in found.values() if each.parameters is not None]
        assert [each.parameters for each in shown] == [{"path": "/notes/a.md", "content": long}]
        why = sorted(each.why for each in found.values() if each.parameters is None)
        assert len(why) == 2
        assert why[0].startswith("only the beginning")
        assert why[1].startswith("they are not data")
        await decide(bench, shown[0].id)

        async def shown_until_it_ends() -> None:
            while True:
                await bench.call(ApprovalShow(id=shown[0].id), caller="operator")
                await trio.lowlevel.checkpoint()

        with pytest.raises(InvalidParams, match="waits"):
            await shown_until_it_ends()
        nursery.cancel_scope.cancel()
