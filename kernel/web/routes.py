"""The routes that the table of operations declares: requests read, bounded and answered, failures worded for HTTP.

Who may ask is settled before a request comes here (`kernel.gateway.transport.access`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Container
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio
from starlette import routing
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kernel.gateway.protocol.failures import as_failure, message_of
from kernel.json_types import JsonObject
from kernel.ports import Dispatcher
from kernel.web.content import Content
from proto.errors import InvalidParams, Kind, LinckiaError, Unavailable
from proto.http import Answer, Bound, HttpError
from proto.operation import Errors, Operation, Params, Route, operation_of
from proto.ops import Table
from proto.validation import validate

R = TypeVar("R")

_STATUS = {
    Kind.INVALID_PARAMS: 400,
    # What was sent is at fault, and another try would fail as well.
    Kind.OPERATION: 400,
    Kind.FORBIDDEN: 403,
    Kind.UNKNOWN_OPERATION: 404,
    Kind.QUARANTINED: 422,
    Kind.OVERLOADED: 429,
    Kind.UNAVAILABLE: 503,
    Kind.TIMEOUT: 504,
}

_OPENAI_TYPES = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
"""The official clients raise by the status, retry 429 and 5xx by `Retry-After`, and show `error.message`."""


class ClientGone(Exception):
    """The client has closed its connection: no answer can reach it."""


def routes(
    dispatcher: Dispatcher, table: Table, max_body_bytes: int, *, unserved: Container[str] = ()
) -> list[routing.BaseRoute]:
    """All routes of the table, and `/ping`; those of `unserved` services answer that they are switched off."""
    listed: list[_Served] = [_Endpoint(dispatcher, bound, max_body_bytes, unserved) for bound in table.endpoints]
    found: list[routing.BaseRoute] = [routing.Route("/ping", _ping, methods=["GET"])]
    for op in table.values():
        if op.http is not None and op.http.file:
            content = Content(dispatcher, op, partial(failed, op.http))
            found.append(routing.Route(op.http.path, content.answer, methods=[op.http.method]))
        elif op.http is not None:
            listed.append(_Operation(dispatcher, op, op.http, max_body_bytes, unserved))
    found += [routing.Route(one.route.path, one.serve, methods=[one.route.method]) for one in listed]
    return found


async def _ping(request: Request) -> Response:
    return _json("pong")


class _Served:
    """One route; the subclasses say how it is answered."""

    def __init__(self, route: Route, service: str, fields: type[Params[Any]], max_body_bytes: int, off: bool) -> None:
        self.route = route
        self._service = service
        self._fields = frozenset(field.encode_name for field in msgspec.structs.fields(fields))
        self._max_body_bytes = max_body_bytes
        self._off = off

    async def serve(self, request: Request) -> Response:
        try:
            if self._off:
                raise Unavailable(f"{self._service} is switched off: {self._service}.enabled is false")
            arguments = await self._arguments(request)
            strict = request.method == "POST"
            if self.route.detached:
                answer = await self.answer(arguments, strict=strict)
            else:
                answer = await _unless_gone(request, lambda: self.answer(arguments, strict=strict))
        except (ClientGone, ClientDisconnect):
            # It reaches no client; the status is the one that other servers log then.
            return Response(status_code=499)
        except Exception as error:  # the edge of the kernel: a defect is this request's answer, logged
            return failed(self.route, error)
        if answer is None and self.route.missing:
            return failed(self.route, HttpError(404, self.route.missing))
        return _json(answer.body, answer.status) if isinstance(answer, Answer) else _json(answer)

    async def answer(self, arguments: JsonObject, *, strict: bool) -> object:
        """Raises LinckiaError."""
        raise NotImplementedError

    async def _arguments(self, request: Request) -> JsonObject:
        if request.method != "POST":
            given = {**request.query_params, **request.path_params}
            return {name: value for name, value in given.items() if name in self._fields}
        body = await _body(request, self._max_body_bytes)
        if self.route.body:
            return {self.route.body: body}
        try:
            decoded: JsonObject = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidParams(f"the body is not a JSON object: {error}") from None
        return decoded


class _Operation(_Served):
    def __init__(
        self,
        dispatcher: Dispatcher,
        op: Operation[object],
        route: Route,
        max_body_bytes: int,
        unserved: Container[str],
    ) -> None:
        super().__init__(route, op.service, op.params, max_body_bytes, op.service in unserved)
        self._dispatcher = dispatcher
        self._op = op

    async def answer(self, arguments: JsonObject, *, strict: bool) -> object:
        params = self._op.parse(arguments, strict=strict)
        return await self._dispatcher.call(self._op, params, written=True)


class _Endpoint(_Served):
    def __init__(self, dispatcher: Dispatcher, bound: Bound, max_body_bytes: int, unserved: Container[str]) -> None:
        super().__init__(bound.route, bound.service, bound.request, max_body_bytes, bound.service in unserved)
        self._call = _Call(dispatcher)
        self._bound = bound

    async def answer(self, arguments: JsonObject, *, strict: bool) -> object:
        request = validate(self._bound.request, arguments, strict=strict)
        request.check()
        return await request.answer(self._call)


class _Call:
    """`proto.http.Call` in a client's name."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def __call__(self, params: Params[R], /) -> R:
        op = operation_of(params)
        result: R = msgspec.convert(await self._dispatcher.call(op, params), op.result)
        return result

    async def json(self, params: Params[Any], /) -> msgspec.Raw:
        answer = await self._dispatcher.call(operation_of(params), params, written=True)
        return answer if isinstance(answer, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(answer))


async def _body(request: Request, limit: int) -> bytes:
    too_long = HttpError(413, f"the body is longer than {limit} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_long
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_long
    return bytes(body)


async def _unless_gone(request: Request, answer: Callable[[], Awaitable[object]]) -> object:
    """What `answer` returns or raises; ClientGone where the client left first, which cancels it."""
    outcome: object = ClientGone()
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            outcome = await answer()
        except Exception as error:  # raised again below: the nursery would wrap it in a group
            outcome = error
        nursery.cancel_scope.cancel()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def failed(route: Route, error: Exception) -> Response:
    """A failure in the words of the route."""
    failure = as_failure(error, route.path)
    status = error.status if isinstance(error, HttpError) else _STATUS.get(failure.kind, 500)
    if isinstance(error, LinckiaError) and not isinstance(error, HttpError):
        status = route.statuses.get(failure.kind, status)
    message = message_of(failure)
    if route.errors is Errors.PLAIN:
        response = _json({"error": message}, status)
    else:
        code = (error.error_code if isinstance(error, HttpError) else None) or failure.kind.value
        sort = _OPENAI_TYPES.get(status, "server_error")
        response = _json({"error": {"message": message, "type": sort, "param": failure.field, "code": code}}, status)
    if failure.retry_after_ms is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(failure.retry_after_ms / 1000)))
        response.headers["Retry-After-Ms"] = str(failure.retry_after_ms)
    return response


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
