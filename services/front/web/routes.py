"""The HTTP routes that operations declare: reads and bounds requests, and converts failures to HTTP responses.

Access is checked before a request gets here (`services.front.transport.access`).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio
from msgspec import structs
from starlette import routing
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proto import keys
from proto.errors import InvalidParams, Kind, Unavailable
from proto.http import Answer, Endpoint, HttpError
from proto.json_types import JsonObject
from proto.operation import Operation, Params, Route, operation_of
from proto.ops import Table
from proto.origin import Origin
from proto.validation import exceeded, validate
from services.front.protocol.failures import as_failure, message_of
from services.front.transport.access import ORIGIN
from services.front.transport.exchange import Body, Refused, client_of
from services.front.transport.fair_limits import FairLimits
from services.front.web import openapi
from services.front.web.content import ContentEndpoint
from services.runtime.dispatch import Dispatcher

R = TypeVar("R")

_STATUS = {
    Kind.INVALID_PARAMS: 400,
    # The request is at fault, so a retry would fail as well.
    Kind.OPERATION: 400,
    Kind.FORBIDDEN: 403,
    Kind.UNKNOWN_OPERATION: 404,
    Kind.QUARANTINED: 422,
    Kind.OVERLOADED: 429,
    Kind.UNAVAILABLE: 503,
    Kind.TIMEOUT: 504,
}

_OPENAI_TYPES = {
    **dict.fromkeys((400, 404, 413, 422), "invalid_request_error"),
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
"""Error types by status.  The official clients choose the exception by the status, retry 429 and 5xx after
`Retry-After`, and show `error.message`."""


class ClientGone(Exception):
    """The client has closed its connection, so no answer can reach it."""


def routes(
    dispatcher: Dispatcher,
    table: Table,
    max_body_bytes: int,
    *,
    unserved: Container[str] = (),
    limits: FairLimits | None = None,
    version: str = "",
) -> list[routing.BaseRoute]:
    """Return all routes of the table, their description, and `/ping`.

    Those of `unserved` services answer that they are switched off.

    Args:
        limits: shared by everything that reads request bodies.
    """
    limits = limits or FairLimits()
    found = [routing.Route("/ping", _ping, methods=["GET"])]

    def add(route: Route, service: str, params: type[Params[object]], answer: _Answering) -> None:
        answer = partial(_switched_off, service) if service in unserved else answer
        served = _Served(route, params, answer, max_body_bytes, limits)
        # An ASGI application: Starlette would wrap a function twice, for exceptions that it never raises.
        found.append(routing.Route(route.path, served, methods=[route.method]))

    for endpoint in table.endpoints:
        add(endpoint.route, endpoint.service, endpoint, partial(_by_endpoint, endpoint, dispatcher))
    for op in table.values():
        if op.http is not None and op.http.file:
            content = ContentEndpoint(dispatcher, op, partial(failed, op.http))
            found.append(routing.Route(op.http.path, content.answer, methods=[op.http.method]))
        elif op.http is not None:
            add(op.http, op.service, op.params, partial(_by_operation, op, dispatcher))
    found.append(_openapi(table, version))
    return list(found)


def _openapi(table: Table, version: str) -> routing.Route:
    """Return the route of the document that describes the others."""

    @functools.cache
    def encoded() -> bytes:
        return msgspec.json.encode(openapi.document(table, version))

    async def answer(request: Request) -> Response:
        # It has every schema, so it is made when it is asked for, in a thread.
        return Response(await trio.to_thread.run_sync(encoded), media_type="application/json")

    return routing.Route(openapi.PATH, answer, methods=["GET"])


async def _ping(request: Request) -> Response:
    return json_response("pong")


async def _switched_off(service: str, origin: Origin, arguments: JsonObject, strict: bool) -> object:
    raise Unavailable(f"{service} is switched off: {service}.enabled is false")


async def _by_operation(
    op: Operation[object], dispatcher: Dispatcher, origin: Origin, arguments: JsonObject, strict: bool
) -> object:
    return await dispatcher.call(op, op.parse(arguments, strict=strict, reference=True), origin=origin, written=True)


async def _by_endpoint(
    tp: type[Endpoint], dispatcher: Dispatcher, origin: Origin, arguments: JsonObject, strict: bool
) -> object:
    request = validate(tp, arguments, strict=strict)
    request.check()
    return await request.answer(_Call(dispatcher, origin))


_Answering = Callable[[Origin, JsonObject, bool], Awaitable[object]]
"""Answers who calls with these arguments; the flag says whether numbers must be JSON numbers, not text."""


@dataclass
class _Served:
    """Serves the requests of one route."""

    route: Route
    params: type[Params[object]]
    answer: _Answering
    max_body_bytes: int
    limits: FairLimits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            arguments = await self._arguments(request)
            answering = partial(self.answer, request.scope[ORIGIN], arguments, request.method == "POST")
            answer = await (answering() if self.route.detached else _unless_gone(request, answering))
        except (ClientGone, ClientDisconnect):
            # No client gets this status; other servers log 499 in this case.
            return Response(status_code=499)
        except Exception as error:  # noqa: BLE001  # the edge: a defect is this request's answer, and is logged
            return failed(self.route, error)
        if answer is None and self.route.missing:
            return failed(self.route, HttpError(404, self.route.missing))
        return json_response(answer.body, answer.status) if isinstance(answer, Answer) else json_response(answer)

    async def _arguments(self, request: Request) -> JsonObject:
        if request.method != "POST":
            arguments = {**request.query_params, **request.path_params}
            known = {field.encode_name for field in msgspec.structs.fields(self.params)}
            return {name: value for name, value in arguments.items() if name in known}
        async with read_body(request, self.limits, self.max_body_bytes) as data:
            return {self.route.body: data} if self.route.body else json_object(data)


@contextlib.asynccontextmanager
async def read_body(request: Request, limits: FairLimits, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the body, which counts against its client's limits in the block. Raises HttpError."""
    body = Body(limits, client_of(request.scope), max_bytes)
    try:
        yield await body.read(request.receive, dict(request.scope["headers"]))
    except Refused as error:
        raise HttpError(error.status, str(error)) from None
    finally:
        # From here on the request waits for a service and must not count against the limits.
        body.done()


