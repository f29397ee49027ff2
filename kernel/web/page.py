"""The operator's page: `GET /`, the status that it shows, and its one button.

The page may be seen by whoever may see the rest of HTTP.  A restart takes the key of this run of the kernel as well,
which only the command line tells (`linckia status`), and must come from the page itself and no other site.
"""

from __future__ import annotations

import hmac
import urllib.parse
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from kernel.ports import Dispatcher
from kernel.web.document import DOCUMENT, POLICY
from proto.errors import Kind, LinckiaError
from proto.operation import CLIENT, OPERATOR, operation_of
from proto.ops.kernel import KernelRestart, KernelStatusParams

KEY_HEADER = "linckia-key"

_STATUS_CODES = {Kind.INVALID_PARAMS: 404, Kind.UNAVAILABLE: 503, Kind.TIMEOUT: 504}

_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": POLICY,
}


def routes(dispatcher: Dispatcher, key: str) -> list[BaseRoute]:
    """The page's routes.

    Args:
        key: what a restart must carry.
    """

    async def page(request: Request) -> Response:
        return Response(DOCUMENT, media_type="text/html; charset=utf-8", headers=_HEADERS)

    async def status(request: Request) -> Response:
        params = KernelStatusParams()
        return await _answered(lambda: dispatcher.call(operation_of(KernelStatusParams), params, caller=CLIENT))

    async def restart(request: Request) -> Response:
        refusal = _refusal(request, key)
        if refusal is not None:
            return _json({"error": refusal}, 403)
        params = KernelRestart(service=request.path_params["name"])
        return await _answered(lambda: dispatcher.call(operation_of(KernelRestart), params, caller=OPERATOR))

    return [
        Route("/", page, methods=["GET"]),
        Route("/status", status, methods=["GET"]),
        Route("/services/{name}/restart", restart, methods=["POST"]),
    ]


def _refusal(request: Request, key: str) -> str | None:
    """Why the request may change nothing; None where it may."""
    origin = urllib.parse.urlsplit(request.headers.get("origin", "")).netloc
    # Not even of another server of this machine, whose pages may ask for all else.
    own = bool(origin) and origin == request.headers.get("host")
    if not own or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "a restart must come from the operator's page itself"
    if not hmac.compare_digest(request.headers.get(KEY_HEADER, "").encode(), key.encode()):
        return "the key is not this kernel's: open the address that `linckia status` gives"
    return None


async def _answered(call: Callable[[], Awaitable[object]]) -> Response:
    try:
        return _json(await call(), 200)
    except LinckiaError as error:
        return _json({"error": str(error)}, _STATUS_CODES.get(error.failure.kind, 500))


def _json(value: object, status: int) -> Response:
    headers = {name: value for name, value in _HEADERS.items() if name != "content-security-policy"}
    return Response(msgspec.json.encode(value), status, headers, "application/json")
