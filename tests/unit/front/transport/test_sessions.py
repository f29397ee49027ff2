"""Sessions over HTTP belong to no front: a good id is served by any, and one that is forged by none."""

from __future__ import annotations

import contextlib
import string
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from kernel.control.handoff import SessionStates
from proto import mcp
from proto.wire.frames import Event, pack_body
from services.front.protocol.session import MAX_SUBSCRIPTIONS, SessionState, read_state
from services.front.scratchpad import Scratchpads
from services.front.transport import session_ids
from services.front.transport.http_sessions import HttpSession, Peers, Sessions
from services.front.transport.session_ids import SessionIds
from tests.unit.front.httpwire import HttpWire, Reply, served
from tests.unit.front.inprocess import InProcess
from tests.unit.front.wire import gateway_in_process

STRING = {"name": "t_string", "arguments": {}}
CLIENT = {"name": "test", "version": "1"}


def given(token_key: str = "", **capabilities: Any) -> str:
    return SessionIds(b"k" * 32).issue("all", "2025-11-25", capabilities, CLIENT, token_key)


# ---- ids ----------------------------------------------------------------------------------------------------------


def test_a_session_id_contains_the_result_of_the_handshake() -> None:
    claims = SessionIds(b"k" * 32).verify(given(sampling={}, roots={"listChanged": True}), "")
    assert claims is not None
    assert (claims.surface, claims.version, claims.client) == ("all", "2025-11-25", CLIENT)
    assert claims.capabilities == {"sampling": {}, "roots": {"listChanged": True}}
    assert len({given() for _ in range(100)}) == 100


def test_an_altered_session_id_is_invalid() -> None:
    ids, good = SessionIds(b"k" * 32), given()
    assert ids.verify(good, "") is not None
    assert SessionIds(b"l" * 32).verify(good, "") is None
    letters = string.ascii_letters + string.digits + "-_."
    for at, old in enumerate(good):
        for new in {letters[at % len(letters)], letters[(at * 7 + 3) % len(letters)], ""} - {old}:
            assert ids.verify(good[:at] + new + good[at + 1 :], "") is None, at
    for bad in ("", ".", "0" * 32, good + "=", good + ".", f"{good}\n", good.partition(".")[0], "é", "x" * 100_000):
        assert ids.verify(bad, "") is None


def test_a_session_id_is_valid_for_the_opening_token_only() -> None:
    ids, anyones, adas = SessionIds(b"k" * 32), given(), given("of ada")
    assert ids.verify(adas, "of ada") is not None
    assert ids.verify(anyones, "of ada") is None
    assert ids.verify(adas, "of bob") is None
    assert ids.verify(adas, "") is None
    assert ids.verify(anyones, "") is not None


def test_a_session_id_is_valid_for_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    good = given()
    later = time.time() + session_ids.LIFETIME_S + 1
    monkeypatch.setattr(session_ids, "now", lambda: later)
    assert SessionIds(b"k" * 32).verify(good, "") is None


@pytest.mark.parametrize(
    "capabilities",
    [
        {"roots": {}, "experimental": {f"x{n}": {"a": "b" * 50} for n in range(40)}},
        {"roots": {"listChanged": True}, "sampling": {"context": {"y": "é" * 2000}}},
        {"elicitation": {}, "💥" * 1000: {}},
    ],
)
def test_a_session_id_is_short_for_any_client_info(capabilities: dict[str, Any]) -> None:
    talkative = {"name": "💥" * 5000, "version": "é" * 5000, "title": "t" * 5000}
    session_id = SessionIds(b"k" * 32).issue("transcripts", "2025-11-25", capabilities, talkative, "")
    assert len(session_id) <= session_ids.MAX_CHARACTERS
    claims = SessionIds(b"k" * 32).verify(session_id, "")
    assert claims is not None
    assert claims.capabilities.keys() == capabilities.keys() & {"roots", "sampling", "elicitation"}


def test_stored_session_data_is_bounded() -> None:
    state = SessionState()
    for n in range(5000):
        state.subscribe(f"test://{n}")
    assert len(state.uris) == MAX_SUBSCRIPTIONS
    kept = read_state(state.encoded())
    assert len(state.encoded()) <= 8192
    assert kept.uris == state.uris[-len(kept.uris) :]
    states = SessionStates(max_bytes=10_000)
    for n in range(100):
        states.keep(str(n), "x" * 1000)
        assert states.get("0") is not None or n > 7
    assert states.get("99") == "x" * 1000
    assert states.get("50") is None


