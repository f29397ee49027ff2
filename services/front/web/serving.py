"""Serves all HTTP requests of a front.

The paths are MCP's (`/mcp`, `/mcp/{surface}`, and `/v1/mcp`, which is the stateless surface of transcripts), `/health`,
the routes that operations declare, the metrics and the operator's page.  `services.front.transport.access` checks
access.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proto.errors import LinckiaError
from proto.operation import ALL, SURFACES, operation_of
from proto.ops import Table
from proto.ops.fetch import IssuerKeys, IssuerKeySet
from proto.ops.kernel import KernelReady
from proto.wire.front import OWN, FrontSettings, Http
from services.front.gateway import Gateway
from services.front.protocol.calls import LinkDispatcher
from services.front.transport import http_server
from services.front.transport.access import Guard, Tokens
from services.front.transport.endpoint import Endpoint
from services.front.transport.fair_limits import FairLimits
from services.front.transport.http_sessions import Peers, Sessions
from services.front.transport.oauth import ResourceServer
from services.front.transport.session_ids import SessionIds
from services.front.web import metrics, routes
from services.front.web.events import EventStreams
from services.front.web.live import Live
from services.front.web.page import Page

TRANSCRIPTS = "transcripts"


async def serve(
    gateway: Gateway,
    dispatcher: LinkDispatcher,
    declared: Table,
    settings: FrontSettings,
    listening: socket.socket,
    ending: trio.Event,
    relay: http_server.Relay,
    *,
    front: str,
) -> None:
    """Serve until `ending` is set and the requests in flight are answered.

    Args:
        declared: all operations, including those of services that are switched off.
        front: the name of this process.
    """
    http = settings.http
    assert http is not None

    async def ready() -> bool:
        try:
            return await dispatcher.call(operation_of(KernelReady), KernelReady(), origin=OWN) is True
        except LinckiaError:
            return False

    async def read_keys() -> list[dict[str, Any]]:
        answer = await dispatcher.call(operation_of(IssuerKeys), IssuerKeys(), origin=OWN)
        return msgspec.convert(answer, IssuerKeySet).keys

    limits = FairLimits()
    declared_routes = routes.routes(
        dispatcher, declared, http.max_body_bytes, unserved=settings.unserved, limits=limits, version=settings.version
    )
    tokens = Tokens()
    live, streams = Live(dispatcher), EventStreams(dispatcher)

    async def shutdown() -> None:
        await ending.wait()
        live.close()
        streams.close()

    page = Page(gateway, dispatcher, live, limits, http.max_body_bytes)
    async with trio.open_nursery() as nursery:
        await nursery.start(tokens.follow, dispatcher, front)
        nursery.start_soon(live.run)
        await serve_http(
            gateway,
            http,
            listening,
            routes=[*declared_routes, *metrics.routes(dispatcher), *page.routes(), *streams.routes()],
            ready=ready,
            session_key=bytes.fromhex(settings.session_key),
            has_peers=settings.workers > 1,
            tokens=tokens,
            issuer=None if http.oauth is None else ResourceServer(http.oauth, read_keys),
            limits=limits,
            shutdown=shutdown,
            relay=relay,
        )
        nursery.cancel_scope.cancel()


async def serve_http(
    gateway: Gateway,
    settings: Http,
    listening: socket.socket,
    *,
    routes: Sequence[BaseRoute] = (),
    ready: Callable[[], Awaitable[bool]],
    session_key: bytes,
    has_peers: bool = False,
    tokens: Tokens | None = None,
    issuer: ResourceServer | None = None,
    limits: FairLimits | None = None,
    shutdown: Callable[[], Awaitable[None]] = trio.sleep_forever,
    relay: http_server.Relay | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on a listening socket until `shutdown` returns, then close it.

    Requests in flight then have some seconds to finish; streams that only listen are ended at once.

    Args:
        ready: whether `/health` and `/readyz` answer 200.
        session_key: signs the ids of sessions; the same in all fronts.
        has_peers: whether there are other fronts.
        limits: fair limits, shared with the `routes`.
        relay: receives idle connections from the previous front and passes them to the next.
    """
    peers = Peers(gateway.dispatcher, gateway.events, has_peers=has_peers)
    sessions = Sessions(SessionIds(session_key), peers, gateway.scratchpads)
    limit, limits = settings.max_body_bytes, limits or FairLimits()
    endpoints = {f"/mcp/{name}": Endpoint(await gateway.server(name), limit, limits, sessions) for name in SURFACES}
    endpoints["/v1/mcp"] = Endpoint(await gateway.server(TRANSCRIPTS), limit, limits)
    endpoints["/mcp"] = endpoints[f"/mcp/{ALL}"]

    async def mounted(name: str) -> Endpoint | None:
        await gateway.mounted.complete()
        if gateway.mounted.find(name) is None:
            return None
        path = f"/mcp/{name}"
        if path not in endpoints:
            endpoints[path] = Endpoint(await gateway.server(name), limit, limits, sessions)
        return endpoints[path]

    def surfaces() -> Iterator[str]:
        yield from SURFACES
        yield from gateway.mounted.catalogue.mounts

    guard = Guard(_app(endpoints, mounted, surfaces, routes, ready), settings, tokens, issuer, endpoints)

    async with trio.open_nursery() as nursery:
        await nursery.start(sessions.run)
        gc.freeze()

        async def until_shutdown() -> None:
            await shutdown()
            for endpoint in set(endpoints.values()):
                endpoint.close_streams()

        await http_server.serve(
            guard, settings, listening, shutdown=until_shutdown, relay=relay, task_status=task_status
        )
        nursery.cancel_scope.cancel()


def _app(
    endpoints: Mapping[str, ASGIApp],
    mounted: Callable[[str], Awaitable[ASGIApp | None]],
    surfaces: Callable[[], Iterable[str]],
    routes: Sequence[BaseRoute],
    ready: Callable[[], Awaitable[bool]],
) -> ASGIApp:
    """Return the application: MCP's endpoints by their paths, those of mounted servers by name, and the routes."""

    async def health(request: Request) -> Response:
        up = await ready()
        return JSONResponse({"status": "ready" if up else "starting"}, status_code=200 if up else 503)

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    own = {"/health": health, "/readyz": health, "/livez": alive}
    every = [*(Route(path, endpoint=answer, methods=["GET"]) for path, answer in own.items()), *routes]
    others = Starlette(routes=every)
    # Routes without path parameters are found by an exact look-up, which is faster.
    exact = {
        (method, route.path): route.app
        for route in reversed(every)
        if isinstance(route, Route) and "{" not in route.path
        for method in route.methods or ()
    }

    async def unknown(scope: Scope, receive: Receive, send: Send) -> None:
        message = f"unknown surface; the surfaces are: {', '.join(surfaces())}"
        await JSONResponse({"error": message}, status_code=404)(scope, receive, send)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = exact.get((scope["method"], path))
        if found is None and path.startswith("/mcp/"):
            path = path.rstrip("/")
            found = endpoints.get(path) or await mounted(path.removeprefix("/mcp/")) or unknown
        await (found or others)(scope, receive, send)

    return app
