"""Records the outcome of each call: for the operator, and in the audit log if it concerns it.

For the operator: the latest, the slow and the failed calls, and figures about each operation. Every call of a client or
service passes through the router, so a trace's calls are found here as a tree of spans. Everything is in memory and
bounded; it ends with the kernel.

In the audit log: changes, attempted changes, refusals and, if set, reads.

For clients and the operator, every change is recorded, including steps of composite tools, and every forbidden call.
Calls that a service makes in its own name are recorded only if they are refused, or change something that clients may
change too (such as a download that becomes a document). Updates of search indexes and graphs, which follow changes
already recorded, would only clutter the log. Calls that control services are recorded, including those from the
operator's page. With `[audit] reads`, what clients and the operator read is recorded as well: results of Linckia's own
operations, and every request to a mounted server.
"""

from __future__ import annotations

import bisect
import collections
import datetime
import itertools
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import trio
from msgspec import structs

from kernel.chronicle.audit import AuditEntry, now
from kernel.router.generation import RoutedCall
from kernel.router.tool_calls import CallsOfTools
from proto import keys
from proto.errors import Executed, InvalidParams, Kind, LinckiaError
from proto.grants import HTTP, STDIO
from proto.mounts import MountRequest
from proto.operation import CLIENT, OPERATOR, Access, Operation, Params, Role
from proto.ops.kernel import BUCKETS_S, OperationFigures
from proto.ops.observation import CallRecord, KernelCalls
from proto.origin import Origin
from proto.wire import frames

KERNEL = "kernel"
"""Service name for operations that the kernel itself handles."""

MESSAGE_CHARS = 500

PREVIEW = "preview"
"""Source of a dry run by which the page shows what a call would change. It changes nothing, and nobody has asked for
it, so it is recorded in no log of changes."""


class AuditLog(Protocol):
    """`kernel.chronicle.audit.Audit`, or a substitute for it."""

    @property
    def reads(self) -> bool: ...

    def record(self, entry: AuditEntry) -> None: ...

    def refused(self, entry: AuditEntry) -> None: ...


def record(log: AuditLog | None, call: RoutedCall, outcome: object) -> None:
    """Record the outcome of a call, which is a LinckiaError if it failed. No-op without a log."""
    origin, caller = call.origin, call.origin.caller
    if origin.mandate is not None and origin.mandate.source == PREVIEW:
        return
    if log is None or not (_concerns(call.op, caller, outcome) or (log.reads and _is_read(call.op, caller))):
        return
    failure = outcome.failure if isinstance(outcome, LinckiaError) else None
    took_s = trio.current_time() - call.deadline + call.limit_s
    denied = call.approval != "" and failure is not None and failure.kind is Kind.FORBIDDEN
    entry = AuditEntry(
        at=now() - datetime.timedelta(seconds=took_s if denied else took_s + call.held_s),
        who=who(origin),
        operation=call.op.name,
        target=call.target,
        outcome="ok" if failure is None else failure.kind.value,
        message="" if failure is None else failure.message[:MESSAGE_CHARS],
        executed="" if failure is None or failure.executed is Executed.NO else failure.executed.value,
        duration_ms=round(took_s * 1000, 3),
        trace=frames.trace_id(origin.trace),
        peer=origin.peer,
        source="" if origin.mandate is None else origin.mandate.source,
        approval=call.approval,
        decided_by=call.decided_by,
        held_ms=round(call.held_s * 1000, 3) if call.approval else None,
    )
    # Each decision of a person has a line of its own.
    if failure is not None and failure.kind is Kind.FORBIDDEN and not denied:
        log.refused(entry)
    else:
        log.record(entry)


def _concerns(operation: Operation[Any], caller: str, outcome: object) -> bool:
    if operation.access is not Access.READ and (
        caller in (CLIENT, OPERATOR) or CLIENT in operation.callers or operation.service == KERNEL
    ):
        return True
    return isinstance(outcome, LinckiaError) and outcome.kind is Kind.FORBIDDEN


