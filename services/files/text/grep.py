"""`files_grep`: one search over many files, shared by this process and those of the service `compare`.

A walk produces pieces of some hundred files each. Whichever process is free searches the next piece; results are
returned in the order of the pieces, so that a full answer ends the search, and the next one begins where it ended. If
another process does not respond, its piece is searched here: the other processes only make the search faster.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import trio

from proto.errors import InvalidParams, LinckiaError
from services.files import paths
from services.files.core import Core
from services.files.operations.text import GrepFile, GrepFiles, GrepFound, GrepPart, GrepTexts, Piece
from services.files.paths import FileRoots
from services.files.text.searching import pattern_of, search
from services.files.text.walking import Globs, Walk
from services.runtime.handlers import Context

ELSEWHERE = 2
"""Number of pieces in flight to other processes: one being searched, and the next on its way."""
AHEAD = 24
"""Number of pieces that may be searched ahead of an unfinished one."""
TIME_LIMIT_S = 25.0
TIMEOUT_S = 10.0
"""Normally a process responds within one turn; after this time its piece is searched here."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_UNREADABLE = 20
_CURSOR = re.compile(r"(\d{1,9}) (/.*)", re.DOTALL)


class _Start(NamedTuple):
    """Where an answer begins: a path, and how many of its matches earlier answers contained."""

    path: str = ""
    matches: int = 0


def _start(cursor: str) -> _Start:
    match = _CURSOR.fullmatch(cursor)
    if cursor and match is None:
        raise InvalidParams("unknown `cursor`; pass one from an earlier answer", field="cursor")
    return _Start(match[2], int(match[1])) if match else _Start()


def tops(roots: FileRoots, path: str) -> list[str]:
    """Return the real paths to search. Raises InvalidParams or Denied."""
    if not path:
        reachable = roots.reachable
        return [root for root in reachable if not paths.is_within(root, [each for each in reachable if each != root])]
    real = roots.real(roots.clean(path, "path"), "path")
    if not os.path.lexists(paths.to_os(real)):
        raise InvalidParams(roots.missing(path, "path"), field="path")
    return [real]


