"""Duplicates of changing calls under kills: with one idempotency key, they have one effect and one answer.

For each scenario, `COPIES` clients send the same call with the same key at once, while its service, the front or the
kernel is killed. One more follows when everything has settled. Then all answers are compared, and the effect with what
one call does.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import trio

from proto.mcp import KEY as META
from proto.operation import CLIENT, Access
from proto.ops import load
from tests.chaos.clients import CallOutcome, read_answer
from tests.chaos.system import System
from tests.system.mounts.mounting import small, write
from tests.system.running import free_port

COPIES = 100
QUIET_S = 120.0

SETTLED_S = 120.0
"""Time for all copies of a call to be answered."""

FINAL = frozenset({"operation", "invalid_params", "forbidden", "unknown_operation", "maybe_executed", "error"})
"""Failures that a client does not repeat."""


class Client:
    """An HTTP client that repeats each call with its key until it is answered."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=COPIES, max_keepalive_connections=COPIES)
        self._http = httpx.AsyncClient(timeout=30.0, limits=limits)
        self._url = url
        self.repeated = 0

    async def call(self, tool: str, arguments: Mapping[str, Any], key: str = "") -> CallOutcome:
        """Call a tool until it is answered; by default with a key of its own."""
        meta = {
            META: key or uuid.uuid4().hex,
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "duplicates", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        headers = {
            "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
        }  # fmt: skip
        said = CallOutcome("hung")
        with trio.move_on_after(SETTLED_S):
            while True:
                said = await self._once(body, headers)
                if said.ok or said.kind in FINAL:
                    return said
                self.repeated += 1
                await trio.sleep(0.05)
        return CallOutcome("hung", executed="maybe", text=f"last: {said.kind} {said.text}")

    async def post(self, path: str, body: bytes, key: str) -> CallOutcome:
        """Send a request that is not MCP until it is answered."""
        with trio.move_on_after(SETTLED_S):
            while True:
                try:
                    url = self._url.removesuffix("/mcp") + path
                    response = await self._http.post(url, content=body, headers={"Idempotency-Key": key})
                except httpx.HTTPError:
                    response = None
                if response is not None and response.status_code in (200, 202):
                    return CallOutcome("ok", response.json())
                if response is not None and response.status_code < 500 and response.status_code != 429:
                    return CallOutcome("error", text=response.text)
                self.repeated += 1
                await trio.sleep(0.05)
        return CallOutcome("hung", executed="maybe")

    async def _once(self, body: bytes, headers: Mapping[str, str]) -> CallOutcome:
        try:
            response = await self._http.post(self._url, content=body, headers=headers)
        except httpx.HTTPError as error:
            return CallOutcome("lost", executed="maybe", text=repr(error))
        return read_answer(response.text) if response.text else CallOutcome(f"http {response.status_code}")

    async def aclose(self) -> None:
        await self._http.aclose()


@dataclass
class World:
    """What a scenario works on."""

    system: System
    client: Client
    root: Path
    number: int
    """Number of the scenario in this run, for names."""

    async def ask(self, tool: str, **arguments: Any) -> Any:
        """Call a tool; its failure is an error of the scenario."""
        said = await self.client.call(tool, arguments)
        assert said.ok, f"{tool} {arguments}: {said.kind} {said.text}"
        return said.result

    async def step(self, op: str, **params: Any) -> Any:
        """Call an operation that is a step of the composite tools."""
        tool, field_ = ("query", "steps") if TABLE[op].access is Access.READ else ("execute", "operations")
        said = await self.ask(tool, **{field_: [{"op": op, "params": params}]})
        return said if tool == "query" else said["results"][0]

    def file(self, text: str, suffix: str = "yaml") -> str:
        """Make a file for this scenario."""
        path = self.root / f"d{self.number}.{suffix}"
        path.write_text(text)
        return str(path)

    def folder(self, *names: str) -> Path:
        """Make a folder for this scenario, with files of these names."""
        folder = self.root / f"f{self.number}"
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{self.number} {name}\n")
        return folder

    @property
    def name(self) -> str:
        return f"d{self.number}"


Check = Callable[[Any], Awaitable[str]]
"""Takes the answer; returns a description of the error in its effect, or ""."""


@dataclass(frozen=True)
class Prepared:
    """A call that is about to be sent, and the check of its effect."""

    arguments: Mapping[str, Any]
    check: Check
    tool: str = ""
    """The tool that carries it; by default the operation itself."""
    may_be_refused: bool = False
    """Whether all copies may fail without an effect."""


Prepare = Callable[[World], Awaitable[Prepared]]
TABLE = load()
SCENARIOS: dict[str, Prepare] = {}

LEFT_OUT = {
    "ops_execute": "the scenarios of documents are its steps",
    "documents_session": "the scenarios of sessions are its actions",
    "documents_download": "it needs a server on another machine",
    "documents_restore": "it writes the same files again",
    "services_restart": "one more restart changes nothing",
}


def scenario(name: str) -> Callable[[Prepare], Prepare]:
    """Register the scenario of an operation."""

    def register(prepare: Prepare) -> Prepare:
        SCENARIOS[name] = prepare
        return prepare

    return register


def changing() -> list[str]:
    """Return the names of the operations with which a client changes something."""
    return [name for name, op in TABLE.items() if op.access is not Access.READ and op.admits(CLIENT)]


def differs(found: object, expected: object) -> str:
    return "" if found == expected else f"found {found!r}, expected {expected!r}"


def read_text(path: str) -> str:
    """Return the text of a file; "" if it does not exist."""
    return Path(path).read_text() if Path(path).exists() else ""


def has_text(path: str, expected: str) -> Check:
    """Return the check that a file has this text, whatever the answer is."""

    async def check(_: Any) -> str:
        return differs(read_text(path), expected)

    return check


@dataclass
class Tally:
    """The result of a run."""

    calls: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unsure: Counter[str] = field(default_factory=Counter)
    """Answers "may have executed" to all copies, by operation."""
    repeated: int = 0

    def report(self) -> str:
        rounds = min(self.calls.values(), default=0)
        lines = [
            f"{sum(self.calls.values())} calls of {len(self.calls)} operations, each {COPIES} times at once, "
            f"at least {rounds} times; {self.repeated} requests were repeated",
            "kills: " + ", ".join(f"{what} {count}" for what, count in self.kills.most_common()),
        ]
        if self.unsure:
            lines.append("answered with may have executed: " + ", ".join(f"{op} {n}" for op, n in self.unsure.items()))
        return "\n".join([*lines, f"wrong: {len(self.wrong)}", *self.wrong[:40]])


class Run:
    """Sends duplicates of every scenario in turn until the time is over."""

    def __init__(self, system: System, chance: random.Random) -> None:
        self.tally = Tally()
        self._system = system
        self._chance = chance
        self._client = Client(f"http://127.0.0.1:{system.port}/mcp")

    async def run(self, seconds: float, only: str | None = None) -> Tally:
        """Run all scenarios at least once, then go on until `seconds` have passed."""
        until = time.monotonic() + seconds
        number = 0
        names = [name for name in SCENARIOS if only in (None, name)]
        while True:
            self._chance.shuffle(names)
            for name in names:
                if time.monotonic() > until and self.tally.calls[name]:
                    continue
                number += 1
                world = World(self._system, self._client, self._system.root, number)
                try:
                    await self._one(name, world)
                except (AssertionError, KeyError, IndexError, TypeError, OSError) as error:
                    self.tally.wrong.append(f"{name} {number}: {error!r}")
            if time.monotonic() > until:
                break
        self.tally.repeated = self._client.repeated
        await self._client.aclose()
        return self.tally

    async def _one(self, name: str, world: World) -> None:
        prepared = await SCENARIOS[name](world)
        key = uuid.uuid4().hex
        answers: list[CallOutcome] = []

        async def send() -> None:
            answers.append(await self._send(name, prepared, key))

        async with trio.open_nursery() as nursery:
            for _ in range(COPIES):
                nursery.start_soon(send)
            nursery.start_soon(self._kill, TABLE[name].service if name in TABLE else "mcp_small")
        self.tally.calls[name] += 1
        # One more, after everything has settled.
        answers.append(await self._send(name, prepared, key))
        kinds = Counter(said.kind for said in answers)
        if set(kinds) == {"maybe_executed"}:
            self.tally.unsure[name] += 1
            return
        if prepared.may_be_refused and set(kinds) == {"operation"}:
            return
        if set(kinds) != {"ok"}:
            bad = next(said for said in answers if not said.ok)
            self.tally.wrong.append(f"{name} {world.number}: {dict(kinds)}: {bad.text[:300]}")
            return
        texts = {json.dumps(said.result, sort_keys=True) for said in answers}
        if len(texts) > 1:
            self.tally.wrong.append(f"{name} {world.number}: {len(texts)} different answers: {sorted(texts)[:3]}")
        if problem := await prepared.check(answers[0].result):
            self.tally.wrong.append(f"{name} {world.number}: {problem[:400]}")

    async def _send(self, name: str, prepared: Prepared, key: str) -> CallOutcome:
        if prepared.tool.startswith("/"):
            return await self._client.post(prepared.tool, json.dumps(prepared.arguments).encode(), key)
        if prepared.tool in ("execute", "session"):
            op, params = TABLE[name], dict(prepared.arguments)
            if prepared.tool == "session":
                action = op.step.removeprefix("session.")
                return await self._client.call("session", {"action": action, "params": params}, key)
            return await self._client.call("execute", {"operations": [{"op": op.name, "params": params}]}, key)
        return await self._client.call(prepared.tool or name, prepared.arguments, key)

    async def _kill(self, service: str) -> None:
        """Kill some of the processes that the call passes through, while it is in flight."""
        for _ in range(self._chance.choice((1, 1, 2))):
            await trio.sleep(self._chance.expovariate(1 / 0.08))
            what = self._chance.choice((service, service, "front", "kernel"))
            if what == "kernel":
                kernel = self._system.process
                if kernel is not None and kernel.poll() is None:
                    self._system.look()
                    kernel.kill()
                    # `System.keep` starts the next one.
                    await trio.to_thread.run_sync(kernel.wait)
            else:
                found = await self._system.service(what)
                if found is None or not found.get("pid"):
                    continue
                try:
                    os.kill(found["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.tally.kills[what] += 1


async def duplicates(folder: Path, chance: random.Random, *, seconds: float, only: str | None = None) -> Tally:
    """Start a system, run all scenarios, and end it."""
    # It registers the scenarios, with names of this module.
    importlib.import_module("tests.chaos.scenarios")
    data, root = folder / "data", folder / "root"
    root.mkdir(parents=True)
    data.mkdir(mode=0o700)
    write(data, {"small": small(start="eager")})
    system = System(data, root, free_port())
    system.start()
    try:
        assert await system.wait_ready(within_s=QUIET_S) is not None, "the system did not start"
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(system.keep, stop)
            tally = await Run(system, chance).run(seconds, only)
            stop.set()
            nursery.cancel_scope.cancel()
    finally:
        await system.end()
    return tally
