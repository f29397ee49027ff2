"""`GET /v1/events`: what happened, as server-sent events, for programs that follow it.

Each event has its number as `id`, so that a client that reconnects continues where it ended, by the header
`Last-Event-ID` or `?after=N`. Without either, the stream begins with the next event. While nothing happens, a comment
keeps the connection alive; it also tells clients that left out events (`kinds`, `path`) how far they have read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
import trio
from starlette import routing
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from proto.errors import Kind, LinckiaError
from proto.operation import Route, operation_of
from proto.ops.events import MAX_LIMIT, STREAM, EventPage, EventsRead
from proto.origin import Origin
from proto.validation import unknown_parameter
from services.front.transport.access import ORIGIN
from services.front.web.routes import failed
from services.runtime.dispatch import Dispatcher

KEEP_ALIVE_S: Final = 25.0
"""Interval of comments; proxies close connections that are silent for a minute."""

RETRY_S: Final = 1.0
"""Delay before the service is asked again after a failure that passes."""

LAST_EVENT_ID: Final = "last-event-id"

_PASSING = (Kind.UNAVAILABLE, Kind.OVERLOADED, Kind.TIMEOUT)


class EventStreams:
    """The streams of a front's clients."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._closing = trio.Event()

    def routes(self) -> list[routing.BaseRoute]:
        """Return the route of the streams."""
        return [routing.Route(STREAM, self._answer, methods=["GET"])]

    def close(self) -> None:
        """End all streams; their clients connect again."""
        self._closing.set()

    async def _answer(self, request: Request) -> Response:
        try:
            params = _params_of(request)
            # Asked before the stream begins, so that a wrong cursor is an ordinary error.
            first = await self._read(msgspec.structs.replace(params, wait_s=0.0), request.scope[ORIGIN])
        except Exception as error:  # noqa: BLE001  # the edge: a defect is this request's answer, and is logged
            return failed(Route("GET", STREAM), error)
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff", "x-accel-buffering": "no"}
        events = self._events(params, first, request.scope[ORIGIN])
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    async def _read(self, params: EventsRead, origin: Origin) -> EventPage:
        return msgspec.convert(await self._dispatcher.call(operation_of(EventsRead), params, origin=origin), EventPage)

    async def _events(self, params: EventsRead, page: EventPage, origin: Origin) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n\n"
        after = page.next
        yield _written(page, params.after)
        while not self._closing.is_set():
            following = msgspec.structs.replace(params, after=after, since=None, wait_s=KEEP_ALIVE_S)
            found = await self._next(following, origin)
            if isinstance(found, EventPage):
                yield _written(found, after) or b": nothing happened\n\n"
                after = found.next
            elif found is not None:
                yield b"event: failure\ndata: %b\n\n" % msgspec.json.encode({"error": str(found)})
                return

    async def _next(self, params: EventsRead, origin: Origin) -> EventPage | LinckiaError | None:
        """Return what follows, a failure that lasts, or None if the streams end; waits while the service is away."""
        outcome: EventPage | LinckiaError | None = None
        async with trio.open_nursery() as nursery:

            async def closing() -> None:
                await self._closing.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(closing)
            while outcome is None:
                try:
                    outcome = await self._read(params, origin)
                except LinckiaError as error:
                    if error.kind in _PASSING:
                        await trio.sleep(max(RETRY_S, (error.failure.retry_after_ms or 0) / 1000))
                    else:
                        outcome = error
            nursery.cancel_scope.cancel()
        return outcome


def _params_of(request: Request) -> EventsRead:
    """Return the parameters in the query and the header. Raises InvalidParams."""
    query: dict[str, object] = {}
    for name, value in request.query_params.items():
        if name in ("after", "since", "path"):
            query[name] = value
        elif name == "kinds":
            query[name] = [each for each in value.split(",") if each]
        else:
            raise unknown_parameter(name[:100], ("after", "since", "kinds", "path"))
    if last := request.headers.get(LAST_EVENT_ID):
        # A client that reconnects repeats its first request.
        query.pop("since", None)
        query["after"] = last
    found = operation_of(EventsRead).parse({**query, "limit": MAX_LIMIT}, strict=False)
    assert isinstance(found, EventsRead)
    return found


def _written(page: EventPage, before: int | None) -> bytes:
    """Return a page as server-sent events; empty if nothing happened."""
    text = b"".join(
        b"id: %d\nevent: %b\ndata: %b\n\n" % (each.number, each.kind.encode(), msgspec.json.encode(each))
        for each in page.events
    )
    last = page.events[-1].number if page.events else before
    # An `id` without data is no event, but the client's next position.
    return text if page.next == last else text + b"id: %d\n\n" % page.next
