"""Typed failures, the same in every process.

A failure crosses the link as a `Failure` (plain data) and lives in Python as a `LinckiaError`.  Every one of
them says what went wrong, which argument was at fault where there is one, and, the question that decides whether a
caller may simply try again, whether the work may have happened.
"""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.StrEnum):
    """What sort of failure it is; each has its own exception below."""

    INVALID_PARAMS = "invalid_params"
    UNKNOWN_OPERATION = "unknown_operation"
    FORBIDDEN = "forbidden"
    UNAVAILABLE = "unavailable"
    OVERLOADED = "overloaded"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    MAYBE_EXECUTED = "maybe_executed"
    QUARANTINED = "quarantined"
    OPERATION = "operation"
    INTERNAL = "internal"


class Executed(enum.StrEnum):
    """Whether the work of a failed call may have happened."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A failure as data.

    `code` is the JSON-RPC code of an operation that declares its own (`Operation.codes`); `retry_after_ms` is set
    where waiting can help; `data` holds what a program would want to read, string to string.
    """

    kind: Kind
    message: str
    executed: Executed = Executed.NO
    field: str | None = None
    code: int | None = None
    retry_after_ms: int | None = None
    data: dict[str, str] = {}


class LinckiaError(Exception):
    """Base of every failure that may reach a caller."""

    kind: Kind = Kind.INTERNAL
    executed: Executed = Executed.MAYBE

    def __init__(
        self,
        message: str,
        *,
        executed: Executed | None = None,
        field: str | None = None,
        code: int | None = None,
        retry_after_ms: int | None = None,
        data: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(
            kind=self.kind,
            message=message,
            executed=self.executed if executed is None else executed,
            field=field,
            code=code,
            retry_after_ms=retry_after_ms,
            data=data or {},
        )


class InvalidParams(LinckiaError):
    """An argument is missing, unknown, of the wrong type or out of range.  Nothing was done."""

    kind = Kind.INVALID_PARAMS
    executed = Executed.NO


class UnknownOperation(LinckiaError):
    """No operation of that name is there for this caller.  Nothing was done."""

    kind = Kind.UNKNOWN_OPERATION
    executed = Executed.NO


class Forbidden(LinckiaError):
    """The operation does not admit this caller.  Nothing was done."""

    kind = Kind.FORBIDDEN
    executed = Executed.NO


class Unavailable(LinckiaError):
    """The request was not delivered: the service is down, starting, or stopped by a person."""

    kind = Kind.UNAVAILABLE
    executed = Executed.NO


class Overloaded(LinckiaError):
    """The service's queue is full.  Nothing was done."""

    kind = Kind.OVERLOADED
    executed = Executed.NO


class Timeout(LinckiaError):
    """The deadline passed.  `executed` says whether the request had been delivered."""

    kind = Kind.TIMEOUT
    executed = Executed.MAYBE


class Cancelled(LinckiaError):
    """The caller withdrew the request."""

    kind = Kind.CANCELLED
    executed = Executed.MAYBE


class MaybeExecuted(LinckiaError):
    """The service died with this request in hand, and the operation is not safe to repeat unasked."""

    kind = Kind.MAYBE_EXECUTED
    executed = Executed.MAYBE


class Quarantined(LinckiaError):
    """This very request was in flight when several generations died; it is refused, not replayed."""

    kind = Kind.QUARANTINED
    executed = Executed.MAYBE


class OperationError(LinckiaError):
    """The operation's own failure: the file is not there, the path leads nowhere.  Nothing was changed."""

    kind = Kind.OPERATION
    executed = Executed.NO


class Internal(LinckiaError):
    """A defect of ours.  The message is for the caller; the traceback is in the service's log."""

    kind = Kind.INTERNAL
    executed = Executed.MAYBE


_BY_KIND: dict[Kind, type[LinckiaError]] = {
    error.kind: error
    for error in (
        InvalidParams, UnknownOperation, Forbidden, Unavailable, Overloaded, Timeout,
        Cancelled, MaybeExecuted, Quarantined, OperationError, Internal,
    )
}  # fmt: skip


def from_failure(failure: Failure) -> LinckiaError:
    """The exception for a failure that arrived as data."""
    return _BY_KIND[failure.kind](
        failure.message,
        executed=failure.executed,
        field=failure.field,
        code=failure.code,
        retry_after_ms=failure.retry_after_ms,
        data=failure.data,
    )
