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

from kernel.audit import Entry, now
from kernel.router.call import RoutedCall
from proto.errors import Executed, Kind, LinckiaError
from proto.grants import Grant
from proto.operation import CLIENT, OPERATOR, Access, Operation

KERNEL = "kernel"
"""The service name of operations that the kernel itself answers."""

STDIO, HTTP = "stdio", "http"
"""Who calls without a token of its own, by where it comes from."""

MESSAGE_CHARS = 500

_TRACE_ID = slice(3, 35)
"""Of a traceparent."""


class AuditLog(Protocol):
    """`kernel.audit.Audit`, or what stands for it."""

    def record(self, entry: Entry) -> None: ...

    def refused(self, entry: Entry) -> None: ...


class Records:
    """What the router says of calls; nothing where there is no log."""

    def __init__(self, log: AuditLog | None) -> None:
        self._log = log

    def routed(self, call: RoutedCall, outcome: bytes | LinckiaError) -> None:
        """A call that a service was to answer has come to its end."""
        if self._log is not None and _concerns(call.op, call.caller, outcome):
            self.put(
                call.op,
                call.caller,
                outcome,
                grant=call.grant,
                target=call.target,
                peer=call.peer,
                trace=call.trace,
                began=call.deadline - call.limit_s,
            )

    def put(
        self,
        operation: Operation[Any],
        caller: str,
        outcome: object,
        *,
        grant: Grant | None,
        target: str,
        peer: str = "",
        trace: str = "",
        began: float | None = None,
    ) -> None:
        """The same of any call: it failed if its outcome is a LinckiaError."""
        if self._log is None or not _concerns(operation, caller, outcome):
            return
        failure = outcome.failure if isinstance(outcome, LinckiaError) else None
        took_s = 0.0 if began is None else trio.current_time() - began
        entry = Entry(
            at=now() - datetime.timedelta(seconds=took_s),
            who=_who(caller, grant, peer),
            operation=operation.name,
            target=target,
            outcome="ok" if failure is None else failure.kind.value,
            message="" if failure is None else failure.message[:MESSAGE_CHARS],
            executed="" if failure is None or failure.executed is Executed.NO else failure.executed.value,
            duration_ms=round(took_s * 1000, 3),
            trace=trace[_TRACE_ID],
            peer=peer,
        )
        if failure is not None and failure.kind is Kind.FORBIDDEN:
            self._log.refused(entry)
        else:
            self._log.record(entry)


def _concerns(operation: Operation[Any], caller: str, outcome: object) -> bool:
    if operation.access is not Access.READ and (
        caller in (CLIENT, OPERATOR) or CLIENT in operation.callers or operation.service == KERNEL
    ):
        return True
    return isinstance(outcome, LinckiaError) and outcome.kind is Kind.FORBIDDEN


def _who(caller: str, grant: Grant | None, peer: str) -> str:
    if caller != CLIENT:
        return caller
    if grant is not None:
        return grant.name
    if peer == STDIO:
        return STDIO
    # What a plan does for a client who asked for it has no connection.
    return HTTP if peer else CLIENT