def _is_read(operation: Operation[Any], caller: str) -> bool:
    """Return whether somebody reads what clients may read. What only operators may, such as the status, is left out:
    the command line and the operator's page ask for it all the time."""
    return caller in (CLIENT, OPERATOR) and CLIENT in operation.callers and operation.access is Access.READ


def who(origin: Origin) -> str:
    """Return the caller's name for the audit log."""
    if origin.mandate is not None:
        return origin.mandate.who
    if origin.caller != CLIENT:
        return origin.caller
    if origin.grant is not None:
        return origin.grant.name
    if origin.peer == STDIO:
        return STDIO
    return HTTP if origin.peer else CLIENT


def take_key(call: RoutedCall, key: str) -> None:
    """Give the call its idempotency key, which counts for its caller only. Raises InvalidParams."""
    if call.op.access is Access.READ:
        return
    if call.op.service == KERNEL:
        raise InvalidParams(f"{call.op.name} takes no idempotency key: the kernel keeps no answers")
    origin = call.origin
    if origin.caller == CLIENT and origin.grant is not None and origin.mandate is None:
        # Its name may have been that of another token, whose answers it must not get.
        caller = f"client {origin.grant.identity()}"
    else:
        caller = who(origin) if origin.caller in (CLIENT, OPERATOR) else f"service {origin.caller}"
    scoped = keys.scoped(caller if origin.mandate is None else f"{caller}, later", key)
    call.origin = structs.replace(origin, key=scoped)


RECENT, RARE = 5_000, 1_000
"""How many recent calls are kept, and how many slow and how many failed ones: 500 bytes each."""

SLOW_S = 0.5
"""A call of a client that takes longer is kept as slow: people notice such a wait."""

WINDOW_S, WINDOW_CALLS = 60.0, 512
"""Quantiles cover the calls of the last minute, at most this many."""


PAGE = "page"
"""Peer of the calls that the operator's page makes for itself."""


@cache
def is_wait(name: str, params: type[Params[Any]]) -> bool:
    """Return whether the operation is a long poll: how long it takes says nothing about the service."""
    return name.endswith("_wait") or "wait_s" in params.__struct_fields__


def is_work(call: RoutedCall) -> bool:
    """Return whether the figures count the call: somebody asked for it, and it does not only wait for news."""
    return call.for_client and call.origin.peer != PAGE and not is_wait(call.op.name, call.op.params)


def is_of_client(call: RoutedCall) -> bool:
    """Return whether a client or the operator made the call itself, and not only to wait for news."""
    return call.origin.caller in (CLIENT, OPERATOR) and is_work(call)


