"""The router's entries in the audit log: every change and every refusal by any caller, and nothing else."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import trio
import trio.testing

from kernel.chronicle.audit import AuditEntry
from proto.errors import Forbidden, LinckiaError
from proto.grants import Grant
from proto.operation import OPERATOR, Params, operation_of
from proto.origin import Origin
from proto.wire import frames
from tests.unit.router.ops import Put, Relay, Say, Secret, Write
from tests.unit.router.rig import CRASHED, Rig, rig


class Log:
    """Records entries in memory."""

    def __init__(self, *, reads: bool = False) -> None:
        self.reads = reads
        self.entries: list[AuditEntry] = []

    def record(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    def refused(self, entry: AuditEntry) -> None:
        self.entries.append(entry)

    def told(self) -> list[tuple[str, str, str, str]]:
        return [(entry.who, entry.operation, entry.outcome, entry.executed) for entry in self.entries]


async def of_front(r: Rig, params: Params[Any], *, service: str = "speaker", target: str = "", **who: Any) -> None:
    """A call that a service makes in a client's name."""
    name = operation_of(params).name
    with contextlib.suppress(LinckiaError):
        await r.outgoing[service].raw(name, frames.pack_body(params), Origin("client", **who), target=target, limit_s=5)


TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


async def test_a_change_is_recorded_with_who_made_it_from_where_and_what_it_is_about() -> None:
    log = Log()
    async with rig(fronts=("speaker",), audit=log) as r:
        await of_front(r, Put(text="secret"), grant=Grant("ci"), target="file=/n/a", peer="192.0.2.7", trace=TRACE)
        await of_front(r, Put(text="x"), target="file=/n/b", peer="stdio")
        await of_front(r, Put(text="x"), peer="127.0.0.1")
        await r.router.call(operation_of(Put(text="x")), Put(text="x"), origin=Origin(OPERATOR))
    first = log.entries[0]
    assert (first.who, first.peer, first.target, first.trace) == ("ci", "192.0.2.7", "file=/n/a", "ab" * 16)
    assert first.duration_ms is not None
    assert "secret" not in repr(log.entries)
    assert [(entry.who, entry.outcome) for entry in log.entries[1:]] == [
        ("stdio", "ok"), ("http", "ok"), ("operator", "ok")
    ]  # fmt: skip


async def test_reads_are_not_recorded_but_what_is_forbidden_is() -> None:
    log = Log()
    async with rig(fronts=("speaker",), audit=log) as r:
        await of_front(r, Say(text="x"))
        await of_front(r, Say(text="fail"))
        assert log.told() == []
        await of_front(r, Secret(text="x"), peer="stdio")
        await of_front(r, Put(text="x"), grant=Grant("ci", read_only=True), peer="127.0.0.1")
        with pytest.raises(Forbidden):
            await r.router.call(operation_of(Secret(text="x")), Secret(text="x"), origin=Origin("client"))
    assert log.told() == [
        ("stdio", "test.secret", "forbidden", ""),
        ("ci", "test.put", "forbidden", ""),
        ("client", "test.secret", "forbidden", ""),
    ]
    assert "may only read" in log.entries[1].message


async def test_reads_of_clients_and_of_the_operator_are_recorded_if_wanted() -> None:
    log = Log(reads=True)
    async with rig(fronts=("speaker",), audit=log) as r:
        await of_front(r, Say(text="x"), grant=Grant("ci"), target="file=/n/a")
        await of_front(r, Say(text="fail"), peer="stdio")
        await r.router.call(operation_of(Say(text="x")), Say(text="x"), origin=Origin(OPERATOR))
        # A service reads for itself.
        await r.up("relay")
        await r.outgoing["relay"].call(Say(text="x"))
    assert log.told() == [
        ("ci", "test.say", "ok", ""),
        ("stdio", "test.say", "operation", ""),
        ("operator", "test.say", "ok", ""),
    ]
    assert log.entries[0].target == "file=/n/a"


async def test_calls_of_services_are_recorded_if_clients_may_make_them_too_or_they_are_refused() -> None:
    log = Log()
    async with rig(fronts=("speaker",), audit=log) as r:
        await r.up("relay")
        await of_front(r, Relay(text="x"), grant=Grant("ci"))
        assert log.told() == []
        await r.outgoing["relay"].call(Put(text="x"))
        with pytest.raises(Forbidden):
            await r.outgoing["relay"].call(Write(text="x"))
        # Whose name it says it is in counts of a front alone.
        await of_front(r, Write(text="x"), service="relay")
    assert log.told() == [
        ("relay", "test.put", "ok", ""),
        ("relay", "test.write", "forbidden", ""),
        ("relay", "test.write", "forbidden", ""),
    ]


async def test_calls_that_may_have_been_executed_are_recorded_as_such(autojump_clock: trio.testing.MockClock) -> None:
    log = Log()
    async with rig(fronts=("relay",), audit=log) as r:
        await r.up("relay")
        r.hold = trio.Event()
        async with trio.open_nursery() as nursery:
            for text in ("a", "b"):
                told = {"service": "relay", "peer": "stdio", "target": f"text={text}"}
                nursery.start_soon(functools.partial(of_front, r, Write(text="x"), **told))
            await r.until(lambda: len(r.seen) == 2)
            r.down(CRASHED)
        assert log.told() == 2 * [("stdio", "test.write", "maybe_executed", "maybe")]
        log.entries.clear()
        await r.up()
        # Its time is up, and then its client goes.
        await of_front(r, Write(text="late"), service="relay", peer="stdio")
        with trio.move_on_after(1):
            await of_front(r, Write(text="gone"), service="relay", peer="stdio")
        await trio.sleep(1)
        assert log.told() == [
            ("stdio", "test.write", "timeout", "maybe"),
            ("stdio", "test.write", "cancelled", "maybe"),
        ]
        log.entries.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: of_front(r, Write(text="front"), service="relay", peer="stdio"))
            await r.until(lambda: "front" in r.seen)
            r.down(service="relay")
            nursery.cancel_scope.cancel()
        assert log.told() == [("stdio", "test.write", "cancelled", "maybe")]
