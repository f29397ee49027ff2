"""Writes, and whether they can be read back: each acknowledged one exactly once."""

from __future__ import annotations

import json
from typing import Any

import trio

from services.mounts.torture.client import Asked, Client, Gone
from services.mounts.torture.kinds import MARK
from services.mounts.torture.options import Call
from services.mounts.torture.report import Report

MOST = 400
"""No more writes are made: each read gives back all of them."""
PATIENCE_S = 3.0


class Writes:
    """The ledger of writes.

    A write that got no answer, or an error, may be there or not; if it is, then once and whole.
    """

    def __init__(self, write: Call, read: Call, run: str, report: Report) -> None:
        self._write, self._read, self._run, self._report = write, read, run, report
        self._made: dict[str, Asked] = {}
        self._judged: set[str] = set()
        self._usual = 0
        """How often the text of one write is in the answer that reads it back."""

    async def make(self, client: Client) -> Asked:
        """Send one more write. Raises Gone."""
        head = f"{self._run}x{len(self._made):05}"
        mark = f"{head}-{head}z"
        arguments = _filled(self._write.arguments, mark)
        asked = client.expect(number := client.next_id(), f"a write by {self._write.tool}")
        self._made[mark] = asked
        params = {"name": self._write.tool, "arguments": arguments}
        line = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        await client.write(line.encode() + b"\n")
        return asked

    async def keep_making(self, client: Client) -> None:
        """Make one write after the other until the server is gone."""
        try:
            while not client.is_over and len(self._made) < MOST:
                await (await self.make(client)).done.wait()
        except Gone:
            return

    async def acknowledged(self, more: int, client: Client) -> None:
        """Wait until so many more writes are acknowledged, the server is gone, or it has taken long."""
        wanted = self._acknowledged() + more
        with trio.move_on_after(PATIENCE_S):
            while self._acknowledged() < wanted and not client.is_over:  # noqa: ASYNC110  # any of many events
                await trio.sleep(0.002)

    def _acknowledged(self) -> int:
        return sum(map(is_done, self._made.values()))

    async def calibrate(self, client: Client, limit_s: float) -> str:
        """Make two writes and read them back; return why this cannot be judged, or an empty text."""
        for _ in range(2):
            asked = await self.make(client)
            await client.wait([asked], limit_s)
            if not is_done(asked):
                return f"the write fails without a storm: {said(asked)}"
        if (text := await self._text(client, limit_s)) is None:
            return "the read fails without a storm"
        if not self._has_all(text):
            text = await self._complete_text(client, limit_s) or ""
            if self._has_all(text):
                self._report.notes.append(f"{self._write.tool} acknowledges what {self._read.tool} has only later")
        counts = {text.count(mark) for mark in self._made}
        if 0 in counts:
            return f"the answer of {self._read.tool} has not what {self._write.tool} wrote"
        if len(counts) != 1:
            return f"the answer of {self._read.tool} has equal writes in different numbers"
        self._usual = counts.pop()
        if self._usual != (given := json.dumps(self._write.arguments).count(MARK)):
            note = (
                f"each write is {self._usual} times in the answer of {self._read.tool} and {given} times in the write"
            )
            self._report.notes.append(note)
        return ""

    async def check(self, client: Client, limit_s: float, storm: str, how: str) -> None:
        """Read all writes back, and count what is wrong. Every write is judged once."""
        text = await self._complete_text(client, limit_s)
        if text is None:
            if not client.is_over:
                self._report.add("write torn", storm, f"{self._read.tool} fails after the storm", how)
            return
        for mark, asked in self._made.items():
            found = text.count(mark)
            done = is_done(asked)
            is_cut = found == 0 and mark.partition("-")[0] in text
            right = found == self._usual or (found == 0 and not done and not is_cut)
            if right or mark in self._judged:
                continue
            self._judged.add(mark)
            if is_cut:
                self._report.add("write torn", storm, f"a part of {mark} is there", how)
            elif found == 0:
                self._report.add("write lost", storm, f"{mark} was acknowledged: {said(asked)}", how)
            elif found < self._usual:
                self._report.add("write torn", storm, f"{mark} is there {found} times, others {self._usual}", how)
            else:
                self._report.add("write doubled", storm, f"{mark} is there {found} times, others {self._usual}", how)

    def tell(self) -> None:
        """Put the counts into the report."""
        acknowledged = self._acknowledged()
        self._report.writes = {"acknowledged": acknowledged, "unknown": len(self._made) - acknowledged}

    def _has_all(self, text: str) -> bool:
        return all(mark in text for mark, asked in self._made.items() if is_done(asked) and mark not in self._judged)

    async def _complete_text(self, client: Client, limit_s: float) -> str | None:
        """Read until every acknowledged write is there, for a while: some servers show a write only after a time."""
        ends_at = trio.current_time() + PATIENCE_S
        while True:
            text = await self._text(client, limit_s)
            if text is None or self._has_all(text) or trio.current_time() > ends_at:
                return text
            await trio.sleep(0.2)

    async def _text(self, client: Client, limit_s: float) -> str | None:
        asked = await client.call(self._read.tool, self._read.arguments)
        with trio.move_on_after(2 * limit_s):
            await client.wait([asked], limit_s)
        if asked.answer is None or not is_done(asked):
            return None
        # `structuredContent` says the same once more.
        return json.dumps(asked.answer["result"].get("content") or asked.answer["result"], ensure_ascii=False)


def is_done(asked: Asked) -> bool:
    """Return whether a call succeeded."""
    result = (asked.answer or {}).get("result")
    return isinstance(result, dict) and not result.get("isError")


def said(asked: Asked) -> str:
    """Return the beginning of an answer."""
    if asked.answer is None:
        return "no answer"
    return json.dumps(asked.answer.get("result", asked.answer.get("error")), ensure_ascii=False)[:150]


def _filled(value: Any, mark: str) -> Any:
    if isinstance(value, str):
        return value.replace(MARK, mark)
    if isinstance(value, dict):
        return {_filled(name, mark): _filled(each, mark) for name, each in value.items()}
    return [_filled(each, mark) for each in value] if isinstance(value, list) else value
