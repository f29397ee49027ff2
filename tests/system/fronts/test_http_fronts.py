"""Sessions over HTTP go on when a front dies, and are the same at each front of a pool, with the SDK's own client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.bench.flood import flood
from tests.system.access.tokens import Answer, HttpClient
from tests.system.answers import message_of
from tests.system.cli.clients import data_directory
from tests.system.running import HTTP, RunningKernel, running, wait_until


@pytest.fixture(scope="module")
def one_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    with (
        data_directory(tmp_path_factory.mktemp("one")) as data,
        running(data, options=HTTP, services=["front", "echo"]) as kernel,
    ):
        yield kernel


@pytest.fixture(scope="module")
def two_fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("two")
    (folder / "root").mkdir()
    for n in range(12):
        (folder / "root" / f"note-{n}.md").write_text(f"# Note {n}\n\n" + "The sea star grows an arm back.\n" * 200)
    with (
        data_directory(folder / "data") as data,
        running(
            data,
            [folder / "root"],
            options=HTTP,
            services=["front", "echo", "knowledge", "watch"],
            environment={"LINCKIA_SERVICES__FRONT__WORKERS": "2"},
        ) as kernel,
    ):
        yield kernel


class Repeating(httpx2.AsyncHTTPTransport):
    """Repeats requests that were cut off, as a client may whose calls are idempotent; counts repetitions and opened
    connections.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cut = 0
        self.initialized = 0
        self.statuses: set[int] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            self.initialized += b'"initialize"' in await request.aread()
        while True:
            try:
                response = await super().handle_async_request(request)
                if request.method == "POST":
                    await response.aread()
                self.statuses.add(response.status_code)
                return response
            except httpx2.TransportError:
                self.cut += 1
                await anyio.sleep(0.01)


@contextlib.asynccontextmanager
async def session(url: str) -> AsyncIterator[tuple[ClientSession, Repeating]]:
    transport = Repeating()
    async with (
        httpx2.AsyncClient(transport=transport, timeout=60) as client,
        streamable_http_client(url, http_client=client) as (read, write),
        ClientSession(read, write) as opened,
    ):
        await opened.initialize()
        yield opened, transport


def url_of(kernel: RunningKernel, surface: str = "all") -> str:
    return f"{kernel.status()['http_url']}/{surface}"


def test_http_sessions_survive_the_deaths_of_a_front(one_front: RunningKernel) -> None:
    """Calls on both ways, the fast path's and the SDK's, while fronts die under them."""
    kernel, deaths = one_front, 4
    before = kernel.service("front")["deaths"]
    calls = [0, 0]
    """Number of calls by client; the event is set when one more is answered."""
    answered = [anyio.Event()]

    async def client(number: int, done: anyio.Event) -> None:
        async with session(url_of(kernel)) as (opened, transport):
            while not done.is_set():
                result = await opened.call_tool("mcp.echo", {"message": str(calls[number])})
                assert result.structured_content == {"message": str(calls[number])}
                assert (await opened.list_tools()).tools
                calls[number] += 1
                answered[0].set()
                answered[0] = anyio.Event()
            assert transport.initialized == 1
            assert transport.statuses <= {200, 202}

    async def main() -> None:
        done = anyio.Event()
        with anyio.fail_after(120):
            async with anyio.create_task_group() as clients:
                for number in range(2):
                    clients.start_soon(client, number, done)
                for _ in range(deaths):
                    answers = list(calls)
                    while any(now < then + 3 for now, then in zip(calls, answers, strict=True)):
                        await answered[0].wait()
                    await anyio.to_thread.run_sync(kernel.kill, "front")
                done.set()

    anyio.run(main, backend="asyncio")
    kernel.wait_ready("front")
    assert kernel.service("front")["deaths"] == {**before, "signal": before.get("signal", 0) + deaths}


def test_fronts_that_are_restarted_in_order_cut_no_request(one_front: RunningKernel) -> None:
    """Clients keep their connections and send nothing twice: one pauses between requests, and one does not."""
    url, restarts = url_of(one_front), 4
    calls = [0, 0]
    done = threading.Event()

    def client(number: int, pause_s: float) -> None:
        call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        headers = {"accept": "application/json, text/event-stream"}
        with httpx2.Client(timeout=30, trust_env=False) as http:
            client = {"name": "kept", "version": "1"}
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
            hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            answer = http.post(url, json=hello, headers=headers)
            headers |= {"mcp-session-id": answer.headers["mcp-session-id"]}
            while not done.is_set():
                call["params"] = {"name": "mcp.echo", "arguments": {"message": str(calls[number])}}
                answer = http.post(url, json=call, headers=headers)
                assert message_of(answer.text)["result"]["structuredContent"] == {"message": str(calls[number])}
                calls[number] += 1
                time.sleep(pause_s)

    before = one_front.service("front")["deaths"]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        clients = [threads.submit(client, number, pause_s) for number, pause_s in enumerate((0, 0.05))]
        try:
            for _ in range(restarts):
                answered = list(calls)
                while any(now < then + 3 for now, then in zip(calls, answered, strict=True)):
                    time.sleep(0.01)
                    assert not any(client.done() for client in clients)
                one_front.call("kernel_restart", {"service": "front"})
        finally:
            done.set()
        for each in clients:
            each.result()
    assert one_front.service("front")["deaths"] == {**before, "stopped": before.get("stopped", 0) + restarts}