# ---- sessions -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def sessions(**limits: Any) -> AsyncIterator[tuple[Sessions, Any]]:
    """Sessions of a surface without HTTP."""
    async with gateway_in_process() as (gateway, dispatcher), trio.open_nursery() as nursery:
        server = await gateway.server("all")
        peers = Peers(dispatcher, dispatcher, has_peers=False)
        made = Sessions(SessionIds(b"k" * 32), peers, Scratchpads(), **limits)
        await nursery.start(made.run)
        yield made, server
        nursery.cancel_scope.cancel()


async def used(sessions: Sessions, server: Any, session_id: str) -> HttpSession:
    session = await sessions.find(session_id, "", server)
    assert session is not None
    return session


async def test_the_longest_idle_session_is_dropped_and_recreated_on_use(autojump_clock: trio.testing.MockClock) -> None:
    async with sessions(limit=3) as (made, server):
        first, *others = [given() for _ in range(6)]
        session = await used(made, server, first)
        session.state.level = "error"
        await session.changed()
        for other in others:
            await trio.sleep(1)
            with session:
                await used(made, server, other)
        assert len(made) == 3
        assert await made.find(first, "", server) is session, "it was in use"
        for other in others:
            await trio.sleep(1)
            await used(made, server, other)
        again = await used(made, server, first)
        assert again is not session
        assert again.state.level == "error"


async def test_sessions_with_scratchpads_are_kept_before_those_without(autojump_clock: trio.testing.MockClock) -> None:
    async with sessions(limit=2) as (made, server):
        session = await used(made, server, given())
        session.scratchpad.store("t", "x" * 5000)
        for _ in range(5):
            await trio.sleep(1)
            await used(made, server, given())
        assert await made.find(session.id, "", server) is session


async def test_unused_sessions_are_dropped(autojump_clock: trio.testing.MockClock) -> None:
    async with sessions(idle_s=10) as (made, server):
        session = await used(made, server, given())
        with session:
            await trio.sleep(1000)
            assert len(made) == 1
        await trio.sleep(21)
        assert len(made) == 0
        assert await made.find(session.id, "", server) is not None


# ---- over HTTP ----------------------------------------------------------------------------------------------------


async def test_six_hundred_new_sessions_end_no_existing_one() -> None:
    async with served() as (http, *_):
        await http.initialize()
        assert (await http.rpc("logging/setLevel", {"level": "error"})).status == 200
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        opening = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        head = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\ncontent-type: application/json\r\n"
        request = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(opening), opening)
        stream, _ = await http.connect()
        answers = b""
        async with stream:
            await stream.send_all(600 * request)
            while answers.count(b'"protocolVersion"') < 600:
                answers += await stream.receive_some(1 << 20)
        assert answers.count(b"mcp-session-id: ") == 600
        assert (await http.rpc("tools/call", STRING)).status == 200
        assert (await http.rpc("tools/list")).status == 200


async def test_a_session_id_is_valid_for_one_surface() -> None:
    async with served() as (http, *_):
        await http.initialize()
        assert (await http.rpc("tools/call", STRING, path="/mcp/all")).status == 200
        assert (await http.rpc("tools/call", STRING, path="/mcp/yaml")).status == 404


async def test_a_refused_handshake_opens_nothing() -> None:
    async with served() as (http, *_):
        wrong = {"protocolVersion": "2025-11-25", "capabilities": {"roots": 5}, "clientInfo": CLIENT}
        refused = await http.rpc("initialize", wrong)
        assert "error" in refused.message
        headers = {"mcp-session-id": refused.headers.get("mcp-session-id", "none")}
        assert (await http.rpc("tools/call", STRING, headers=headers)).status == 404


async def test_a_handshake_in_an_unusual_form_opens_a_session_too() -> None:
    """One that the shortcut leaves to the SDK."""
    async with served() as (http, *_):
        icons = [{"src": "https://127.0.0.1/icon.png"}]
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {**CLIENT, "icons": icons}}
        opened = await http.rpc("initialize", params)
        assert opened.message["result"]["protocolVersion"] == "2025-11-25"
        headers = {"mcp-session-id": opened.headers["mcp-session-id"]}
        assert (await http.rpc("tools/call", STRING, headers=headers)).status == 200
        assert (await http.rpc("tools/list", headers=headers)).message["result"]["tools"]


