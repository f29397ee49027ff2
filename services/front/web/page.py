"""The operator's page: `GET /`, its files below `/page/`, and what its scripts ask for.

The page is static files that contain no data and load nothing from elsewhere; each file in `site/views` is one view.
The command line (`linckia status`) prints its address with the token and the key behind the #, so that they are not
sent, logged, or visible to other users of the machine. With the token the page calls operations as any client does;
operations that only the operator may call also require the key, and must come from the page itself.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import structs
from starlette import routing
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from proto.errors import Forbidden, Kind, LinckiaError
from proto.json_types import JsonObject
from proto.operation import ALL, CLIENT, SURFACES, Operation, Role, Route, operation_of
from proto.ops.observation import KernelPageCall
from proto.origin import Origin
from proto.wire import frames
from proto.wire.front import SERVICE
from services.front.composite.run import Composites
from services.front.gateway import Gateway
from services.front.transport.access import OPEN_FOLDER, ORIGIN
from services.front.transport.fair_limits import FairLimits
from services.front.web.live import Live
from services.front.web.routes import failed, json_object, json_response, read_body
from services.runtime.dispatch import Dispatcher

KEY_HEADER: Final = "linckia-key"
TRACE_HEADER: Final = "linckia-trace"

SITE: Final = Path(__file__).with_name("site")
CHARACTERS_A_TOKEN: Final = 4
"""Usual ratio for English and JSON, to estimate what a list of tools costs a model."""

_HEADERS: Final = {
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Only the page's own files are loaded; injected scripts and styles do not run.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class _File(NamedTuple):
    data: bytes
    media_type: str
    etag: str


@cache
def _files() -> dict[str, _File]:
    """Return the page's files by their path below `site`, and the list of views, which `app.js` loads."""
    found = {path.relative_to(SITE).as_posix(): path.read_bytes() for path in SITE.rglob("*") if path.is_file()}
    views = sorted(Path(name).stem for name in found if name.startswith("views/"))
    found["views.json"] = json.dumps(views).encode()
    return {name: _file(name, data) for name, data in found.items()}