class Wire(HttpClient):
    """A session; each request on a connection of its own, which the system hands to any front."""

    def __init__(self, kernel: RunningKernel, surface: str = "all") -> None:
        super().__init__(kernel, None)
        self.surface = surface
        self.session = self.initialize(surface)

    def call(self, name: str, **arguments: object) -> Answer:
        params = {"name": name, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        return self.in_session(self.session, message, self.surface)

    def echo(self) -> int:
        """The status."""
        return self.call("mcp.echo", message="a").status

    def end(self) -> int:
        return self.request("DELETE", f"/mcp/{self.surface}", mcp_session_id=self.session).status


def test_settings_of_a_session_survive_a_death_and_an_ended_session_stays_ended(one_front: RunningKernel) -> None:
    one, other, altered = Wire(one_front), Wire(one_front), Wire(one_front)
    assert (one.echo(), other.echo(), other.end()) == (200, 200, 200)
    altered.session = one.session[:-1] + ("A" if one.session[-1] != "A" else "B")
    for _ in range(2):
        assert (one.echo(), other.echo(), altered.echo()) == (200, 404, 404)
        one_front.kill("front")
        one_front.wait_ready("front")
    key = one_front.data_dir / "session.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text() not in json.dumps(one_front.status())


def test_twenty_clients_of_two_fronts_find_their_session_at_both(two_fronts: RunningKernel) -> None:
    kernel = two_fronts
    assert {"front", "front-2"} <= set(kernel.services())

    async def client() -> None:
        async with session(url_of(kernel)) as (opened, transport):
            for number in range(15):
                result = await opened.call_tool("mcp.echo", {"message": str(number)})
                assert result.structured_content == {"message": str(number)}
                if number % 5 == 0:
                    assert (await opened.list_tools()).tools
                    # Another connection, which another front may take.
                    await anyio.sleep(0.02)
            assert (transport.initialized, transport.cut) == (1, 0)
            assert transport.statuses <= {200, 202}

    async def main() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as clients:
                for _ in range(20):
                    clients.start_soon(client)

    anyio.run(main, backend="asyncio")


def test_a_message_to_one_front_takes_effect_at_the_other(two_fronts: RunningKernel) -> None:
    """The scratchpad's entries, a session's end: each request on a connection of its own."""
    wire = Wire(two_fronts, "knowledge")
    cached = 0
    for number in range(12):
        result = wire.call("notes_read", id=f"note-{number}").json["result"]
        assert result["isError"] is False
        if "cached" in result["structuredContent"]:
            cached += 1
            for _ in range(3):
                read = wire.call("scratchpad_read", id=result["structuredContent"]["cached"]["id"])
                assert read.json["result"]["isError"] is False, read.text
    assert cached == 12
    assert wire.end() == 200
    # The other front hears of it a moment later.
    wait_until(lambda: {wire.echo() for _ in range(12)} == {404})


def test_if_one_front_dies_the_other_continues_its_sessions(two_fronts: RunningKernel) -> None:
    wires = [Wire(two_fronts) for _ in range(8)]
    assert {wire.echo() for wire in wires} == {200}
    two_fronts.kill("front-2")
    assert {wire.echo() for wire in wires} == {200}


def test_a_flood_of_long_bodies_costs_neither_the_front_nor_anothers_answers(one_front: RunningKernel) -> None:
    """A hundred megabytes and more at once, by one client, again and again; `tests.bench.flood` has the times."""
    before = one_front.service("front")
    victim = Wire(one_front)
    port = urlsplit(url_of(one_front)).port
    spawning = multiprocessing.get_context("spawn")
    ready, stop = spawning.Event(), spawning.Event()
    # Send 40 bodies of 8 MiB: more than may be in flight, and more than a front had memory for.
    flooding = spawning.Process(target=flood, args=(port, "bodies of 8 MiB", 40, ready, stop), daemon=True)
    flooding.start()
    try:
        assert ready.wait(30)
        for _ in range(6):
            assert victim.echo() == 200
            assert victim.request("GET", "/health").status == 200
    finally:
        stop.set()
        flooding.join(10)
        flooding.kill()
    after = one_front.service("front")
    assert (after["pid"], after["deaths"]) == (before["pid"], before["deaths"])


def test_an_invalid_key_is_replaced(tmp_path: Path) -> None:
    from kernel.configure.launch import session_key

    (tmp_path / "session.key").write_text("short")
    made = session_key(tmp_path)
    assert len(bytes.fromhex(made)) == 32
    assert session_key(tmp_path) == made
    assert stat.S_IMODE((tmp_path / "session.key").stat().st_mode) == 0o600
    assert session_key(tmp_path / "missing") != made


def test_a_session_continues_in_another_kernel_with_the_same_data(one_front: RunningKernel) -> None:
    """The last of this kernel."""
    wire = Wire(one_front)
    assert wire.echo() == 200
    one_front.process.kill()
    one_front.process.wait()
    with running(one_front.data_dir, options=HTTP, services=["echo"]) as second:
        wire.address = HttpClient(second, None).address
        assert wire.echo() == 200