class Two:
    """Two fronts of one kernel, and a client's session that both may serve."""

    def __init__(self, one: HttpWire, other: HttpWire, dispatchers: list[InProcess]) -> None:
        self.one, self.other = one, other
        self._dispatchers = dispatchers

    def publish(self, uri: str) -> None:
        """As a service does that the resource is of; the kernel tells every front."""
        event = Event(mcp.RESOURCE_UPDATED, pack_body(mcp.ResourceUpdated(uri=uri)))
        for dispatcher in self._dispatchers:
            for receive in dispatcher._receivers:
                assert dispatcher._nursery is not None
                dispatcher._nursery.start_soon(receive, event)

    async def initialize(self, **capabilities: Any) -> None:
        await self.one.initialize(capabilities=capabilities)
        self.other.session = self.one.session

    async def calls(self, wire: HttpWire, name: str, **arguments: Any) -> Any:
        return (await wire.rpc("tools/call", {"name": name, "arguments": arguments})).message["result"]


@pytest.fixture
def bridged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one front tells the others, and what the kernel keeps for them."""
    every: list[InProcess] = []
    states = SessionStates()
    begin = InProcess.__init__

    def init(self: InProcess) -> None:
        begin(self)
        self.states = states
        every.append(self)

    def publish(self: InProcess, topic: str, body: object) -> None:
        for other in every:
            for receive in other._receivers if other is not self else ():
                assert other._nursery is not None
                other._nursery.start_soon(receive, Event(topic, pack_body(body)))

    monkeypatch.setattr(InProcess, "__init__", init)
    monkeypatch.setattr(InProcess, "publish", publish)


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[Two]:
    async with served(has_peers=True) as (one, _, its, _), served(has_peers=True) as (other, _, others, _):
        yield Two(one, other, [its, others])


@pytest.mark.usefixtures("bridged")
async def test_a_session_is_the_same_at_every_front() -> None:
    async with two() as both:
        await both.initialize()
        for wire in (both.one, both.other):
            assert (await both.calls(wire, "t_string"))["isError"] is False
            assert (await wire.rpc("tools/list")).message["result"]["tools"]
        # A setting made at one front holds at the other, whether that has the session already or takes it over.
        assert (await both.other.rpc("logging/setLevel", {"level": "error"})).status == 200
        assert [len((await lines(wire)).messages) for wire in (both.one, both.other)] == [1, 1]
        assert (await both.one.rpc("logging/setLevel", {"level": "debug"})).status == 200
        assert [len((await lines(wire)).messages) for wire in (both.one, both.other)] == [3, 3]
        assert (await both.other.request("DELETE", headers=both.other.session)).status == 200
        for wire in (both.one, both.other):
            assert (await wire.rpc("tools/call", STRING)).status == 404


async def lines(wire: HttpWire) -> Reply:
    """A call that says a line of level `info`, and one of level `debug`."""
    return await wire.rpc("tools/call", {"name": "t_progress", "arguments": {"steps": 1}})


@pytest.mark.usefixtures("bridged")
async def test_an_answer_that_comes_to_another_front_reaches_the_call_that_asked() -> None:
    async with two() as both:
        await both.initialize(elicitation={})
        names = iter(["Ada", "Lovelace"])
        async for message in both.one.messages("tools/call", {"name": "t_asks", "arguments": {}}):
            if "method" in message:
                result = {"action": "accept", "content": {"name": next(names)}}
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                headers = both.other.session
                body = msgspec.json.encode(answer)
                assert (await both.other.request(body=body, headers=headers)).status == 202
        assert message["result"]["structuredContent"] == {"result": "Ada Lovelace"}


@pytest.mark.usefixtures("bridged")
async def test_a_session_listens_at_any_front_for_what_it_subscribed_to_at_another() -> None:
    """A front that has the session is notified, and one that takes it over, as after a death, asks the kernel."""
    async with two() as both, trio.open_nursery() as nursery:
        await both.initialize()
        for wire in (both.one, both.other):
            other = both.other if wire is both.one else both.one
            uri = f"t://page/{wire.port}"
            assert (await other.rpc("resources/subscribe", {"uri": uri})).status == 200
            heard = await nursery.start(wire.listen)
            with trio.fail_after(10):
                while not heard.statistics().current_buffer_used:
                    both.publish(uri)
                    await trio.sleep(0.05)
            assert heard.receive_nowait()["params"]["uri"] == uri
            assert (await other.rpc("resources/unsubscribe", {"uri": uri})).status == 200
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("bridged")
async def test_a_call_is_withdrawn_through_another_front() -> None:
    async with two() as both:
        await both.initialize()
        async with trio.open_nursery() as nursery:
            replies: list[Reply] = []

            async def wait() -> None:
                replies.append(await both.one.rpc("tools/call", {"name": "t_wait", "arguments": {}}, id=7))

            nursery.start_soon(wait)
            while not replies:
                await trio.sleep(0.05)
                await both.other.rpc("notifications/cancelled", {"requestId": 7}, id=None)
        assert replies[0].message["error"]["message"] == "Request cancelled"
