"""The operator's page: `GET /`, with a restart button; its script shows `/status`, the route of `kernel_status`.

The page is one document that contains no data and loads nothing from elsewhere.  The command line (`linckia status`)
prints its address with the token and the key of this kernel run behind the #, so that they are not sent, logged, or
visible to other users of the machine.  A restart requires the key and must come from the page itself.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from starlette import routing
from starlette.requests import Request
from starlette.responses import Response

from linckia.proto.dispatch import Dispatcher
from linckia.proto.errors import Forbidden, Kind, LinckiaError
from linckia.proto.front import SERVICE
from linckia.proto.operation import Route, operation_of
from linckia.proto.ops.kernel import KernelPageRestart
from linckia.services.front.web.routes import failed, json_response

KEY_HEADER = "linckia-key"

_RESTART = Route("POST", "/services/{name}/restart", statuses={Kind.INVALID_PARAMS: 404})


def _asset(ending: str) -> str:
    return Path(__file__).with_name(f"page.{ending}").read_text("utf-8")


_STYLE, _SCRIPT = (f"\n{_asset(ending)}" for ending in ("css", "js"))
_DOCUMENT = _asset("html").replace("{{style}}", _STYLE).replace("{{script}}", _SCRIPT)


def _source(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Only this script and this style are allowed; injected ones do not run.
    "content-security-policy": f"default-src 'none'; style-src {_source(_STYLE)}; script-src {_source(_SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def routes(dispatcher: Dispatcher) -> list[routing.BaseRoute]:
    """Return the page's routes."""

    async def page(request: Request) -> Response:
        return Response(_DOCUMENT, media_type="text/html; charset=utf-8", headers=_HEADERS)

    async def restart(request: Request) -> Response:
        try:
            origin = request.headers.get("origin", "").partition("://")[2]
            # Not even pages of other servers on this machine, which may send all other requests.
            own = bool(origin) and origin == request.headers.get("host")
            if not own or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
                raise Forbidden("a restart must come from the operator's page itself")
            key = request.headers.get(KEY_HEADER, "")
            params = KernelPageRestart(service=request.path_params["name"], key=key)
            return json_response(await dispatcher.call(operation_of(KernelPageRestart), params, caller=SERVICE))
        except LinckiaError as error:
            return failed(_RESTART, error)

    return [
        routing.Route("/", page, methods=["GET"]),
        routing.Route(_RESTART.path, restart, methods=[_RESTART.method]),
    ]
