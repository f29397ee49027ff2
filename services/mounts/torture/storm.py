"""One run: the server as it is before, the storms in an order that the seed decides, and the server as it is after."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from proto.json_types import JsonObject
from services.mounts.torture.arguments import Unmade, smallest
from services.mounts.torture.client import Asked, Client, Gone
from services.mounts.torture.options import Call, Options
from services.mounts.torture.process import left_behind
from services.mounts.torture.report import Report
from services.mounts.torture.writes import Writes, is_done, said

BEFORE, AFTER = "before", "after"
START_LIMITS = 6
"""A start may take so many times the limit of an answer."""
TOO_SLOW_S = 2.0
"""A tool that takes longer is left out, since a storm makes hundreds of calls at once."""
SENDING_LIMITS = 6
MOST_PAGES = 20

Step = Callable[["Storm"], Awaitable[None]]


class Useless(Exception):
    """The server cannot be started, or not be used; the text, if there is one, says which option is wrong."""


@dataclass
class Probe:
    """A call that has no side effects, and its answer before the storm, if it is always the same."""

    call: Call
    schema: object = None
    before: Asked | None = None
    is_compared: bool = False

    def is_same(self, asked: Asked) -> bool:
        assert self.before is not None
        return bool(_content(asked) == _content(self.before))


def _content(asked: Asked) -> Any:
    answer = asked.answer or {}
    return answer.get("result", answer.get("error"))


@dataclass
class Storm:
    """The state of a run. A step makes one kind of storm once."""

    options: Options
    nursery: trio.Nursery
    report: Report
    chance: random.Random
    told: Callable[[str], None] = lambda _: None
    now: str = BEFORE
    """The kind of storm, for faults."""
    doing: str = "the start"
    """The last thing that was done to the server, for faults."""
    probes: list[Probe] = field(default_factory=list)
    writes: Writes | None = None
    _client: Client | None = None
    _hung: set[Asked] = field(default_factory=set)

    def note(self, kind: str, text: str) -> None:
        """Count a fault."""
        self.report.add(kind, self.now, text, "")
        self.told(f"{self.now}: {kind}: {text}")

    async def run(self, steps: dict[str, Step]) -> None:
        """Make all storms, then some again until the time is over. Raises Useless."""
        began = time.monotonic()
        try:
            await self._run(steps, began)
        finally:
            self.report.seconds = round(time.monotonic() - began, 1)

    async def _run(self, steps: dict[str, Step], began: float) -> None:
        await self._begin()
        order = [name for name in steps if name in self.options.storms]
        self.chance.shuffle(order)
        turns = 0
        # Each kind is tried once, even if that takes longer.
        while order and (turns < len(order) or time.monotonic() - began < self.options.seconds):
            if turns and turns % len(order) == 0:
                self.chance.shuffle(order)
            name = order[turns % len(order)]
            await self._step(name, steps[name])
            turns += 1
        await self._finish()

    async def _step(self, name: str, step: Step) -> None:
        self.now, self.doing = name, name
        self.told(f"{name} …")
        self.report.tally(name).steps += 1
        try:
            await step(self)
        except Gone:
            await self.settle()
        if self._client is not None and await self.settle():
            await self.compare(self.chance.sample(self.probes, min(2, len(self.probes))))

    async def client(self) -> Client:
        """Return a client that has shaken hands; the server is started if it does not run. Raises Useless."""
        if self._client is None:
            client = await self.start()
            with trio.move_on_after(START_LIMITS * self.options.limit_s):
                try:
                    if await client.greet(START_LIMITS * self.options.limit_s):
                        self.report.starts_s.append(round(trio.current_time() - client.process.began, 3))
                        return client
                except Gone:
                    pass
            await client.process.gone(1)
            why = " / ".join(client.process.last_lines)
            self.note("no start", f"no answer to `initialize` ({client.process.cause}): {why}")
            await self.drop()
            raise Useless
        return self._client

    async def start(self) -> Client:
        """Start the server without a handshake; another one is ended before. Raises Useless."""
        await self.drop()
        try:
            self._client = Client.start(self.nursery, self.options.command, self.note)
        except OSError as error:
            self.note("no start", f"{self.options.command[0]}: {error.strerror}")
            raise Useless from None
        return self._client

    async def drop(self, how: str = "") -> None:
        """Kill the server, and count what it leaves behind if `how` says that it should have left nothing."""
        if self._client is None:
            return
        client, self._client = self._client, None
        await client.end()
        for each in await left_behind():
            if how:
                self.note("orphan", f"{how}: {each}")
        self._count(client)

    def _count(self, client: Client) -> None:
        tally = self.report.tally(self.now)
        for asked in client.asked.values():
            tally.requests += asked.times
            tally.answered += min(len(asked.answers), asked.times)
            missing = max(0, asked.times - len(asked.answers))
            if not asked.must:
                tally.passed_over += missing
            elif asked not in self._hung:
                tally.unknown += missing
        client.asked.clear()
        self._hung.clear()

    async def probe(self, client: Client, **more: Any) -> Asked:
        """Make one call that has no side effects. Raises Gone."""
        if not self.probes or self.chance.random() < 0.1:
            return await client.ask(self.chance.choice(("ping", "tools/list")), **more)
        call = self.chance.choice(self.probes).call
        return await client.call(call.tool, call.arguments, **more)

    async def settle(self) -> bool:
        """Wait for every answer that is owed; return whether the server can still be used.

        One that cannot is killed.
        """
        client = self._client
        if client is None:
            return False
        missing = await client.wait(list(client.asked.values()), self.options.limit_s)
        if client.is_over:
            await self._judge_end(client)
            return False
        if not missing:
            self._settle_counts(client)
            return True
        if client.process.ended.is_set():
            await self._judge_end(client)
            return False
        lives = False
        with trio.move_on_after(2 * self.options.limit_s):
            with contextlib.suppress(Gone):
                lives = not await client.wait([await client.ask("ping")], self.options.limit_s)
        for asked in missing:
            self._hung.add(asked)
            self.note("hung", f"{asked.what}, after {self.doing}; {'a' if lives else 'no'} ping is answered")
        await self.drop()
        return False

    def _settle_counts(self, client: Client) -> None:
        """Count what is answered, so that it belongs to the storm in which it was asked."""
        tally = self.report.tally(self.now)
        for key, asked in list(client.asked.items()):
            if asked.answers or not asked.must:
                tally.requests += asked.times
                tally.answered += min(len(asked.answers), asked.times)
                tally.passed_over += max(0, asked.times - len(asked.answers))
                client.finish(key)

    async def _judge_end(self, client: Client) -> None:
        if not client.is_expected_to_end:
            if await client.process.gone(1):
                await trio.sleep(0.3)
                why = " / ".join(client.process.last_lines) or "nothing on stderr"
                self.note("died", f"after {self.doing}: {client.process.cause}; {why}")
            else:
                self.note("died", f"after {self.doing}: stdout was closed, while the process lives")
        await self.drop()

    async def sent(self, sending: Callable[[Client], Awaitable[None]]) -> bool:
        """Send something, and settle. A server that does not read it in time is hung."""
        client = await self.client()
        with trio.move_on_after(SENDING_LIMITS * self.options.limit_s) as limit:
            with contextlib.suppress(Gone):
                await sending(client)
        if limit.cancelled_caught and not client.is_over:
            self.note("hung", f"after {self.doing}: stdin is not read any more")
            await self.drop()
            return False
        return await self.settle()

    async def compare(self, probes: list[Probe]) -> None:
        """Compare answers with those before the storm."""
        for probe in probes:
            if not probe.is_compared or self._client is None:
                continue
            try:
                asked = await self._client.call(probe.call.tool, probe.call.arguments)
            except Gone:
                await self.settle()
                return
            if await self.settle() and not probe.is_same(asked):
                before = said(probe.before) if probe.before else ""
                self.note("changed", f"{probe.call.tool}: {before} before, {said(asked)} after {self.doing}")

    async def _begin(self) -> None:
        self.report.tally(BEFORE).steps += 1
        client = await self.client()
        self.report.server = client.info.get("serverInfo") or {}
        failing: list[str] = []
        for probe in await self._chosen(client):
            began = trio.current_time()
            client = await self.client()
            asked = await client.call(probe.call.tool, probe.call.arguments)
            probe.before = asked
            with trio.move_on_after(self.options.limit_s):
                # A tool may take long, and the server is not at fault if it answers a ping meanwhile.
                await asked.done.wait()
            if not asked.answers and not client.is_over:
                asked.must = False
                self.report.not_tried.append(f"{probe.call.tool}: no answer in {self.options.limit_s:.0f} s")
                await (await self.client()).ask("ping")
                if await self.settle():
                    await self.drop()
                continue
            if not await self.settle():
                self.report.not_tried.append(f"{probe.call.tool}: the server ends")
                continue
            if (took_s := trio.current_time() - began) > TOO_SLOW_S:
                self.report.not_tried.append(f"{probe.call.tool}: it takes {took_s:.1f} s")
                continue
            if not is_done(asked):
                failing.append(probe.call.tool)
            self.probes.append(probe)
            self.report.called.append(probe.call.tool)
        if failing:
            names = ", ".join(failing)
            self.report.notes.append(f"answered with an error from the beginning (--call gives arguments): {names}")
        if self.options.write and self.options.read:
            run = f"t{self.chance.randrange(16**6):06x}"
            self.writes = Writes(self.options.write, self.options.read, run, self.report)
            if why := await self.writes.calibrate(await self.client(), self.options.limit_s):
                self.report.notes.append(f"writes are not tried: {why}")
                self.writes = None
        await self._find_equal()

    async def _find_equal(self) -> None:
        """Find out which answers are always the same: also in another process."""
        await self.drop()
        for probe in self.probes:
            asked = await (await self.client()).call(probe.call.tool, probe.call.arguments)
            probe.is_compared = await self.settle() and probe.is_same(asked)
            if not probe.is_compared:
                self.report.not_compared.append(probe.call.tool)

    async def _chosen(self, client: Client) -> list[Probe]:
        tools = await self._tools(client)
        write, read = self.options.write, self.options.read
        named = [("--call", call) for call in self.options.calls]
        named += [(option, call) for option, call in (("--write", write), ("--read", read)) if call is not None]
        for option, call in named:
            if call.tool not in tools:
                raise Useless(f"{option}: the server has no tool {call.tool!r}; it has {', '.join(tools) or 'none'}")
        if self.options.calls:
            return [Probe(call, tools.get(call.tool, {}).get("inputSchema")) for call in self.options.calls]
        chosen = []
        for name, tool in tools.items():
            if write is not None and name == write.tool:
                continue
            hints = tool.get("annotations")
            if not (isinstance(hints, dict) and hints.get("readOnlyHint") is True):
                self.report.not_tried.append(f"{name}: not marked as read-only")
                continue
            try:
                chosen.append(Probe(Call(name, smallest(tool.get("inputSchema"))), tool.get("inputSchema")))
            except Unmade as error:
                self.report.not_tried.append(f"{name}: {error}")
        return chosen

    async def _tools(self, client: Client) -> dict[str, JsonObject]:
        found: dict[str, JsonObject] = {}
        params: JsonObject = {}
        for _ in range(MOST_PAGES):
            asked = await client.ask("tools/list", params)
            if not await self.settle():
                raise Useless
            result = _content(asked)
            for tool in result.get("tools", []) if isinstance(result, dict) else []:
                if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                    found[tool["name"]] = tool
            if not isinstance(result, dict) or not (cursor := result.get("nextCursor")):
                break
            params = {"cursor": cursor}
        return found

    async def _finish(self) -> None:
        """Compare everything with a new process, and let it end in order."""
        self.now = self.doing = AFTER
        self.report.tally(AFTER).steps += 1
        await self.drop()
        await self.client()
        await self.compare(self.probes)
        if self.writes is not None:
            await self.writes.check(await self.client(), self.options.limit_s, self.now, "")
        self.tell()
        await self.settle()
        await self.drop()

    def tell(self) -> None:
        """Put what is only counted at the end into the report."""
        if self.writes is not None:
            self.writes.tell()
