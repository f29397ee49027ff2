"""The operator's page: `GET /`, and its one button; it shows `/status`, which is the route of `kernel_status`.

A client that may use the rest of HTTP may see the page.  A restart takes the key of this run of the kernel as well,
which only the command line prints (`linckia status`), and must come from the page itself and no other site.
"""

from __future__ import annotations

import hmac
import urllib.parse

from starlette import routing
from starlette.requests import Request
from starlette.responses import Response

from kernel.ports import Dispatcher
from kernel.web.document import DOCUMENT, POLICY
from kernel.web.routes import failed, json_response
from proto.errors import Forbidden, Kind, LinckiaError
from proto.operation import OPERATOR, Route, operation_of
from proto.ops.kernel import KernelRestart

KEY_HEADER = "linckia-key"

_RESTART = Route("POST", "/services/{name}/restart", statuses={Kind.INVALID_PARAMS: 404})

_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": POLICY,
}


def routes(dispatcher: Dispatcher, key: str) -> list[routing.BaseRoute]:
    """The page's routes.

    Args:
        key: what a restart must carry.
    """

    async def page(request: Request) -> Response:
        return Response(DOCUMENT, media_type="text/html; charset=utf-8", headers=_HEADERS)

    async def restart(request: Request) -> Response:
        try:
            if (refusal := _refusal(request, key)) is not None:
                raise Forbidden(refusal)
            params = KernelRestart(service=request.path_params["name"])
            return json_response(await dispatcher.call(operation_of(KernelRestart), params, caller=OPERATOR))
        except LinckiaError as error:
            return failed(_RESTART, error)

    return [
        routing.Route("/", page, methods=["GET"]),
        routing.Route(_RESTART.path, restart, methods=[_RESTART.method]),
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