class Grep:
    """A running search."""

    def __init__(self, core: Core, params: GrepFiles, ctx: Context) -> None:
        """Raises InvalidParams or Denied."""
        # An answer lists lines, or files with or without counts.
        self._by_file = params.count or params.files_with_matches
        self._core = core
        self._params = params
        self._ctx = ctx
        self._how = msgspec.structs.replace(params, path="", glob="", cursor="")
        pattern_of(params.pattern, params.literal, params.ignore_case)
        self._begin = _start(params.cursor)
        globs = Globs(params.glob.split())
        self._walk = Walk(
            core.roots.all, globs, hidden=params.hidden, no_ignore=params.no_ignore,
            go_on=trio.from_thread.check_cancelled,
        )  # fmt: skip
        self._pieces = self._all_pieces(tops(core.roots, params.path))
        self._room = params.limit
        self._bytes = 0
        self._files: list[GrepFile] = []
        self._searched = self._binary = 0
        self._unreadable: list[str] = []
        self._truncated = self._next = ""
        # The results of each piece, by its number.
        self._parts: dict[int, list[GrepPart]] = {}
        self._handed_out: dict[int, str] = {}
        self._answered = 0
        self._changed = trio.Event()

    async def run(self) -> GrepFound:
        """Search until the answer is full or time is up."""
        pending, ready = trio.open_memory_channel[tuple[int, Piece]](0)
        with trio.move_on_after(min(TIME_LIMIT_S, self._ctx.deadline - trio.current_time() - 5)) as limit:
            async with trio.open_nursery() as workers:
                workers.start_soon(self._hand_out, pending)
                workers.start_soon(self._work, ready.clone(), False)
                for _ in range(ELSEWHERE):
                    workers.start_soon(self._work, ready.clone(), True)
                ready.close()
                await self._answer()
                workers.cancel_scope.cancel()
        if limit.cancelled_caught and not self._truncated:
            self._truncated, self._next = "time", self._time_cursor()
        unreadable = [*self._walk.unreadable, *self._unreadable]
        return GrepFound(
            files=self._files, searched=self._searched, binary=self._binary, unreadable=unreadable[:MAX_UNREADABLE],
            truncated=self._truncated, next_cursor=self._next,
        )  # fmt: skip

    def _time_cursor(self) -> str:
        following = self._handed_out.get(self._answered)
        return f"0 {following}" if following else self._params.cursor

    def _all_pieces(self, places: list[str]) -> Iterator[Piece]:
        after = self._begin.path
        for top in places:
            if after and not paths.is_within(after, (top,)):
                continue
            yield from self._walk.pieces(top, after[len(paths.as_folder(top)) :])
            after = ""

    async def _hand_out(self, pending: trio.MemorySendChannel[tuple[int, Piece]]) -> None:
        """Pass the pieces to the workers, in order."""
        number = 0
        async with pending:
            while (piece := await trio.to_thread.run_sync(next, self._pieces, None)) is not None:
                self._handed_out[number] = piece[0][0] + piece[0][1][0]
                await pending.send((number, piece))
                number += 1
                while number - self._answered > AHEAD:
                    await self._changed.wait()
        self._handed_out[number] = ""
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _work(self, ready: trio.MemoryReceiveChannel[tuple[int, Piece]], elsewhere: bool) -> None:
        async with ready:
            async for number, piece in ready:
                parts: list[GrepPart] = []
                rest, most = piece, self._room + 1 + self._begin.matches
                while rest and most > 0:
                    part = await (self._ask if elsewhere else self._look)(rest, most)
                    parts.append(part)
                    most -= sum(1 if self._by_file else len(found.matches) for found in part.files)
                    rest = _rest(rest, part.done)
                self._parts[number] = parts
                self._wake()

    async def _ask(self, piece: Piece, most: int) -> GrepPart:
        try:
            return await self._ctx.call(GrepTexts(how=self._how, piece=piece, most=most), timeout_s=TIMEOUT_S)
        except LinckiaError:
            return await self._look(piece, most)

    async def _look(self, piece: Piece, most: int) -> GrepPart:
        look = functools.partial(search, self._core.roots.all, self._how, piece, most)
        return await trio.to_thread.run_sync(look, trio.from_thread.check_cancelled)

    async def _answer(self) -> None:
        """Collect results piece by piece, until the answer is full or there are no more."""
        while True:
            while (parts := self._parts.pop(self._answered, None)) is None:
                if self._handed_out.get(self._answered) == "":
                    return
                await self._changed.wait()
            for part in parts:
                self._searched += part.searched
                self._binary += part.binary
                self._unreadable += part.unreadable[: MAX_UNREADABLE - len(self._unreadable)]
                for found in part.files:
                    if not self._take(found):
                        return
            del self._handed_out[self._answered]
            self._answered += 1
            self._ctx.progress(self._searched)
            self._wake()

    def _take(self, found: GrepFile) -> bool:
        """Add a file's matches to the answer. Returns True if there is room for more."""
        skip = self._begin.matches if found.path == self._begin.path else 0
        fits = self._room > 0 and self._bytes <= MAX_ANSWER_BYTES
        if self._by_file:
            if fits:
                self._files.append(found)
                self._bytes += len(found.path) + 40
                self._room -= 1
                return True
            self._truncated, self._next = "limit", f"0 {found.path}"
            return False
        matches = found.matches[skip:]
        taken = 0
        for match in matches[: self._room]:
            if self._bytes > MAX_ANSWER_BYTES:
                break
            taken += 1
            self._bytes += len(match.text) + sum(map(len, match.before)) + sum(map(len, match.after)) + 30
        self._room -= taken
        if taken:
            self._files.append(GrepFile(path=found.path, matches=matches[:taken]))
            self._bytes += len(found.path)
        if taken < len(matches):
            self._truncated, self._next = "limit", f"{skip + taken} {found.path}"
            return False
        return True


def _rest(piece: Piece, done: int) -> Piece:
    """Return the files of a piece that have not been searched."""
    rest: Piece = []
    for folder, names in piece:
        if done < len(names):
            rest.append((folder, names[done:]))
        done = max(0, done - len(names))
    return rest
