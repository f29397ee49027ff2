"""Long answers are kept for their session and only for it, and a preview stands for them on both ways to a client."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import jsonschema
import msgspec
import pytest

from proto.grants import Grant
from proto.operation import Access, Params, operation, operation_of
from proto.ops import Table
from proto.origin import Origin
from proto.wire.front import Http
from services.front import scratchpad
from services.front.gateway import Gateway
from services.front.operations.steps import ScratchpadContent, ScratchpadList, ScratchpadListing, ScratchpadRead
from services.front.protocol.dispatch import FastPath
from services.front.scratchpad import Scratchpads
from services.front.transport.access import ORIGIN
from services.front.transport.exchange import name_of
from services.runtime.handlers import Context, Environment, Handlers
from tests.unit.front import httpwire
from tests.unit.front.httpwire import HttpWire, served
from tests.unit.front.wire import META, Wire, connected, gateway_in_process


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A hit."""

    id: str
    preview: str
    score: float
    snippet: str


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Hits."""

    results: list[Found]


@operation("k_search", service="test", access=Access.READ, idempotent=True, deadline_s=5, surfaces=("knowledge",))
class Search(Params[Results], frozen=True, kw_only=True):
    """Finds as many as requested."""

    hits: int
    salt: str = ""


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text."""

    text: str


@operation(
    "k_read", service="test", access=Access.READ, idempotent=True, deadline_s=5, surfaces=("knowledge",), text="text"
)
class Read(Params[Text], frozen=True, kw_only=True):
    """Returns the requested number of bytes."""

    size: int


@operation("o_read", service="test", access=Access.READ, idempotent=True, deadline_s=5, text="text")
class Other(Params[Text], frozen=True, kw_only=True):
    """Returns the requested number of bytes, and is no knowledge tool."""

    size: int


TABLE = Table(operation_of(each) for each in (Search, Read, Other, ScratchpadRead, ScratchpadList))


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    handlers = Handlers()
    kernel: dict[str, Callable[[Any, Origin], Awaitable[Any]]] = {**scratchpad.HANDLERS}

    @handlers.handle(Search)
    async def search(params: Search, ctx: Context) -> Results:
        hits = [Found(id=f"note-{n}", preview=f"Note {n}", score=1 / (n + 1), snippet=params.salt + "x" * 300)
                for n in range(params.hits)]  # fmt: skip
        return Results(results=hits)

    @handlers.handle(Read)
    async def read(params: Read, ctx: Context) -> Text:
        return Text(text="x" * params.size)

    @handlers.handle(Other)
    async def other(params: Other, ctx: Context) -> Text:
        return Text(text="x" * params.size)

    @handlers.handle(ScratchpadRead)
    async def scratchpad_read(params: ScratchpadRead, ctx: Context) -> ScratchpadContent:
        found: ScratchpadContent = await kernel["scratchpad_read"](params, ctx.origin)
        return found

    @handlers.handle(ScratchpadList)
    async def scratchpad_list(params: ScratchpadList, ctx: Context) -> ScratchpadListing:
        listing: ScratchpadListing = await kernel["scratchpad_list"](params, ctx.origin)
        return listing

    yield handlers


