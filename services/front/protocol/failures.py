"""Failures as clients see them: what happened, whether the work may have been done, and when to try again.

Most operations answer a failure as a tool result with `isError`, so that the model can read it and do better; the
failure as data is under `_meta["linckia/failure"]`.  Operations that declare codes of their own answer JSON-RPC
errors (`services.front.protocol.server.as_error`).
"""

from __future__ import annotations

import logging

from proto.errors import Executed, Failure, Internal, Kind, LinckiaError
from proto.json_types import JsonObject
from proto.mcp import MISSING_CAPABILITY
from proto.operation import Operation
from services.front.protocol.messages import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND

FAILURE_META = "linckia/failure"
"""Key in a result's `_meta` under which the failure is found as data."""

_log = logging.getLogger("linckia.gateway")

_CODES = {Kind.INVALID_PARAMS: INVALID_PARAMS, Kind.UNKNOWN_OPERATION: METHOD_NOT_FOUND}


def as_failure(error: Exception, operation: str) -> Failure:
    """The failure that `error` is; anything that is not one of ours is a defect, logged here, and says so."""
    if isinstance(error, LinckiaError):
        return error.failure
    _log.error("%s: the call ended in an unexpected error", operation, exc_info=error)
    return Internal(f"{operation} failed by a defect in the kernel; its log has the details").failure


def message_of(failure: Failure) -> str:
    """What to tell the caller."""
    sentences = [failure.message.rstrip(". ") + "." if _needs_more(failure) else failure.message]
    if _needs_more(failure):
        sentences.append(_DONE[failure.executed])
        if failure.retry_after_ms is not None:
            sentences.append(f"Try again in {_duration(failure.retry_after_ms)}.")
        elif failure.executed is Executed.NO:
            sentences.append("It is safe to try again.")
    return " ".join(sentences)


_DONE = {
    Executed.NO: "Nothing was done.",
    Executed.MAYBE: "The work may have been done: look before you repeat it.",
    Executed.YES: "The work was done.",
}

_EXPLAINED = frozenset({Kind.UNAVAILABLE, Kind.OVERLOADED, Kind.TIMEOUT, Kind.MAYBE_EXECUTED, Kind.CANCELLED})


def _needs_more(failure: Failure) -> bool:
    """Whether the reader must be told what became of the work; a plain refusal speaks for itself."""
    return failure.kind in _EXPLAINED or (
        failure.kind in (Kind.INTERNAL, Kind.QUARANTINED) and failure.executed is not Executed.NO
    )


def _duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.3g} s"


def as_data(failure: Failure) -> JsonObject:
    """The failure for programs."""
    data: JsonObject = {"kind": failure.kind.value, "executed": failure.executed.value}
    if failure.field is not None:
        data["field"] = failure.field
    if failure.retry_after_ms is not None:
        data["retryAfterMs"] = failure.retry_after_ms
    if (code := failure.code if failure.code is not None else _CODES.get(failure.kind)) is not None:
        data["code"] = code
    if failure.data:
        data["details"] = dict(failure.data)
    return data


def is_protocol_error(operation: Operation[object], failure: Failure, *, modern: bool) -> bool:
    """Whether the failure is answered as a JSON-RPC error and not as a tool result."""
    return bool(operation.codes) or (modern and failure.code == MISSING_CAPABILITY)


def code_of(failure: Failure) -> int:
    """The JSON-RPC code: the operation's own, else the one that JSON-RPC has for the kind."""
    if failure.code is not None:
        return failure.code
    return _CODES.get(failure.kind, INTERNAL_ERROR)


def as_tool_result(failure: Failure) -> JsonObject:
    """The failure as the result of `tools/call`, in wire form."""
    return {
        "content": [{"type": "text", "text": message_of(failure)}],
        "isError": True,
        "_meta": {FAILURE_META: as_data(failure)},
    }