def _file(name: str, data: bytes) -> _File:
    types = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".html": "text/html"}
    media_type = types.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    text = "; charset=utf-8" if media_type.startswith("text/") else ""
    return _File(data, media_type + text, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


class Page:
    """The routes of the page."""

    def __init__(
        self, gateway: Gateway, dispatcher: Dispatcher, live: Live, limits: FairLimits, max_body_bytes: int
    ) -> None:
        self._gateway = gateway
        self._dispatcher = dispatcher
        self._live = live
        self._limits = limits
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[routing.BaseRoute]:
        """Return all of them."""
        return [
            routing.Route("/", self._index, methods=["GET"]),
            routing.Route(OPEN_FOLDER + "{name:path}", self._asset, methods=["GET"]),
            routing.Route("/operations", self._operations, methods=["GET"]),
            routing.Route("/call/{name}", self._call, methods=["POST"]),
            routing.Route("/operator/{name}", self._operator, methods=["POST"]),
            routing.Route("/live", self._events, methods=["GET"]),
        ]

    async def _index(self, request: Request) -> Response:
        return self._static(request, "index.html")

    async def _asset(self, request: Request) -> Response:
        return self._static(request, request.path_params["name"])

    def _static(self, request: Request, name: str) -> Response:
        file = _files().get(name)
        if file is None:
            return json_response({"error": f"the page has no file {name!r}"}, 404)
        headers = {**_HEADERS, "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, media_type=file.media_type, headers=headers)

    async def _operations(self, request: Request) -> Response:
        """List every operation that the client may call, and what each surface costs a model."""
        self._gateway.wanted.set()
        await self._gateway.loaded.wait()
        await self._gateway.mounted.complete()
        grant = request.scope[ORIGIN].grant
        found = [
            _described(op)
            for op in self._callable().values()
            if op.role in (Role.TOOL, Role.STEP) and not (grant is not None and op.refusal(grant))
        ]
        surfaces = []
        for name in (*SURFACES, *self._gateway.mounted.catalogue.mounts):
            tools = self._gateway.surface(name).listed_tools
            cost = len(msgspec.json.encode(tools)) // CHARACTERS_A_TOKEN
            surfaces.append({"name": name, "tools": len(tools), "tokens": cost})
        return json_response({"operations": found, "surfaces": surfaces})

    def _callable(self) -> dict[str, Operation[object]]:
        """Return what clients may call, by name: operations, and tools of mounted servers."""
        own = {name: op for name, op in self._gateway.table.items() if op.admits(CLIENT)}
        return {**self._gateway.surface(ALL).tools, **own}

    async def _call(self, request: Request) -> Response:
        """Call an operation as a client: the body is its parameters, the answer its whole result as JSON."""
        name, trace = request.path_params["name"], frames.new_trace()
        try:
            arguments = await self._arguments(request)
            if (op := self._callable().get(name)) is None:
                self._gateway.wanted.set()
                await self._gateway.mounted.complete()
                op = self._callable().get(name) or self._gateway.table.find(name)
            if not op.admits(CLIENT) and not op.admits_sync(request.scope[ORIGIN].grant):
                raise Forbidden(f"{name} may not be called by a client")
            steps = self._gateway.surface(ALL).steps
            composites = Composites(self._dispatcher, steps, self._gateway.searches, plain=True)
            params = op.parse(arguments)
            origin = structs.replace(request.scope[ORIGIN], trace=trace)
            answer = await composites.call(op, params, origin=origin, written=not op.is_foreign)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:  # noqa: BLE001  # the edge: a defect is this request's answer, and is logged
            response = failed(_route(name), error)
        else:
            response = json_response(answer)
        response.headers[TRACE_HEADER] = frames.trace_id(trace)
        return response

    async def _operator(self, request: Request) -> Response:
        """Call an operation that only the operator may call."""
        try:
            self._check_origin(request)
            arguments = await self._arguments(request)
            key = request.headers.get(KEY_HEADER, "")
            params = KernelPageCall(operation=request.path_params["name"], arguments=arguments, key=key)
            answer = await self._dispatcher.call(operation_of(KernelPageCall), params, origin=_of_page(request))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:  # noqa: BLE001  # as above
            return failed(_route(request.path_params["name"]), error)
        return json_response(answer)

    async def _events(self, request: Request) -> Response:
        """Send the live figures as server-sent events."""
        try:
            self._check_origin(request)
            key = request.headers.get(KEY_HEADER, "")
            await self._live.ask(key, _of_page(request))
        except LinckiaError as error:
            return failed(_route("live"), error)
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        return StreamingResponse(self._live.events(key), headers=headers, media_type="text/event-stream")

    def _check_origin(self, request: Request) -> None:
        """Raise Forbidden unless the request comes from the page itself.

        Pages of other servers on this machine may send all other requests. Browsers send no Origin with a GET.
        """
        origin = request.headers.get("origin")
        named = origin is not None and origin.partition("://")[2] == request.headers.get("host")
        if (
            not (named or (origin is None and request.method == "GET"))
            or request.headers.get("sec-fetch-site", "same-origin") != "same-origin"
        ):
            raise Forbidden("the operator's operations must be called from the operator's page itself")

    async def _arguments(self, request: Request) -> JsonObject:
        async with read_body(request, self._limits, self._max_body_bytes) as data:
            return json_object(data) if data else {}


def _of_page(request: Request) -> Origin:
    """Return the origin of a call that the front makes for the page, which has no more rights than its client."""
    origin: Origin = request.scope[ORIGIN]
    return structs.replace(origin, caller=SERVICE, key="")


def _route(name: str) -> Route:
    """Return a route for `failed`, which shows its path."""
    return Route("POST", name, statuses={Kind.UNKNOWN_OPERATION: 404})


def _described(op: Operation[object]) -> JsonObject:
    return {
        "name": op.name,
        "title": op.title,
        "description": op.description,
        "service": op.routed.service,
        "access": op.access.value,
        "idempotent": op.idempotent,
        "surfaces": list(op.surfaces),
        "mounted": op.is_foreign,
        "schema": op.input_schema,
    }
