"""The operator's page: it loads nothing, shows what the kernel says, and lets only its own reader restart."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from linckia.proto.errors import Forbidden, InvalidParams
from linckia.proto.front import SERVICE, Http
from linckia.proto.ops import load
from linckia.proto.ops.kernel import Done, KernelPageRestart, KernelStatusParams
from linckia.services.front.web import page
from linckia.services.front.web.routes import routes
from tests.unit.front.httpwire import HttpWire, served

KEY = "the-key-of-this-run"


class Dispatcher:
    """Answers as the kernel does, and notes who asked."""

    def __init__(self) -> None:
        self.restarted: list[tuple[str, str]] = []

    async def call(self, operation: Any, params: Any, *, caller: str = "client", **_: Any) -> object:
        if isinstance(params, KernelStatusParams):
            return {"version": "1", "services": [], "caller": caller}
        assert isinstance(params, KernelPageRestart)
        if params.key != KEY:
            raise Forbidden("the key is not this kernel's")
        if params.service != "echo":
            raise InvalidParams(f"there is no service {params.service!r}", field="service")
        self.restarted.append((params.service, caller))
        return Done(message="restarted")


@contextlib.asynccontextmanager
async def opened(settings: Http | None = None) -> AsyncIterator[tuple[HttpWire, Dispatcher]]:
    dispatcher = Dispatcher()
    async with served(settings, routes=[*page.routes(dispatcher), *routes(dispatcher, load(), 1000)]) as (
        http,
        *_,
    ):
        yield http, dispatcher


def own(http: HttpWire, **more: str) -> dict[str, str]:
    return {"origin": f"http://127.0.0.1:{http.port}", page.KEY_HEADER: KEY, **more}


async def test_the_page_is_one_document_that_may_run_only_itself() -> None:
    async with opened() as (http, _):
        reply = await http.request("GET", "/")
        assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        text = reply.body.decode()
        assert not re.search(r"""(?:src|href)=["'](?!data:)|url\(|import |innerHTML| on[a-z]+=["']""", text)
        assert KEY not in text


async def test_the_status_is_a_clients_and_needs_the_token_where_there_is_one() -> None:
    async with opened() as (http, _):
        reply = await http.request("GET", "/status")
        assert json.loads(reply.body)["caller"] == "client"
    token = "a-token-of-some-length"
    async with opened(Http(port=0, token=token)) as (http, _):
        assert (await http.request("GET", "/")).status == 200
        assert (await http.request("GET", "/status")).status == 401
        assert (await http.request("GET", "/status", headers={"authorization": f"Bearer {token}"})).status == 200
        assert (await http.request("POST", "/services/echo/restart", headers=own(http))).status == 401


async def test_the_page_with_its_key_restarts_a_service() -> None:
    async with opened() as (http, dispatcher):
        reply = await http.request(
            "POST", "/services/echo/restart", headers=own(http, **{"sec-fetch-site": "same-origin"})
        )
        assert (reply.status, json.loads(reply.body)) == (200, {"message": "restarted"})
        assert dispatcher.restarted == [("echo", SERVICE)]
        unknown = await http.request("POST", "/services/nothing/restart", headers=own(http))
        assert unknown.status == 404
        assert "nothing" in json.loads(unknown.body)["error"]


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
async def test_a_request_from_elsewhere_restarts_nothing(changed: dict[str, str]) -> None:
    async with opened() as (http, dispatcher):
        reply = await http.request("POST", "/services/echo/restart", headers={**own(http), **changed})
        assert reply.status == 403
        assert (await http.request("GET", "/services/echo/restart", headers=own(http))).status == 405
        assert dispatcher.restarted == []
