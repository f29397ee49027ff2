"""Conversations over HTTP, for programs that know no MCP: turns in, searches and the forest out.

The paths, the words of the errors and their codes are those that capture tools and scripts know: `POST /v1/ingest` and
`/v1/ingest/batch`, `GET /v1/search`, `/ping`, `/dag/stats`, `/dag/node/{hash}`, `/dag/history` and
`/dag/history/{hash}`. Who may ask is settled before a request comes here.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kernel.gateway.protocol.failures import as_failure, message_of
from kernel.json_types import JsonObject
from kernel.ports import Dispatcher
from proto.errors import Failure, Kind, LinckiaError
from proto.operation import Params, operation_of
from proto.ops.transcripts import (
    NodeView,
    TranscriptHistories,
    TranscriptHistory,
    TranscriptNode,
    TranscriptsSearch,
    TranscriptStats,
)
from proto.ops.transcripts_intake import IngestResult, Problem, TranscriptIngest

R = TypeVar("R")

_STATUS = {
    Kind.INVALID_PARAMS: 400,
    Kind.OPERATION: 500,
    Kind.FORBIDDEN: 403,
    Kind.UNKNOWN_OPERATION: 503,
    Kind.OVERLOADED: 503,
    Kind.UNAVAILABLE: 503,
    Kind.TIMEOUT: 504,
    Kind.MAYBE_EXECUTED: 503,
}
"""All that may pass is 503: the same turn may be sent again, and is kept once."""

DEFAULT_HISTORIES = 100
MAX_HISTORIES = 1000

_OFF = "transcripts are switched off: transcripts.enabled is false"

Answer = Callable[[Request], Awaitable[Response]]


def routes(dispatcher: Dispatcher, max_body_bytes: int, *, enabled: bool = True) -> list[BaseRoute]:
    """The routes; not `enabled`, all but `/ping` answer that they are switched off."""
    answers = Transcripts(dispatcher, max_body_bytes)
    listed: list[tuple[str, Answer, str]] = [
        ("/v1/ingest", answers.ingest, "POST"),
        ("/v1/ingest/batch", answers.ingest_batch, "POST"),
        ("/v1/search", answers.search, "GET"),
        ("/dag/stats", answers.stats, "GET"),
        ("/dag/node/{hash}", answers.node, "GET"),
        ("/dag/history", answers.histories, "GET"),
        ("/dag/history/{hash}", answers.history, "GET"),
    ]
    return [
        Route("/ping", _ping, methods=["GET"]),
        *(Route(path, _guarded(answer if enabled else _off), methods=[method]) for path, answer, method in listed),
    ]


class _History(msgspec.Struct):
    """A conversation, its messages left as they were written."""

    messages: Raw
    head_hash: str
    depth: int


class _Histories(msgspec.Struct):
    histories: list[_History]
    total: int


class Transcripts:
    """The endpoints, over the operations of `transcripts`."""

    def __init__(self, dispatcher: Dispatcher, max_body_bytes: int) -> None:
        self._dispatcher = dispatcher
        self._max_body_bytes = max_body_bytes

    async def ingest(self, request: Request) -> Response:
        """202 once the turn is on disk."""
        return await self._ingest(request, batch=False)

    async def ingest_batch(self, request: Request) -> Response:
        """202 once the turns are on disk, those that could be read at all."""
        return await self._ingest(request, batch=True)

    async def _ingest(self, request: Request, *, batch: bool) -> Response:
        body = await _body(request, self._max_body_bytes)
        if body is None:
            return _error(413, f"the body is longer than {self._max_body_bytes} bytes")
        kept = await self._call(TranscriptIngest(body=body, batch=batch), IngestResult)
        if kept.problem is not Problem.NONE:
            return _error(400 if kept.problem is Problem.PAYLOAD else 422, kept.errors[0])
        if not batch:
            return _json({"status": "accepted"}, 202)
        answer: JsonObject = {"accepted": kept.accepted, "rejected": kept.rejected}
        return _json(answer | ({"errors": kept.errors} if kept.errors else {}), 202)

    async def search(self, request: Request) -> Response:
        query = request.query_params.get("query", "")
        if not query.strip():
            return _error(400, "query parameter is required")
        given = request.query_params.get("top_k", "")
        top_k = _positive(given) if given else 5
        if top_k is None:
            return _error(400, "top_k must be a positive integer")
        # Parsed as an MCP client's arguments are, so that a bound is told and not run into.
        operation = operation_of(TranscriptsSearch)
        params = operation.parse({"query": query, "top_k": min(top_k, 2**31)})
        return _json(await self._dispatcher.call(operation, params, written=True))

    async def stats(self, request: Request) -> Response:
        params = TranscriptStats()
        return _json(await self._dispatcher.call(operation_of(params), params))

    async def node(self, request: Request) -> Response:
        found = await self._call(TranscriptNode(hash=request.path_params["hash"]), NodeView)
        return _error(404, "node not found") if found is None else _json(found)

    async def history(self, request: Request) -> Response:
        params = TranscriptHistory(hash=request.path_params["hash"])
        found = await self._dispatcher.call(operation_of(params), params, written=True)
        return _error(404, "node not found") if found is None else _json(found)

    async def histories(self, request: Request) -> Response:
        """The newest conversations; the fields of the very newest stand at the top as well."""
        given = request.query_params.get("limit", "")
        limit = _positive(given) if given else DEFAULT_HISTORIES
        if limit is None:
            return _error(400, "limit must be a positive integer")
        params = TranscriptHistories(limit=min(limit, MAX_HISTORIES))
        answer = await self._dispatcher.call(operation_of(params), params, written=True)
        found = msgspec.json.decode(answer if isinstance(answer, Raw) else msgspec.json.encode(answer), type=_Histories)
        newest = found.histories[0] if found.histories else _History(Raw(b"[]"), "", 0)
        return _json(
            {
                "count": len(found.histories),
                "total": found.total,
                "histories": found.histories,
                "messages": newest.messages,
                "head_hash": newest.head_hash,
                "depth": newest.depth,
            }
        )

    async def _call(self, params: Params[Any], tp: type[R]) -> R:
        answer = await self._dispatcher.call(operation_of(params), params)
        return msgspec.convert(answer, tp | None)


async def _ping(request: Request) -> Response:
    return _json("pong")


async def _off(request: Request) -> Response:
    return _error(503, _OFF)


def _guarded(answer: Answer) -> Answer:
    """What `answer` raises, as a response."""

    async def serve(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            # Nobody reads this; the status is the one that other servers log then.
            return Response(status_code=499)
        except LinckiaError as error:
            return _failed(error.failure)
        except Exception as error:
            # The edge of the kernel: a defect in one request is that request's answer, and is logged.
            return _failed(as_failure(error, request.url.path))

    return serve


def _failed(failure: Failure) -> Response:
    response = _error(_STATUS.get(failure.kind, 500), message_of(failure))
    if failure.retry_after_ms is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(failure.retry_after_ms / 1000)))
    return response


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _positive(text: str) -> int | None:
    """The whole number above 0 that `text` is."""
    digits = text.removeprefix("+")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) > 0 else None


async def _body(request: Request, limit: int) -> bytes | None:
    """The whole body; None where it is longer than `limit`."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        return None
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)
