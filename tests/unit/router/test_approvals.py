"""The router lets no call through that waits for an approval."""

from __future__ import annotations

import contextlib

import pytest

from kernel.chronicle.audit import AuditEntry
from proto.approvals import ApprovalSettings, Rules
from proto.errors import Executed, Unavailable
from proto.ops.kernel import Done, ServicesRestart
from proto.origin import Origin
from proto.wire import frames
from tests.unit.router.ops import Say, Write
from tests.unit.router.rig import call, rig

RULES = Rules(ApprovalSettings(require=("test.write",)))


class Log:
    """Keeps the recorded entries."""

    reads = False

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def record(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    refused = record


async def test_without_the_service_that_asks_no_chosen_call_is_made() -> None:
    log = Log()
    async with rig(rules=RULES, audit=log) as r:
        with pytest.raises(Unavailable, match=r"test\.write needs an approval: service approvals") as caught:
            await call(r, Write(text="one"))
        assert caught.value.failure.executed is Executed.NO
        assert r.seen == []
        assert [entry.outcome for entry in log.entries] == ["unavailable"]


async def test_other_calls_and_those_of_the_operator_do_not_wait() -> None:
    async with rig(rules=RULES) as r:
        assert (await call(r, Say(text="one")))["text"] == "one"
        assert (await call(r, Write(text="two"), origin=Origin("operator")))["text"] == "two"


async def test_a_chosen_operation_of_the_kernel_itself_is_not_made_either() -> None:
    made: list[str] = []

    async def restart(params: ServicesRestart, caller: str) -> Done:
        made.append(params.service)
        return Done(message="restarted")

    body = frames.pack_body(ServicesRestart(service="speaker"))
    for require, expected in (((), ["speaker"]), (("services_restart",), [])):
        made.clear()
        async with rig(rules=Rules(ApprovalSettings(require=require)), fronts=("speaker",)) as r:
            r.router.serve_local({ServicesRestart: restart})
            with contextlib.nullcontext() if not require else pytest.raises(Unavailable, match="needs an approval"):
                await r.outgoing["speaker"].raw("services_restart", body, Origin("client"), limit_s=5)
        assert made == expected
