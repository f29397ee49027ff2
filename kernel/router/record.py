"""Which calls are recorded in the audit log, and how: what was changed, what was to be changed, and what was refused.

Of the calls in a client's or the operator's name every change is recorded, the steps of a composite tool among them,
and everything that was forbidden.  What a service calls in its own name is its part of serving such a call, and is
recorded where it is refused, or where it changes what clients may change too (a download that becomes a document):
search indexes and graphs that follow what was recorded already would only drown it.  A hand on the services is
recorded, also that of the operator's page.
"""

from __future__ import annotations

import datetime
from typing import Any, Protocol

import trio

from linckia.kernel.audit import Entry, now
from linckia.kernel.generation import RoutedCall
from linckia.proto.errors import Executed, Kind, LinckiaError
from linckia.proto.grants import HTTP, STDIO
from linckia.proto.operation import CLIENT, OPERATOR, Access, Operation

KERNEL = "kernel"
"""The service name of operations that the kernel itself answers."""

MESSAGE_CHARS = 500

_TRACE_ID = slice(3, 35)
"""Of a traceparent."""


class AuditLog(Protocol):
    """`kernel.audit.Audit`, or what stands for it."""

    def record(self, entry: Entry) -> None: ...

    def refused(self, entry: Entry) -> None: ...


def record(log: AuditLog | None, call: RoutedCall, outcome: object) -> None:
    """What became of a call, which failed if its outcome is a LinckiaError; nothing where there is no log."""
    if log is None or not _concerns(call.op, call.caller, outcome):
        return
    failure = outcome.failure if isinstance(outcome, LinckiaError) else None
    took_s = trio.current_time() - call.deadline + call.limit_s
    entry = Entry(
        at=now() - datetime.timedelta(seconds=took_s),
        who=who(call),
        operation=call.op.name,
        target=call.target,
        outcome="ok" if failure is None else failure.kind.value,
        message="" if failure is None else failure.message[:MESSAGE_CHARS],
        executed="" if failure is None or failure.executed is Executed.NO else failure.executed.value,
        duration_ms=round(took_s * 1000, 3),
        trace=call.trace[_TRACE_ID],
        peer=call.peer,
        source="" if call.mandate is None else call.mandate.source,
    )
    if failure is not None and failure.kind is Kind.FORBIDDEN:
        log.refused(entry)
    else:
        log.record(entry)


def _concerns(operation: Operation[Any], caller: str, outcome: object) -> bool:
    if operation.access is not Access.READ and (
        caller in (CLIENT, OPERATOR) or CLIENT in operation.callers or operation.service == KERNEL
    ):
        return True
    return isinstance(outcome, LinckiaError) and outcome.kind is Kind.FORBIDDEN


def who(call: RoutedCall) -> str:
    """Whom the audit log names as the caller."""
    if call.mandate is not None:
        return call.mandate.who
    if call.caller != CLIENT:
        return call.caller
    if call.grant is not None:
        return call.grant.name
    if call.peer == STDIO:
        return STDIO
    return HTTP if call.peer else CLIENT