@pytest.fixture(params=["short", "sdk"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways through the gateway."""
    if request.param == "sdk":
        monkeypatch.setattr(FastPath, "recognise", lambda *_, **__: None)
    return str(request.param)


async def result(wire: Wire, name: str, arguments: dict[str, Any], meta: object = None) -> dict[str, Any]:
    await wire.call(name, arguments, meta=meta)
    answer: dict[str, Any] = (await wire.receive())["result"]
    return answer


def said(answer: dict[str, Any]) -> str:
    text: str = answer["content"][0]["text"]
    return text


@asynccontextmanager
async def client() -> AsyncIterator[tuple[Gateway, Wire]]:
    async with gateway_in_process(TABLE, open_service) as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        yield gateway, wire


@pytest.mark.usefixtures("path")
async def test_long_answer_is_kept_and_a_preview_names_every_hit() -> None:
    async with client() as (gateway, wire):
        answer = await result(wire, "k_search", {"hits": 50})
        text = said(answer)
        whole = msgspec.json.encode(Results(results=[
            Found(id=f"note-{n}", preview=f"Note {n}", score=1 / (n + 1), snippet="x" * 300) for n in range(50)
        ])).decode()  # fmt: skip
        id_ = hashlib.sha256(whole.encode()).hexdigest()[:12]
        assert text.startswith("📁 Output cached: ")
        assert f"({len(whole.encode()) / 1024:.1f}KB)" in text
        assert "Preview: 50 results" in text
        assert id_ in text
        for n in range(50):
            assert f"- note-{n} | Note {n} | {1 / (n + 1):.4g}" in text
        assert answer["structuredContent"]["cached"]["id"] == id_
        tool = next(tool for tool in gateway.surface("all").listed_tools if tool["name"] == "k_search")
        jsonschema.validate(answer["structuredContent"], tool["outputSchema"])
        short = await result(wire, "k_search", {"hits": 1})
        jsonschema.validate(short["structuredContent"], tool["outputSchema"])
        assert "results" in short["structuredContent"]
        read = await result(wire, "scratchpad_read", {"id": id_})
        assert said(read) == whole
        assert read["structuredContent"] == {"text": whole}
        listed = (await result(wire, "scratchpad_list", {}))["structuredContent"]
        (entry,) = listed["entries"]
        assert (entry["id"], entry["tool"], entry["size_bytes"]) == (id_, "k_search", len(whole))
        assert entry["timestamp"].endswith("Z")
        assert listed["stats"] == {
            "total_entries": 1, "total_size_bytes": len(whole), "max_size_bytes": 10 * 1024 * 1024,
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("path")
async def test_only_long_answers_of_knowledge_tools_are_kept() -> None:
    async with client() as (_, wire):
        assert said(await result(wire, "k_read", {"size": 4095})) == "x" * 4095
        assert said(await result(wire, "o_read", {"size": 9000})) == "x" * 9000
        assert "(4.0KB)" in said(await result(wire, "k_read", {"size": 4096}))
        too_long = await result(wire, "k_read", {"size": 10 * 1024 * 1024 + 1})
        assert len(said(too_long)) == 10 * 1024 * 1024 + 1
        assert len((await result(wire, "scratchpad_list", {}))["structuredContent"]["entries"]) == 1


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("id_", ["0" * 12, "../../etc/passwd", "É"])
async def test_unknown_entry_is_an_error_that_names_it(id_: str) -> None:
    async with client() as (_, wire):
        answer = await result(wire, "scratchpad_read", {"id": id_})
        assert answer["isError"]
        assert said(answer) == f"Scratchpad entry not found: {id_}"


async def test_entry_is_seen_by_its_own_session_alone_and_on_either_path(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        gateway_in_process(TABLE, open_service) as (gateway, _),
        connected(gateway) as one,
        connected(gateway) as other,
    ):
        await one.initialize()
        await other.open_modern()
        id_ = (await result(one, "k_read", {"size": 5000}))["structuredContent"]["cached"]["id"]
        assert (await result(other, "scratchpad_read", {"id": id_}, META))["isError"]
        mine = (await result(other, "k_read", {"size": 6000}, META))["structuredContent"]["cached"]["id"]
        monkeypatch.setattr(FastPath, "recognise", lambda *_, **__: None)
        assert said(await result(one, "scratchpad_read", {"id": id_})) == "x" * 5000
        assert said(await result(other, "scratchpad_read", {"id": mine}, META)) == "x" * 6000


@pytest.fixture
def http_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpwire, "gateway_in_process", lambda: gateway_in_process(TABLE, open_service))


@pytest.mark.usefixtures("path", "http_table")
async def test_sessions_over_http_have_scratchpads_of_their_own() -> None:
    async with served() as (wire, _, _, _):
        other = HttpWire(wire.port)
        await wire.initialize()
        await other.initialize()
        kept = (await wire.rpc("tools/call", {"name": "k_read", "arguments": {"size": 5000}})).message["result"]
        read = {"name": "scratchpad_read", "arguments": {"id": kept["structuredContent"]["cached"]["id"]}}
        assert said((await wire.rpc("tools/call", read)).message["result"]) == "x" * 5000
        assert (await other.rpc("tools/call", read)).message["result"]["isError"]


@pytest.mark.usefixtures("path", "http_table")
async def test_clients_without_a_session_read_by_unguessable_ids_and_see_no_other_entries() -> None:
    """Others of the same token are other clients: an entry's id is all that leads to it."""
    async with served(Http(port=0, token="secret")) as (wire, _, _, _):

        async def call(name: str, **arguments: object) -> Any:
            params = {"name": name, "arguments": arguments}
            headers = {"authorization": "Bearer secret"}
            return (await wire.rpc("tools/call", params, modern=True, headers=headers)).message["result"]

        ids = [(await call("k_read", size=5000))["structuredContent"]["cached"]["id"] for _ in range(2)]
        # No hash of what another may know as well.
        assert len({*ids, hashlib.sha256(b"x" * 5000).hexdigest()[:12]}) == 3
        assert all(len(id_) == 32 for id_ in ids)
        assert said(await call("scratchpad_read", id=ids[0])) == "x" * 5000
        assert (await call("scratchpad_list"))["structuredContent"]["entries"] == []
        guessed = hashlib.sha256(b"x" * 5000).hexdigest()[:12]
        assert (await call("scratchpad_read", id=guessed))["isError"]


def test_least_recently_used_goes_first() -> None:
    pads = Scratchpads(max_bytes=300)
    pad = pads.open()
    ids = [entry.id for n in range(3) if (entry := pad.store("t", f"{n}" * 100)) is not None]
    assert pad.read(ids[0]) is not None
    assert pad.store("t", "3" * 100) is not None
    assert [pad.read(id_) is not None for id_ in ids] == [True, False, True]
    assert pad.size_bytes == 300
    assert pad.store("t", "4" * 301) is None
    again = pad.store("u", "0" * 100)
    assert again is not None
    assert pad.listing().entries[0].tool == "u"
    assert pad.listing().stats.total_entries == 3


def test_all_sessions_together_are_bounded_and_ended_ones_hold_nothing() -> None:
    pads = Scratchpads(max_bytes=400, max_total_bytes=500)
    one, two = pads.open(), pads.open()
    first = one.store("t", "a" * 200)
    assert first is not None
    two.store("t", "b" * 200)
    two.store("t", "c" * 100)
    assert one.size_bytes + two.size_bytes == 500
    two.store("t", "d" * 100)
    assert one.read(first.id) is None
    assert two.size_bytes == 400
    del two
    assert pads.size_bytes == 0


def test_preview_of_a_text_is_its_beginning_and_its_headings() -> None:
    text = "# Guide\n\nHow to begin.\n\n## Install\n\n" + "x " * 3000
    lines = list(scratchpad.preview_lines({"text": text}, text))
    assert lines[0].startswith("# Guide How to begin. ## Install x x")
    assert lines[1:] == ["- # Guide", "- ## Install"]
    rows = [{"source_id": "a", "target_id": "b" * 90, "similarity": 0.91234567, "reason": "…"}]
    assert list(scratchpad.preview_lines(rows, None)) == ["1 result", f"- a | {'b' * 90} | 0.9123"]
    assert json.dumps(list(scratchpad.preview_lines({"n": 1}, None))) == '["{\\"n\\":1}\\u2026"]'


def test_clients_without_a_session_are_identified_by_token_or_else_by_address() -> None:
    here, there = (
        {"type": "http", "client": (address, 1), ORIGIN: Origin("client")} for address in ("127.0.0.1", "127.0.0.2")
    )
    names = {name_of(here), name_of(there)}
    assert len(names) == 2
    for name in ("a", "b"):
        here, there = ({**each, ORIGIN: Origin("client", grant=Grant(name))} for each in (here, there))
        assert name_of(here) == name_of(there)
        names.add(name_of(here))
    assert len(names) == 4
    assert {len(name) for name in names} == {24}
