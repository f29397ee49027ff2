"""Typed failures, the same in every process.

A failure crosses the link as a `Failure` (plain data) and is a `LinckiaError` in Python. It says what went wrong, which
argument was at fault, if any, and whether the work may have been done, which decides whether a caller may retry.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from proto.texts import shortened


class Kind(enum.StrEnum):
    """Kind of failure; each has its own exception below."""

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
    """Whether the work of a failed call may have been done."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


MESSAGE_CHARS = 16 * 1024
"""Maximum length of a failure's message; `LinckiaError` truncates longer ones."""

DATA_ENTRIES = 32
DATA_CHARS = 512
"""Maximum length of keys and values in a failure's `data`."""

_DataText = Annotated[str, Meta(max_length=DATA_CHARS)]


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A failure as data.

    `message` does not say whether the work was done, unless the kind is OPERATION: `executed` does, and is corrected
    on the way. `code` is the JSON-RPC code for an operation that declares its own (`Operation.codes`). `retry_after_ms`
    is set if waiting can help. `data` has details for programs.
    """

    kind: Kind
    message: Annotated[str, Meta(max_length=MESSAGE_CHARS)]
    executed: Executed = Executed.NO
    field: _DataText | None = None
    code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    retry_after_ms: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    data: Annotated[dict[_DataText, _DataText], Meta(max_length=DATA_ENTRIES)] = {}


class LinckiaError(Exception):
    """Base of all failures that may reach a caller."""

    _by_kind: ClassVar[dict[Kind, type[LinckiaError]]] = {}
    kind: Kind
    executed: Executed

    def __init_subclass__(cls, kind: Kind | None = None, executed: Executed = Executed.NO) -> None:
        if kind is not None:
            cls.kind, cls.executed = kind, executed
            cls._by_kind[kind] = cls

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
            kind=self.kind, message=shortened(message, MESSAGE_CHARS), executed=executed or self.executed,
            field=None if field is None else shortened(field, DATA_CHARS), code=code, retry_after_ms=retry_after_ms,
            data={shortened(key, DATA_CHARS): shortened(value, DATA_CHARS) for key, value in (data or {}).items()},
        )  # fmt: skip


class InvalidParams(LinckiaError, kind=Kind.INVALID_PARAMS):
    """An argument is missing, unknown, of the wrong type or out of range. Nothing was done."""


class UnknownOperation(LinckiaError, kind=Kind.UNKNOWN_OPERATION):
    """No operation of that name exists for this caller. Nothing was done."""


class Forbidden(LinckiaError, kind=Kind.FORBIDDEN):
    """The caller may not call the operation. Nothing was done."""


class Unavailable(LinckiaError, kind=Kind.UNAVAILABLE):
    """The request was not delivered: the service is down, starting, or stopped by a person."""


class Overloaded(LinckiaError, kind=Kind.OVERLOADED):
    """The service's queue is full. Nothing was done."""


class Timeout(LinckiaError, kind=Kind.TIMEOUT, executed=Executed.MAYBE):
    """The deadline passed. `executed` says whether the request had been delivered."""


class Cancelled(LinckiaError, kind=Kind.CANCELLED, executed=Executed.MAYBE):
    """The caller withdrew the request."""


class MaybeExecuted(LinckiaError, kind=Kind.MAYBE_EXECUTED, executed=Executed.MAYBE):
    """The service died while handling this request, and the operation cannot safely be repeated without asking."""


class Quarantined(LinckiaError, kind=Kind.QUARANTINED, executed=Executed.MAYBE):
    """This request was in flight when several generations died, so it is refused rather than replayed."""


class OperationError(LinckiaError, kind=Kind.OPERATION):
    """The operation's own failure, such as a missing file or a path that leads nowhere. Nothing was changed."""


class Internal(LinckiaError, kind=Kind.INTERNAL, executed=Executed.MAYBE):
    """A defect in Linckia. The message is for the caller; the traceback is in the service's log."""


def from_failure(failure: Failure) -> LinckiaError:
    """Return the exception for a failure that arrived as data."""
    error = LinckiaError._by_kind[failure.kind](failure.message)
    error.failure = failure
    return error
