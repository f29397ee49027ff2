"""The operator's page: it loads only its own files, is small, and lets only its own reader act as the operator."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from proto.errors import Forbidden, UnknownOperation
from proto.ops.observation import KernelPageCall
from proto.origin import Origin
from proto.wire.front import SERVICE, Http
from services.front.gateway import Gateway
from services.front.transport.fair_limits import FairLimits
from services.front.web import page
from services.front.web.live import Live
from services.front.web.page import Page
from tests.unit.front.httpwire import HttpWire, served

KEY = "the-key-of-this-kernel"
MAX_COMPRESSED = 200 * 1000


class Dispatcher:
    """Stands in for the kernel, and records the callers."""

    def __init__(self) -> None:
        self.called: list[tuple[str, Any, str]] = []

    async def call(self, operation: Any, params: Any, *, origin: Origin, **_: Any) -> object:
        assert isinstance(params, KernelPageCall)
        if params.key != KEY:
            raise Forbidden("the key is not this kernel's")
        if params.operation.startswith("no_"):
            raise UnknownOperation(f"unknown operation {params.operation!r}")
        self.called.append((params.operation, params.arguments, origin.caller))
        return {"message": "done"}


@contextlib.asynccontextmanager
async def opened(settings: Http | None = None) -> AsyncIterator[tuple[HttpWire, Dispatcher]]:
    dispatcher = Dispatcher()
    # These routes do not use the gateway.
    shown = Page(cast(Gateway, None), dispatcher, Live(dispatcher), FairLimits(), 1000)
    async with served(settings, routes=shown.routes()) as (http, *_):
        yield http, dispatcher


def own(http: HttpWire, **more: str) -> dict[str, str]:
    return {"origin": f"http://127.0.0.1:{http.port}", page.KEY_HEADER: KEY, **more}


def texts() -> dict[str, str]:
    return {
        path.relative_to(page.SITE).as_posix(): path.read_text("utf-8")
        for path in page.SITE.rglob("*")
        if path.is_file()
    }


async def test_the_page_and_its_files_run_only_themselves_and_are_cached() -> None:
    token = "a-token-of-some-length"
    async with opened(Http(port=0, token=token)) as (http, _):
        reply = await http.request("GET", "/")
        assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        for name, media_type in (
            ("app.js", "text/javascript"),
            ("lib/preact.mjs", "text/javascript"),
            ("style.css", "text/css"),
        ):
            file = await http.request("GET", f"/page/{name}")
            assert (file.status, file.headers["content-type"]) == (200, f"{media_type}; charset=utf-8")
            again = await http.request("GET", f"/page/{name}", headers={"if-none-match": file.headers["etag"]})
            assert (again.status, again.body) == (304, b"")
        views = json.loads((await http.request("GET", "/page/views.json")).body)
        assert views == sorted(path.stem for path in (page.SITE / "views").glob("*.js"))
        for name in ("page.py", "../page.py", "%2e%2e/page.py", "views"):
            assert (await http.request("GET", f"/page/{name}")).status == 404


def test_the_files_load_nothing_from_elsewhere_and_are_small() -> None:
    every = texts()
    for name, text in every.items():
        assert not re.search(r"innerHTML =|dangerouslySetInnerHTML|\beval\(|new Function", text) or name.startswith(
            "lib/"
        )
        loads = re.findall(r"""(?:src|href|from|import)\s*[=(]?\s*["'`](https?:|//)""", text)
        assert loads == [], name
    assert sum(len(gzip.compress(text.encode())) for text in every.values()) < MAX_COMPRESSED


def test_each_view_names_itself_and_has_a_place() -> None:
    orders = []
    for path in (page.SITE / "views").glob("*.js"):
        text = path.read_text("utf-8")
        assert re.search(r'^export const title = "[^"]+";$', text, re.MULTILINE), path
        assert re.search(r"^export function View\(", text, re.MULTILINE), path
        found = re.search(r"^export const order = (\d+);$", text, re.MULTILINE)
        assert found is not None, path
        orders.append(int(found[1]))
    assert len(set(orders)) == len(orders)


async def test_the_operators_operations_need_the_token_and_the_key() -> None:
    token = "a-token-of-some-length"
    async with opened(Http(port=0, token=token)) as (http, dispatcher):
        assert (await http.request("POST", "/operator/kernel_restart", headers=own(http))).status == 401
        headers = own(http, authorization=f"Bearer {token}", **{"sec-fetch-site": "same-origin"})
        reply = await http.request("POST", "/operator/kernel_restart", b'{"service": "echo"}', headers)
        assert (reply.status, json.loads(reply.body)) == (200, {"message": "done"})
        assert dispatcher.called == [("kernel_restart", {"service": "echo"}, SERVICE)]
        assert (await http.request("POST", "/operator/no_such", headers=headers)).status == 404
        assert (await http.request("POST", "/operator/kernel_restart", b"[1]", headers)).status == 400


@pytest.mark.parametrize("path", ["/operator/kernel_stop", "/live"])
@pytest.mark.parametrize(
    "changed",
    [
        {page.KEY_HEADER: "-"},
        {page.KEY_HEADER: ""},
        {page.KEY_HEADER: KEY + "x"},
        {page.KEY_HEADER: "é"},
        {"origin": "-"},
        {"origin": "null"},
        {"origin": "http://localhost:5173"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_request_from_elsewhere_or_without_the_key_does_nothing(path: str, changed: dict[str, str]) -> None:
    if path == "/live" and changed == {"origin": "-"}:
        pytest.skip("browsers send no Origin with such a request of the page itself; the key protects it")
    async with opened() as (http, dispatcher):
        method = "GET" if path == "/live" else "POST"
        reply = await http.request(method, path, headers={**own(http), **changed})
        assert reply.status == 403
        assert dispatcher.called == []
