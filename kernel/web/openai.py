"""Requests and failures as OpenAI's API has them, so that its clients understand what went wrong and what to do.

The official clients raise by the status, retry 429 and 5xx by `Retry-After`, and show `error.message`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kernel.gateway.protocol.failures import as_failure, message_of
from proto.errors import Failure, InvalidParams, Kind, LinckiaError
from proto.operation import Params, validate

P = TypeVar("P", bound=Params[Any])

_STATUS = {
    Kind.INVALID_PARAMS: (400, "invalid_request_error"),
    # The text at fault, named by its field; another try would fail as well.
    Kind.OPERATION: (400, "invalid_request_error"),
    Kind.FORBIDDEN: (403, "permission_error"),
    Kind.UNKNOWN_OPERATION: (404, "invalid_request_error"),
    Kind.QUARANTINED: (422, "invalid_request_error"),
    Kind.OVERLOADED: (429, "rate_limit_error"),
    Kind.UNAVAILABLE: (503, "service_unavailable_error"),
    Kind.TIMEOUT: (504, "timeout_error"),
}
_OTHERWISE = (500, "server_error")


class ModelNotFound(LinckiaError):
    """The request names a model that is not served."""

    kind = Kind.INVALID_PARAMS


class BodyTooLarge(Exception):
    """The body is longer than is admitted."""


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def endpoint(
    tp: type[P], answer: Callable[[P], Awaitable[object]], max_body_bytes: int
) -> Callable[[Request], Awaitable[Response]]:
    """`answer` as a Starlette endpoint: what it returns as JSON, what it raises as OpenAI has it.

    A request without a body has the parameters' defaults.  A client that goes away withdraws its call.
    """

    async def serve(request: Request) -> Response:
        try:
            params = validate(tp, {}) if request.method == "GET" else await _read(request, tp, max_body_bytes)
            body = await _unless_gone(request, lambda: answer(params))
            return Response(msgspec.json.encode(body), media_type="application/json")
        except BodyTooLarge:
            return _error(413, f"the body is longer than {max_body_bytes} bytes", "invalid_request_error")
        except (ClientGone, ClientDisconnect):
            # Nobody reads this; the status is the one that other servers log then.
            return Response(status_code=499)
        except ModelNotFound as error:
            return failure_response(error.failure, code="model_not_found")
        except Exception as error:
            # The edge of the kernel: a defect in one request is that request's answer, and is logged.
            return failure_response(as_failure(error, request.url.path))

    return serve


async def _read(request: Request, tp: type[P], max_body_bytes: int) -> P:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_body_bytes:
        raise BodyTooLarge
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_body_bytes:
            raise BodyTooLarge
    try:
        given = msgspec.json.decode(bytes(body), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"the body is not a JSON object: {error}") from None
    return validate(tp, given)


async def _unless_gone(request: Request, answer: Callable[[], Awaitable[object]]) -> object:
    outcome: object = ClientGone()
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            outcome = await answer()
        except Exception as error:
            # Raised again below: through the nursery it would come out as a group.
            outcome = error
        nursery.cancel_scope.cancel()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def failure_response(failure: Failure, code: str | None = None) -> Response:
    """A failure as an HTTP response; `code` names it for programs, by default its kind."""
    status, sort = (
        (404, "invalid_request_error") if code == "model_not_found" else _STATUS.get(failure.kind, _OTHERWISE)
    )
    response = _error(status, message_of(failure), sort, failure.field, code or failure.kind.value)
    if failure.retry_after_ms is not None and status in (429, 503):
        response.headers["Retry-After"] = str(max(1, math.ceil(failure.retry_after_ms / 1000)))
        response.headers["Retry-After-Ms"] = str(failure.retry_after_ms)
    return response


def _error(status: int, message: str, sort: str, param: str | None = None, code: str | None = None) -> Response:
    error = {"message": message, "type": sort, "param": param, "code": code}
    return Response(msgspec.json.encode({"error": error}), status_code=status, media_type="application/json")
