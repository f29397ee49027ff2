"""Streamable HTTP: `/mcp` and `/mcp/{surface}`, `/v1/mcp` (transcripts, stateless), `/health`, and routes of others.

Ordinary tool calls take the fast path; everything else of the transport, in both eras, is the SDK's session manager's.
Who may talk at all is settled in `services.front.transport.access`.
"""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proto.front import Http
from proto.operation import ALL, SURFACES
from services.front.gateway import Gateway
from services.front.transport import http_server
from services.front.transport.access import Guard
from services.front.transport.endpoint import Endpoint
from services.front.transport.oauth import ResourceServer
from services.front.transport.tokens import Tokens
from services.front.transport.turns import Shared

TRANSCRIPTS = "transcripts"


@contextlib.asynccontextmanager
async def open_http(
    gateway: Gateway,
    settings: Http,
    *,
    routes: Sequence[BaseRoute] = (),
    ready: Callable[[], Awaitable[bool]],
    session_key: bytes,
    several: bool,
    tokens: Tokens | None = None,
    issuer: ResourceServer | None = None,
    shared: Shared | None = None,
) -> AsyncIterator[tuple[ASGIApp, Callable[[], None]]]:
    """The ASGI application, and what ends its open streams when the server is to end.

    Args:
        routes: others' (metrics, the operator's page), behind the same checks.
        ready: what `/health` and `/readyz` answer 200 for.
        session_key: signs the ids of sessions; all fronts have the same.
        several: whether there are other fronts.
        tokens: those that the operator has made.
        issuer: judges the tokens of another issuer, if there is one.
        shared: with the routes, what one client's flood leaves to the others.
    """
    sessions = gateway.sessions(session_key, several=several)
    limit, shared = settings.max_body_bytes, shared or Shared()
    endpoints = {name: Endpoint(await gateway.server(name), limit, shared, sessions) for name in SURFACES}
    stateless = Endpoint(await gateway.server(TRANSCRIPTS), limit, shared)

    async def health(request: Request) -> Response:
        up = await ready()
        return JSONResponse({"status": "ready" if up else "starting"}, status_code=200 if up else 503)

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def surface(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = endpoints.get(scope["path"].removeprefix("/mcp").strip("/") or ALL)
        if endpoint is None:
            text = f"no such surface; there are: {', '.join(SURFACES)}"
            await JSONResponse({"error": text}, status_code=404)(scope, receive, send)
            return
        await endpoint(scope, receive, send)

    app = Starlette(
        routes=[
            Route("/mcp", endpoint=_Whole(endpoints[ALL])),
            Route("/v1/mcp", endpoint=_Whole(stateless)),
            *(Route(path, endpoint=health, methods=["GET"]) for path in ("/health", "/readyz")),
            Route("/livez", endpoint=alive, methods=["GET"]),
            Mount("/mcp", app=surface),
            *routes,
        ]
    )

    direct: dict[str, Endpoint] = {"/mcp": endpoints[ALL], "/v1/mcp": stateless}
    direct |= {f"/mcp/{name}": endpoint for name, endpoint in endpoints.items()}

    exact = {
        (method, route.path): route.app
        for route in reversed(routes)
        if isinstance(route, Route) and "{" not in route.path
        for method in route.methods or ()
    }

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        # The application's routes say the same; what has an exact path need not be looked up in them.
        found: ASGIApp | None = None
        if scope["type"] == "http":
            found = direct.get(scope["path"]) or exact.get((scope["method"], scope["path"]))
        await (found or app)(scope, receive, send)

    def close_streams() -> None:
        for endpoint in (*endpoints.values(), stateless):
            endpoint.close_streams()

    async with contextlib.AsyncExitStack() as stack:
        for endpoint in (*endpoints.values(), stateless):
            await stack.enter_async_context(endpoint.running())
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(sessions.run)
        yield Guard(front, settings, tokens, issuer), close_streams
        nursery.cancel_scope.cancel()


class _Whole:
    """An ASGI application as the endpoint of a route, for every method."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def serve_http(
    gateway: Gateway,
    settings: Http,
    listening: socket.socket,
    *,
    routes: Sequence[BaseRoute] = (),
    ready: Callable[[], Awaitable[bool]],
    session_key: bytes,
    several: bool = False,
    tokens: Tokens | None = None,
    issuer: ResourceServer | None = None,
    shared: Shared | None = None,
    shutdown: Callable[[], Awaitable[None]] = trio.sleep_forever,
    relay: http_server.Relay | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on a socket that listens already, which is then this function's, until `shutdown` returns.

    Requests in flight then have some seconds to end; streams that only listen are ended at once.
    """
    opened = open_http(
        gateway, settings, routes=routes, ready=ready, session_key=session_key, several=several, tokens=tokens,
        issuer=issuer, shared=shared,
    )  # fmt: skip
    async with opened as (app, close_streams):
        gc.freeze()

        async def until_shutdown() -> None:
            await shutdown()
            close_streams()

        await http_server.serve(app, settings, listening, shutdown=until_shutdown, relay=relay, task_status=task_status)
