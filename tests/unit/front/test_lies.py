"""A service may answer anything: on every way to a client, an invalid result is a failure of that call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from proto import ops
from proto.wire import frames
from services.front.gateway import open_gateway
from services.front.protocol.calls import LinkDispatcher
from services.front.web.routes import routes
from services.runtime.calls import Outgoing
from tests.unit.front.httpwire import served
from tests.unit.front.inprocess import InProcess
from tests.unit.front.web.test_routes import TABLE
from tests.unit.front.wire import Wire, connected

LIE = "returned an invalid result"


class Lying:
    """The link, at whose other end every operation is answered with this."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def raw(self, *_: object, **__: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.body


LIES = {
    "no msgpack": b"\xc1",
    "another type": frames.pack_body([1, "x", {"y": None}]),
    "JSON of another type": frames.pack_body(frames.Written(b'["x"]')),
    "no JSON": frames.pack_body(frames.Written(b'{"x')),
    "nothing": b"",
}


@pytest.fixture(params=list(LIES.values()), ids=list(LIES))
def lying(request: pytest.FixtureRequest) -> LinkDispatcher:
    return LinkDispatcher(cast("Outgoing", Lying(request.param)), {})


@asynccontextmanager
async def client(dispatcher: LinkDispatcher) -> AsyncIterator[Wire]:
    async with open_gateway(ops.load(), dispatcher, InProcess(), version="1") as gateway:
        await gateway.server("all")
        async with connected(gateway) as wire:
            await wire.initialize()
            yield wire


async def test_invalid_results_of_tools_steps_and_resources_are_failures(lying: LinkDispatcher) -> None:
    steps = [{"op": "documents_list"}, {"op": "documents_list"}]
    edit = {"op": "yaml_set", "params": {"file": "a", "path": "b", "value": "c"}}
    asked: list[tuple[str, Any]] = [
        ("tools/call", {"name": "jobs_list", "arguments": {}}),
        ("tools/call", {"name": "jobs_list", "arguments": {}, "_meta": {"progressToken": 1}}),
        ("tools/call", {"name": "query", "arguments": {"steps": steps}}),
        ("tools/call", {"name": "query", "arguments": {"steps": steps[:1]}}),
        ("tools/call", {"name": "execute", "arguments": {"operations": [edit]}}),
        ("resources/read", {"uri": "synthesis://jobs"}),
    ]
    async with client(lying) as wire:
        for number, (method, params) in enumerate(asked):
            await wire.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            assert LIE in json.dumps(await wire.receive()), (method, params)


async def test_invalid_results_of_routes_are_failures(lying: LinkDispatcher) -> None:
    async with served(routes=routes(lying, TABLE, 1000)) as (http, *_):
        for method, path, body in (("GET", "/things/a", b""), ("POST", "/things", b'{"name": "a"}')):
            reply = await http.request(method, path, body)
            assert reply.status >= 500, reply.body
            assert LIE in reply.body.decode()
