"""An operation that declares a route is served over HTTP; nothing else needs to be configured."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from proto import ops
from proto.errors import OperationError
from proto.operation import Access, Params, Role, Route, operation, operation_of
from services.front.transport.fair_limits import LARGE_BYTES, FairLimits
from services.front.web.routes import routes
from services.runtime.handlers import Context, Environment, Handlers
from tests.unit.front.httpwire import HttpWire, served
from tests.unit.front.inprocess import in_process


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """The requested thing."""

    name: str
    count: int


@operation(
    "things.get",
    service="things",
    access=Access.READ,
    deadline_s=1,
    role=Role.INTERNAL,
    http=Route("GET", "/things/{name}", missing="no such thing"),
)
class GetThing(Params[Thing | None], frozen=True, kw_only=True):
    """A thing by its name."""

    name: str
    count: Annotated[int, Meta(ge=1)] = 1


@operation(
    "things.put",
    service="things",
    access=Access.WRITE,
    idempotent=True,
    deadline_s=1,
    role=Role.INTERNAL,
    http=Route("POST", "/things", like_openai=True),
)
class PutThing(Params[Thing], frozen=True, kw_only=True):
    """Keep a thing."""

    name: str
    count: int = 0


@contextlib.asynccontextmanager
async def open_things(env: Environment) -> AsyncIterator[Handlers]:
    handlers = Handlers()

    @handlers.handle(GetThing)
    async def get(params: GetThing, ctx: Context) -> Thing | None:
        return None if params.name == "unknown" else Thing(name=params.name, count=params.count)

    @handlers.handle(PutThing)
    async def put(params: PutThing, ctx: Context) -> Thing:
        if params.name == "bad":
            raise OperationError("it cannot be kept", field="name")
        return Thing(name=params.name, count=params.count)

    yield handlers


TABLE = ops.Table([operation_of(GetThing), operation_of(PutThing)])


@contextlib.asynccontextmanager
async def serving(*unserved: str) -> AsyncIterator[HttpWire]:
    async with (
        in_process(open_things) as dispatcher,
        served(routes=routes(dispatcher, TABLE, 1000, unserved=unserved)) as (http, *_),
    ):
        yield http


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        ("/things/a", 200, {"name": "a", "count": 1}),
        ("/things/a?count=3&other=ignored", 200, {"name": "a", "count": 3}),
        ("/things/unknown", 404, {"error": "no such thing"}),
        ("/things/a?count=0", 400, {"error": "parameter `count`: expected `integer` >= 1"}),
    ],
)
async def test_get_takes_parameters_from_path_and_query(path: str, status: int, answer: object) -> None:
    async with serving() as http:
        reply = await http.request("GET", path)
        assert (reply.status, json.loads(reply.body)) == (status, answer)


async def test_post_takes_them_from_a_json_body_and_failures_are_worded_as_the_route_says() -> None:
    async with serving() as http:
        reply = await http.request("POST", "/things", b'{"name": "b"}')
        assert (reply.status, json.loads(reply.body)) == (200, {"name": "b", "count": 0})
        reply = await http.request("POST", "/things", b'{"name": "bad"}')
        error = {"message": "it cannot be kept", "type": "invalid_request_error", "param": "name", "code": "operation"}
        assert (reply.status, json.loads(reply.body)) == (400, {"error": error})
        assert (await http.request("POST", "/things", b'{"nam": "b"}')).status == 400
        assert (await http.request("POST", "/things", b" " * 1001)).status == 413
        reply = await http.request("POST", "/things", b'{"name":' + b"[" * 200 + b"]" * 200 + b"}")
        assert reply.status == 400
        assert "201 levels, more than 100" in reply.body.decode()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b'{"name": "b", "count": null}', {"name": "b", "count": 0}),
        (b'{"name": "5", "count": "5"}', {"name": "5", "count": 5}),
        (b'{"name": "null", "count": "5.0"}', {"name": "null", "count": 5}),
    ],
)
async def test_a_body_may_be_written_as_models_write_arguments(body: bytes, answer: object) -> None:
    async with serving() as http:
        reply = await http.request("POST", "/things", body)
        assert (reply.status, json.loads(reply.body)) == (200, answer)
        reply = await http.request("POST", "/things", b'{"name": "b", "count": "5.5"}')
        assert reply.status == 400
        assert json.loads(reply.body)["error"]["param"] == "count"


async def test_a_body_counts_for_its_client_as_one_for_mcp_does() -> None:
    limits = FairLimits()
    async with (
        in_process(open_things) as dispatcher,
        served(routes=routes(dispatcher, TABLE, 1 << 20, limits=limits)) as (http, *_),
    ):
        body = b'{"name": "b"}' + b" " * LARGE_BYTES
        assert (await http.request("POST", "/things", body)).status == 200
        assert not limits.bodies._by_client
        limits.bodies._limit = LARGE_BYTES
        reply = await http.request("POST", "/things", body)
        assert (reply.status, b"This client has too many large requests in flight" in reply.body) == (503, True)


async def test_routes_of_a_service_that_is_switched_off_say_so() -> None:
    async with serving("things") as http:
        reply = await http.request("GET", "/things/a")
        assert reply.status == 503
        assert "things is switched off" in json.loads(reply.body)["error"]


def test_every_route_is_declared_once() -> None:
    table = ops.load()
    declared = [op.http for op in table.values() if op.http is not None] + [each.route for each in table.endpoints]
    places = [(route.method, route.path) for route in declared]
    assert len(places) == len(set(places))
    assert ("POST", "/v1/embeddings") in places