def json_object(data: bytes) -> JsonObject:
    """Return the JSON object in a body. Raises InvalidParams."""
    if (excess := exceeded(data)) is not None:
        raise InvalidParams(f"the body has {excess}")
    try:
        decoded: JsonObject = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"the body is not a JSON object: {error}") from None
    return decoded


@dataclass
class _Call:
    """Implements `proto.http.Call` on behalf of a client."""

    dispatcher: Dispatcher
    origin: Origin

    async def __call__(self, params: Params[R], /) -> R:
        op = operation_of(params)
        result: R = msgspec.convert(await self.dispatcher.call(op, params, origin=self._of(op)), op.result)
        return result

    async def json(self, params: Params[object], /) -> msgspec.Raw:
        op = operation_of(params)
        answer = await self.dispatcher.call(op, params, origin=self._of(op), written=True)
        return answer if isinstance(answer, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(answer))

    def _of(self, op: Operation[Any]) -> Origin:
        """Return the origin of one of the calls that a request makes, each of which has its own idempotency key."""
        key = self.origin.key
        return structs.replace(self.origin, key=keys.derived(keys.checked(key), op.stored_name)) if key else self.origin


async def _unless_gone(request: Request, answer: Callable[[], Awaitable[object]]) -> object:
    """Await `answer`; if the client disconnects first, cancel it and raise ClientGone."""
    outcome: object = ClientGone()
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            outcome = await answer()
        except Exception as error:  # noqa: BLE001  # raised again below: the nursery would wrap it in a group
            outcome = error
        nursery.cancel_scope.cancel()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def failed(route: Route, error: Exception) -> Response:
    """Return the failure as a response in the route's format."""
    failure = as_failure(error, route.path)
    if isinstance(error, HttpError):
        status, code = error.status, error.error_code
    elif failure.kind is Kind.OPERATION and failure.retry_after_ms is not None:
        # The request is not at fault: the disk is full, for instance.
        status, code = 503, None
    else:
        status, code = route.statuses.get(failure.kind, _STATUS.get(failure.kind, 500)), None
    message = message_of(failure)
    if not route.like_openai:
        response = json_response({"error": message}, status)
    else:
        described = {"message": message, "type": _OPENAI_TYPES.get(status, "server_error"), "param": failure.field}
        response = json_response({"error": {**described, "code": code or failure.kind.value}}, status)
    if failure.retry_after_ms is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(failure.retry_after_ms / 1000)))
        response.headers["Retry-After-Ms"] = str(failure.retry_after_ms)
    return response


def json_response(value: object, status: int = 200) -> Response:
    """Return a JSON response that must not be cached or sniffed as another type."""
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(value), status, headers, "application/json")
