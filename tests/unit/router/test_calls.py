"""The record of calls: spans form a tree, quantiles and buckets are right, and everything is bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from kernel.control.page_operations import KernelHistory
from kernel.router import record as calls
from kernel.router.generation import RoutedCall
from kernel.router.record import CallLog
from proto.errors import Unavailable
from proto.operation import Params, operation_of
from proto.ops.kernel import BUCKETS_S
from proto.ops.observation import KernelCalls
from proto.ops.tasks import TaskWait
from proto.ops.watch import WatchChanges
from proto.origin import Origin
from proto.wire.frames import new_trace, parent_span, trace_id
from tests.unit.router.ops import Relay, Say

CLIENTS_SPAN = "00f067aa0ba902b7"


def call(params: type[Params[Any]], began: float, **more: Any) -> RoutedCall:
    """A call that began at this time of trio's clock."""
    origin = Origin(
        more.pop("caller", "client"), peer=more.pop("peer", ""), trace=more.pop("trace", None) or new_trace()
    )
    given: dict[str, Any] = {"origin": origin, "limit_s": 10.0, **more}
    return RoutedCall(op=operation_of(params), params=b"", deadline=began + 10, done=lambda outcome: None, **given)


async def test_records_have_the_times_and_the_outcome(autojump_clock: trio.testing.MockClock) -> None:
    log = CallLog()
    routed = call(Say, trio.current_time(), span=log.new_span(), target="file=/a")
    routed.sent_at = trio.current_time() + 0.25
    await trio.sleep(0.75)
    log.note(routed, Unavailable("gone"))
    (found,) = log.find(KernelCalls(kind="failed"))
    assert (found.operation, found.outcome, found.message, found.target) == (
        "test.say",
        "unavailable",
        "gone",
        "file=/a",
    )
    assert [found.queued_ms, found.duration_ms] == pytest.approx([250, 750])
    assert [each.number for each in log.find(KernelCalls(kind="slow"))] == [1]
    assert log.find(KernelCalls(after=1)) == []
    assert log.find(KernelCalls(operation="test.relay")) == []


async def test_a_trace_is_a_tree_of_spans(autojump_clock: trio.testing.MockClock) -> None:
    log = CallLog()
    trace = f"00-{'ab' * 16}-{CLIENTS_SPAN}-01"
    outer = call(Relay, 0.0, trace=trace, span=log.new_span(), parent_span=parent_span(trace))
    inner = call(Say, 0.1, trace=trace, span=log.new_span(), parent_span=outer.span)
    log.note(inner, b"")
    log.note(outer, b"")
    log.note(call(Say, 0.2, span=log.new_span()), b"")
    first, second = sorted(log.find(KernelCalls(trace=trace_id(trace))), key=lambda each: each.operation)
    assert (first.operation, first.parent) == ("test.relay", CLIENTS_SPAN)
    assert (second.operation, second.parent) == ("test.say", first.span)
    assert first.span != second.span


def test_a_trace_that_begins_here_has_no_parent() -> None:
    assert parent_span(new_trace()) == ""
    assert len(trace_id(new_trace())) == 32


async def test_quantiles_cover_the_last_minute(autojump_clock: trio.testing.MockClock) -> None:
    log = CallLog()
    log.note(call(Say, trio.current_time() - 9), b"")
    await trio.sleep(calls.WINDOW_S + 1)
    for ms in range(1, 101):
        log.note(call(Say, trio.current_time() - ms / 1000), b"")
    assert log.services["speaker"].quantiles_ms(trio.current_time()) == pytest.approx((50, 99))
    await trio.sleep(calls.WINDOW_S + 1)
    assert log.services["speaker"].quantiles_ms(trio.current_time()) == (None, None)


async def test_figures_leave_out_waits_and_calls_of_services_and_the_page(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = CallLog()
    for asked in (WatchChanges, TaskWait):
        log.note(call(asked, trio.current_time() - 600), b"")
    log.note(call(Say, trio.current_time() - 600, caller="relay", for_client=False), b"")
    log.note(call(Say, trio.current_time() - 600, caller="operator", peer=calls.PAGE), b"")
    log.note(call(Say, trio.current_time() - 0.01, caller="relay", for_client=True), b"")
    log.note(call(Say, trio.current_time() - 0.01), b"")
    assert sum(each.ended for each in log.services.values()) == 2
    assert log.services["speaker"].quantiles_ms(trio.current_time()) == pytest.approx((10, 10))
    assert [each.number for each in log.find(KernelCalls(of_clients=True))] == [6]
    assert len(log.find(KernelCalls())) == 6


async def test_buckets_count_each_call_once(autojump_clock: trio.testing.MockClock) -> None:
    log = CallLog()
    for duration in (*BUCKETS_S, 1000.0):
        log.note(call(Say, trio.current_time() - 0.99 * duration), b"")
    figures = log.operations["test.say"]
    assert figures.buckets == [1] * (len(BUCKETS_S) + 1)
    assert sum(figures.queued_buckets) == 0


async def test_it_is_bounded_and_ignores_calls_that_only_observe(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "RECENT", 3)
    log = CallLog()
    for _ in range(5):
        log.note(call(Say, trio.current_time()), b"")
    log.note(call(KernelHistory, trio.current_time(), caller="operator"), b"")
    assert [each.number for each in log.find(KernelCalls())] == [5, 4, 3]
    assert log.last == 5
    assert msgspec.json.encode(log.find(KernelCalls(limit=1)))
