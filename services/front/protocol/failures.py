"""Converts failures to the form that clients get: what happened, whether the work was done, and when to retry.

Most operations report a failure as a tool result with `isError`, so that the model can read it and react; the failure
as data is in `_meta["linckia/failure"]`.  Operations that declare their own codes report JSON-RPC errors
(`services.front.protocol.calls.as_error`).
"""

from __future__ import annotations

import logging

from proto.errors import Executed, Failure, Internal, Kind, LinckiaError
from proto.json_types import JsonObject
from proto.mcp import FAILURE, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY
from proto.operation import Operation

_log = logging.getLogger("linckia.gateway")


class ProtocolError(Exception):
    """A JSON-RPC error that answers a request; the SDK's handlers raise it as the SDK's own (`sdk.as_mcp_error`)."""

    def __init__(self, code: int, message: str, data: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


_CODES = {Kind.INVALID_PARAMS: INVALID_PARAMS, Kind.UNKNOWN_OPERATION: METHOD_NOT_FOUND}


def as_failure(error: Exception, operation: str) -> Failure:
    """Return the failure for `error`; anything but a LinckiaError is a defect, which is logged here."""
    if isinstance(error, LinckiaError):
        return error.failure
    _log.error("%s: the call ended in an unexpected error", operation, exc_info=error)
    return Internal(f"{operation} failed because of a defect in the kernel; its log has the details").failure


_DONE = {
    Executed.NO: "Nothing was done.",
    Executed.MAYBE: "The work may have been done: check before you repeat it.",
    Executed.YES: "The work was done.",
}

_EXPLAINED = frozenset({Kind.UNAVAILABLE, Kind.OVERLOADED, Kind.TIMEOUT, Kind.MAYBE_EXECUTED, Kind.CANCELLED})
_EXPLAINED_IF_DONE = frozenset({Kind.INTERNAL, Kind.QUARANTINED})
"""Kinds whose message says whether the work was done, if it may have been done; `_EXPLAINED` kinds always say so.
Plain refusals need no explanation."""


def message_of(failure: Failure) -> str:
    """Return the message for the caller.

    Only this function says whether the work was done: an error's own text must not, since `executed` may be corrected
    on its way (`Operation.failure`).
    """
    kind, executed, wait_ms = failure.kind, failure.executed, failure.retry_after_ms
    if kind not in _EXPLAINED and not (kind in _EXPLAINED_IF_DONE and executed is not Executed.NO):
        return failure.message
    sentences = [f"{failure.message.rstrip('. ')}.", _DONE[executed]]
    if wait_ms is not None:
        sentences.append(f"Try again in {wait_ms} ms." if wait_ms < 1000 else f"Try again in {wait_ms / 1000:.3g} s.")
    elif executed is Executed.NO:
        sentences.append("It is safe to try again.")
    return " ".join(sentences)


def code_of(failure: Failure) -> int | None:
    """Return the operation's own code, otherwise the JSON-RPC code for the kind, if there is one."""
    return _CODES.get(failure.kind) if failure.code is None else failure.code


def as_data(failure: Failure) -> JsonObject:
    """Return the failure as data, for programs."""
    data: JsonObject = {"kind": failure.kind.value, "executed": failure.executed.value}
    optional = {
        "field": failure.field,
        "retryAfterMs": failure.retry_after_ms,
        "code": code_of(failure),
        "details": dict(failure.data) or None,
    }
    return data | {name: value for name, value in optional.items() if value is not None}


def is_protocol_error(operation: Operation[object], failure: Failure, *, modern: bool) -> bool:
    """Whether the failure is reported as a JSON-RPC error and not as a tool result."""
    return bool(operation.codes) or (modern and failure.code == MISSING_CAPABILITY)


def as_tool_result(failure: Failure) -> JsonObject:
    """Return the failure as the result of `tools/call`, in wire form."""
    return {
        "content": [{"type": "text", "text": message_of(failure)}],
        "isError": True,
        "_meta": {FAILURE: as_data(failure)},
    }
