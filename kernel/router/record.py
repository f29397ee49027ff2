"""Decides which calls are recorded in the audit log: changes, attempted changes, refusals and, if set, reads.

For clients and the operator, every change is recorded, including steps of composite tools, and every forbidden call.
Calls that a service makes in its own name are recorded only if they are refused, or change something that clients may
change too (such as a download that becomes a document). Updates of search indexes and graphs, which follow changes
already recorded, would only clutter the log. Calls that control services are recorded, including those from the
operator's page. With `[audit] reads`, what clients and the operator read is recorded as well: results of Linckia's own
operations, and every request to a mounted server.
"""

from __future__ import annotations

import datetime
from typing import Any, Protocol

import trio

from kernel.chronicle.audit import AuditEntry, now
from kernel.router.generation import RoutedCall
from proto.errors import Executed, Kind, LinckiaError
from proto.grants import HTTP, STDIO
from proto.operation import CLIENT, OPERATOR, Access, Operation
from proto.origin import Origin
from proto.wire import frames

KERNEL = "kernel"
"""Service name for operations that the kernel itself handles."""

MESSAGE_CHARS = 500


class AuditLog(Protocol):
    """`kernel.chronicle.audit.Audit`, or a substitute for it."""

    @property
    def reads(self) -> bool: ...

    def record(self, entry: AuditEntry) -> None: ...

    def refused(self, entry: AuditEntry) -> None: ...


def record(log: AuditLog | None, call: RoutedCall, outcome: object) -> None:
    """Record the outcome of a call, which is a LinckiaError if it failed. No-op without a log."""
    origin, caller = call.origin, call.origin.caller
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
