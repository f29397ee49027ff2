"""A client on stdio that counts: every answer belongs to one question, and every question gets one answer.

It sends any bytes, reads only when it is told to, and judges what the server writes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from proto.json_types import JsonObject
from services.mounts.torture.process import Process

PROTOCOL = "2025-06-18"
GREETING: JsonObject = {
    "protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": {"name": "linckia-torture", "version": "1"},
}  # fmt: skip

BUSY_SHARE = 0.3
"""A server that uses this share of a processor while a call waits is busy, not hung."""
MAX_LIMITS = 6
"""A busy server gets so many limits."""

Noted = Callable[[str, str], None]
"""Takes the kind of a fault, and its description."""


class Gone(Exception):
    """The server does not take messages any more."""


@dataclass(eq=False)
class Asked:
    """A request that was sent.

    Attributes:
        must: whether it is owed an answer; otherwise it may have one.
        times: how many requests were sent with this id.
        done: set once it has its answers, or no more can come.
    """

    what: str
    must: bool
    times: int = 1
    answers: list[JsonObject] = field(default_factory=list)
    done: trio.Event = field(default_factory=trio.Event)

    @property
    def answer(self) -> JsonObject | None:
        return self.answers[0] if self.answers else None


def encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message as a line."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


class Client:
    """A connection to one process of a server.

    Attributes:
        is_expected_to_end: set before the process is killed, or asked to end.
    """

    def __init__(self, process: Process, noted: Noted) -> None:
        self.process = process
        self.asked: dict[str, Asked] = {}
        self._finished: dict[str, Asked] = {}
        self.info: JsonObject = {}
        self.is_expected_to_end = False
        self.is_silent = trio.Event()
        """Set when stdout has ended."""
        self._noted = noted
        self._numbers = itertools.count(1)
        self._writing = trio.Lock()
        self._may_read = trio.Event()
        self._may_read.set()
        self._answered = 0

    @classmethod
    def start(
        cls, nursery: trio.Nursery, command: Sequence[str], noted: Noted, environment: Mapping[str, str] | None = None
    ) -> Client:
        """Start a server, and read from it. Raises OSError."""
        client = cls(Process(command, environment), noted)
        nursery.start_soon(client.process.run)
        nursery.start_soon(client.run, nursery)
        return client

    async def end(self) -> None:
        """Kill the process that was started, and close its pipes."""
        self.is_expected_to_end = True
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.process.kill)
            await self.process.close()
        self.resume()

    @property
    def is_over(self) -> bool:
        """Whether no more answers can come."""
        return self.is_silent.is_set()

    async def run(self, nursery: trio.Nursery) -> None:
        """Read until stdout ends."""
        rest = b""
        with contextlib.suppress(trio.ClosedResourceError, OSError):
            while True:
                await self._may_read.wait()
                if not (data := await self.process.stdout.receive_some(262_144)):
                    break
                *lines, rest = (rest + data).split(b"\n") if b"\n" in data else (rest + data,)
                for line in lines:
                    self._read(line, nursery)
        self.is_silent.set()
        for asked in self.asked.values():
            asked.done.set()
        if rest.strip() and not self.is_expected_to_end and not await self.process.gone(1):
            self._noted("torn", f"stdout ended within a message: {_shown(rest)}")

    def pause(self) -> None:
        """Read nothing until `resume`."""
        self._may_read = trio.Event()

    def resume(self) -> None:
        self._may_read.set()

    def _read(self, line: bytes, nursery: trio.Nursery) -> None:
        if not line.strip():
            return
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            self._noted("torn", f"a line on stdout is no message: {_shown(line)}")
            return
        for message in said if isinstance(said, list) else [said]:
            if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                self._noted("torn", f"a line on stdout is no message: {_shown(line)}")
            elif "method" in message:
                if message.get("id") is not None:
                    nursery.start_soon(self._reply, message)
            elif "result" in message or "error" in message:
                self._settle(message, line)
            else:
                self._noted("torn", f"a line on stdout is no message: {_shown(line)}")

    def _settle(self, message: JsonObject, line: bytes) -> None:
        number = message.get("id")
        if number is None:
            # JSON-RPC's answer to what has no id that can be read.
            if "error" not in message:
                self._noted("foreign", f"a result without an id: {_shown(line)}")
            return
        key = json.dumps(number)
        asked = self.asked.get(key) or self._finished.get(key)
        if asked is None:
            self._noted("foreign", f"an answer to id {json.dumps(number)[:60]}, which was never asked: {_shown(line)}")
            return
        asked.answers.append(message)
        self._answered += 1
        if len(asked.answers) > asked.times:
            self._noted("doubled", f"{asked.what}: {len(asked.answers)} answers")
        if len(asked.answers) >= asked.times:
            asked.done.set()

    async def _reply(self, message: JsonObject) -> None:
        """Answer a request of the server."""
        error = {"code": -32601, "message": "this client offers nothing"}
        answer: JsonObject = {"result": {}} if message["method"] == "ping" else {"error": error}
        with contextlib.suppress(Gone):
            await self.write(encoded({"id": message["id"], **answer}))

    async def write(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """Write bytes, in several writes if there are several pieces. Raises Gone."""
        async with self._writing:
            try:
                for number, piece in enumerate(pieces):
                    if number:
                        await trio.sleep(pause_s)
                    await self.process.stdin.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise Gone from None

    def expect(self, number: object, what: str, *, must: bool = True) -> Asked:
        """Count an id as asked. The same one may be asked several times."""
        key = json.dumps(number)
        if key in self.asked:
            self.asked[key].times += 1
            self.asked[key].must = False
        else:
            self.asked[key] = Asked(what, must)
            if self.is_over:
                self.asked[key].done.set()
        return self.asked[key]

    def finish(self, key: str) -> None:
        """Forget a request that was answered and counted, but not its id: one more answer is still a fault."""
        self._finished[key] = self.asked.pop(key)

    def next_id(self) -> int:
        return next(self._numbers)

    async def ask(
        self, method: str, params: object = None, *, number: object = None, must: bool = True, what: str = ""
    ) -> Asked:
        """Send a request. Raises Gone."""
        number = self.next_id() if number is None else number
        asked = self.expect(number, what or method, must=must)
        await self.write(encoded({"id": number, "method": method, **({} if params is None else {"params": params})}))
        return asked

    async def tell(self, method: str, params: object = None) -> None:
        """Send a notification. Raises Gone."""
        await self.write(encoded({"method": method, **({} if params is None else {"params": params})}))

    async def call(self, tool: str, arguments: JsonObject, **more: Any) -> Asked:
        """Call a tool. Raises Gone."""
        return await self.ask("tools/call", {"name": tool, "arguments": arguments}, what=f"a call of {tool}", **more)

    async def greet(self, limit_s: float) -> bool:
        """Shake hands; return whether the server did."""
        asked = await self.ask("initialize", GREETING)
        if await self.wait([asked], limit_s) or asked.answer is None:
            return False
        self.info = asked.answer.get("result") or {}
        await self.tell("notifications/initialized")
        return True

    async def wait(self, asked: Sequence[Asked], limit_s: float) -> list[Asked]:
        """Wait for the answers; return those that are owed and missing. The end of the process ends the wait.

        The limit begins again while other answers arrive, and a few times while the server computes.
        """
        missing = self._missing(asked)
        for _ in range(MAX_LIMITS):
            while missing:
                answered, used_s = self._answered, self.process.processor_s()
                with trio.move_on_after(limit_s):
                    await self._answers_or_end(missing)
                if (missing := self._missing(missing)) and self._answered == answered:
                    break
                if self.is_silent.is_set():
                    return missing
            if not missing or self.process.processor_s() - used_s < BUSY_SHARE * limit_s:
                break
        return missing

    async def _answers_or_end(self, asked: Sequence[Asked]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end, nursery.cancel_scope)
            for each in asked:
                await each.done.wait()
            nursery.cancel_scope.cancel()

    async def _end(self, scope: trio.CancelScope) -> None:
        await self.is_silent.wait()
        scope.cancel()

    @staticmethod
    def _missing(asked: Sequence[Asked]) -> list[Asked]:
        return [each for each in asked if each.must and not each.answers]


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", "replace").strip()
    return text if len(text) <= 120 else f"{text[:117]}…"


@asynccontextmanager
async def opened(
    command: Sequence[str], noted: Noted, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Client]:
    """Start a server and read from it; it is killed at the end. Raises OSError."""
    async with trio.open_nursery() as nursery:
        client = Client.start(nursery, command, noted, environment)
        try:
            yield client
        finally:
            await client.end()