@dataclass
class ServiceCalls:
    """Calls of one service since the kernel started that count as work."""

    ended: int = 0
    failed: int = 0
    _latest: collections.deque[tuple[float, float]] = field(
        default_factory=lambda: collections.deque(maxlen=WINDOW_CALLS)
    )

    def add(self, now: float, duration_s: float, *, failed: bool) -> None:
        self.ended += 1
        self.failed += failed
        self._latest.append((now, duration_s))

    def quantiles_ms(self, now: float) -> tuple[float | None, float | None]:
        """Return the median and the 99th percentile of the last minute, in ms; None if there were no calls."""
        found = sorted(duration for at, duration in self._latest if at >= now - WINDOW_S)
        if not found:
            return None, None
        return found[(len(found) - 1) // 2] * 1000, found[math.ceil(0.99 * len(found)) - 1] * 1000


class CallLog:
    """Records calls; only the router writes to it."""

    def __init__(self) -> None:
        self.last = 0
        self.services: collections.defaultdict[str, ServiceCalls] = collections.defaultdict(ServiceCalls)
        self.operations: dict[str, OperationFigures] = {}
        self.tools = CallsOfTools()
        self._recent: collections.deque[CallRecord] = collections.deque(maxlen=RECENT)
        self._slow: collections.deque[CallRecord] = collections.deque(maxlen=RARE)
        self._failed: collections.deque[CallRecord] = collections.deque(maxlen=RARE)
        self.run = os.urandom(4).hex()
        """Names this run of the kernel; its spans begin with it."""
        self._spans = 0

    def new_span(self) -> str:
        """Return an unused span id."""
        self._spans += 1
        return f"{self.run}{self._spans & 0xFFFFFFFF:08x}"

    def note(self, call: RoutedCall, outcome: object) -> None:
        """Record the outcome of a call, which is a LinckiaError if it failed."""
        op = call.op
        if op.service == KERNEL and (op.role is Role.INTERNAL or op.access is Access.READ):
            # Fronts wait in such calls for changes, and operators watch the system with them.
            return
        now = trio.current_time()
        began = call.deadline - call.limit_s
        duration_s = max(0.0, now - began)
        queued_s = None if call.sent_at is None else max(0.0, call.sent_at - began)
        failure = outcome.failure if isinstance(outcome, LinckiaError) else None
        if is_work(call):
            self.services[op.service].add(now, duration_s, failed=failure is not None)
        if op.params is MountRequest:
            self.tools.note(call, duration_s, outcome)
        self._count(call, duration_s, queued_s, failed=failure is not None)
        self.last += 1
        entry = CallRecord(
            number=self.last,
            at=time.time() - duration_s,
            trace=frames.trace_id(call.origin.trace),
            span=call.span,
            parent=call.parent_span,
            operation=op.name,
            service=op.service,
            process="" if call.generation is None else call.generation.service,
            generation=0 if call.generation is None else call.generation.number,
            who=who(call.origin),
            target=call.target,
            queued_ms=None if queued_s is None else queued_s * 1000,
            duration_ms=duration_s * 1000,
            outcome="ok" if failure is None else failure.kind.value,
            message="" if failure is None else failure.message[:MESSAGE_CHARS],
            deaths=call.deaths,
            of_client=is_of_client(call),
        )
        self._recent.append(entry)
        if failure is not None:
            self._failed.append(entry)
        if duration_s >= SLOW_S and call.for_client:
            self._slow.append(entry)

    def _count(self, call: RoutedCall, duration_s: float, queued_s: float | None, *, failed: bool) -> None:
        figures = self.operations.get(call.op.name)
        if figures is None:
            none = [0] * (len(BUCKETS_S) + 1)
            figures = OperationFigures(
                service=call.op.service, failures=0, seconds=0, buckets=none, queued_seconds=0,
                queued_buckets=none.copy(),
            )  # fmt: skip
            self.operations[call.op.name] = figures
        figures.buckets[bisect.bisect_left(BUCKETS_S, duration_s)] += 1
        figures.seconds += duration_s
        figures.failures += failed
        if queued_s is not None:
            figures.queued_buckets[bisect.bisect_left(BUCKETS_S, queued_s)] += 1
            figures.queued_seconds += queued_s

    def find(self, asked: KernelCalls) -> list[CallRecord]:
        """Return the calls asked for, latest first; those of a trace in the order in which they began."""
        if asked.trace is not None:
            found = {each.number: each for each in self._all() if each.trace == asked.trace}
            return sorted(found.values(), key=lambda each: each.at)[: asked.limit]
        calls = {"recent": self._recent, "slow": self._slow, "failed": self._failed}[asked.kind]
        chosen: list[CallRecord] = []
        for each in reversed(calls):
            if each.number <= asked.after or len(chosen) == asked.limit:
                break
            if (
                asked.operation in ("", each.operation)
                and asked.service in ("", each.service)
                and asked.who in ("", each.who)
                and (each.of_client or not asked.of_clients)
            ):
                chosen.append(each)
        return chosen

    def since(self, after: int, limit: int) -> tuple[list[CallRecord], int]:
        """Return calls recorded after this one, oldest first, and how many more are no longer kept."""
        if not self._recent or self.last <= after:
            return [], 0
        first = self._recent[0].number
        skipped = max(0, after + 1 - first)
        return list(itertools.islice(self._recent, skipped, skipped + limit)), max(0, first - after - 1)

    def _all(self) -> Iterator[CallRecord]:
        yield from self._recent
        yield from self._slow
        yield from self._failed
