"""`linckia sync`: joins the conversations and memories of this kernel and another one, both ways.

Both kernels list what they know as facts with digests. Only facts of buckets with different digests are compared, and
only what one side lacks is carried. Nothing is remembered about the other side, so an interrupted sync is resumed by
the next one, and a side that was restored from a backup needs no special care. Deletions go first.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from kernel.cli.carry.files import named
from kernel.cli.carry.peer import HAS_TOO_MUCH, MAKE_TOKEN, Peer, TooLarge
from kernel.configure.config import seconds
from proto.control.client import CallFailed, Client, ControlError
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, connect, counted, say, show_json
from proto.json_types import JsonObject

FORMAT = 1
BUCKETS = 256
ROUNDS = 8
"""Comparisons of one part. Two suffice unless data arrive meanwhile; the rest is left to the next sync."""

CHOSEN = 100
"""Items asked for at once; the answer has as many as fit."""

GONE = 1000
"""Deletions sent at once."""

TOKEN_VARIABLE = "LINCKIA_SYNC_TOKEN"


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What one side knows. `dropped` and `forgotten` are deletions."""

    digest: str
    kind: str
    target: str
    depth: int = 0
    dropped: JsonObject | None = None
    forgotten: JsonObject | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A list of facts, or the digests of the buckets."""

    format: int
    buckets: list[str] = []
    covered: list[int] = []
    facts: list[Fact] = []
    kept_here: int = 0


class Side(Protocol):
    """One of the two kernels."""

    async def call(self, name: str, params: Mapping[str, object]) -> Any: ...


class Here:
    """This machine's kernel."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, name: str, params: Mapping[str, object]) -> Any:
        try:
            return named(self._client, name, dict(params))
        except CallFailed as error:
            if error.failure.get("kind") == "invalid_params" and HAS_TOO_MUCH.match(str(error)):
                raise TooLarge from None
            raise


@dataclass(frozen=True)
class Part:
    """What is joined, and by which operations. `ids` is what these call the `items` that are asked for."""

    name: str
    service: str
    facts: str
    choose: str
    ids: str
    items: str
    key: str
    join: str
    gone: str
    counts: str


PARTS = (
    Part("chats", "transcripts", "transcript_facts", "transcript_turns", "hashes", "turns", "hash", "transcript_join",
         "dropped", "turn"),
    Part("memory", "memory", "memory_facts", "memory_chosen", "ids", "memories", "id", "memory_join",
         "forgotten", "memory"),
)  # fmt: skip


@dataclass
class Tally:
    """What was done to one part. At the end both sides were `equal`, or `left` items could not be stored."""

    came: int = 0
    went: int = 0
    deleted_here: int = 0
    deleted_there: int = 0
    conflicts: int = 0
    left: int = 0
    kept_here: int = 0
    equal: bool = False


@dataclass
class Moved:
    """What one side stored of the other's items."""

    items: int = 0
    deleted: int = 0
    conflicts: int = 0
    left: list[str] = field(default_factory=list)


def sync(arguments: argparse.Namespace) -> int:
    """Sync once, or again and again. Exit code 1 if something could not be joined. Raises Usage, Failed, ControlError,
    OSError."""
    every_s = None if arguments.every is None else seconds(arguments.every)
    if arguments.every is not None and not every_s:
        raise Usage(f"--every: {arguments.every!r} is not a time span; write 90s, 5min, 1h or 1d")
    if arguments.timeout <= 0:
        raise Usage("--timeout: write a number of seconds above 0")
    token = _token(arguments.token_file)

    async def once() -> int:
        async with Peer(arguments.url, token, arguments.timeout, plain=arguments.plain_http) as peer:
            with connect(arguments) as client:
                try:
                    return await _sync(arguments, Here(client), peer)
                except TooLarge:
                    raise Failed(f"{peer.url} takes no request of the size that a comparison needs") from None

    if every_s is None:
        return trio.run(once)
    while True:
        try:
            trio.run(once)
        except (CallFailed, ControlError, Failed, OSError) as error:
            complain(error)
        sys.stdout.flush()
        time.sleep(every_s)


def _token(file: str | None) -> str:
    if file is not None:
        token = Path(file).expanduser().read_text("utf-8", "replace").strip()
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        source = f"{file} is empty" if file is not None else f"there is no --token-file and no {TOKEN_VARIABLE}"
        raise Usage(f"{source}; a token of the other kernel is needed: {MAKE_TOKEN}")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Usage(f"{file or TOKEN_VARIABLE}: this is not a token")
    return token


async def _sync(arguments: argparse.Namespace, here: Here, there: Peer) -> int:
    began = time.monotonic()
    parts = [part for part in PARTS if arguments.only in (None, part.name)]
    tallies: dict[str, Tally] = {}
    for part in parts:
        try:
            tallies[part.name] = await Joining(part, here, there, there.url, dry=arguments.dry_run).run()
        except CallFailed as error:
            if error.failure.get("kind") != "unknown_operation" or len(parts) == 1:
                raise
            complain(f"{part.name} is left out: the service {part.service} is switched off here")
    taken_s = time.monotonic() - began
    if arguments.json:
        shown = {name: asdict(tally) for name, tally in tallies.items()}
        show_json({"url": there.url, "dry_run": arguments.dry_run, "seconds": round(taken_s, 3), **shown})
    else:
        for name, tally in tallies.items():
            say(f"{name}: {_in_words(tally, dry=arguments.dry_run)}")
        say(f"{taken_s:.1f} s")
    return 1 if any(tally.left or not (tally.equal or arguments.dry_run) for tally in tallies.values()) else 0


def _in_words(tally: Tally, *, dry: bool) -> str:
    would = "would be " if dry else ""
    said = [f"{tally.came} {'would come' if dry else 'came'}, {tally.went} {'would go' if dry else 'went'}"]
    if tally.deleted_here or tally.deleted_there:
        said.append(f"{tally.deleted_here} {would}deleted here, {tally.deleted_there} there")
    if tally.conflicts:
        said.append(f"{counted(tally.conflicts, 'conflict')}, both texts kept")
    if tally.kept_here:
        said.append(f"{tally.kept_here} of single sessions stay here")
    if tally.left:
        said.append(f"{tally.left} could not be stored")
    if not (tally.equal or dry):
        said.append("more arrived meanwhile; sync again")
    return ", ".join(said)


class Joining:
    """Joins one part of both kernels."""

    def __init__(self, part: Part, here: Side, there: Side, url: str, *, dry: bool) -> None:
        self._part = part
        self._here, self._there = here, there
        self._url = url
        self._dry = dry
        self._tally = Tally()

    async def run(self) -> Tally:
        """Compare and carry until both sides are equal, or nothing changes any more."""
        tally, before = self._tally, None
        sent: set[str] = set()
        for _ in range(ROUNDS):
            mine, theirs = await self._differences()
            if tally.equal or (mine.keys(), theirs.keys()) == before:
                break
            before = mine.keys(), theirs.keys()
            if self._dry:
                tally.went, tally.came = self._new(mine, theirs), self._new(theirs, mine)
                tally.deleted_there, tally.deleted_here = self._gone(mine), self._gone(theirs)
                break
            # A deletion may have been overtaken, and is then not kept by the other side.
            new = {
                name for facts in (mine, theirs) for name, fact in facts.items() if fact.kind == self._part.gone
            } - sent
            if new:
                sent |= new
                tally.deleted_there += await self._delete(self._there, mine.values())
                tally.deleted_here += await self._delete(self._here, theirs.values())
                before = None
                continue
            went = await self._carry(self._here, self._there, mine.values())
            came = await self._carry(self._there, self._here, theirs.values())
            tally.went += went.items
            tally.came += came.items
            tally.deleted_here += came.deleted
            tally.deleted_there += went.deleted
            tally.conflicts += max(went.conflicts, came.conflicts)
            tally.left = len({*went.left, *came.left})
        return tally

    def _new(self, mine: Mapping[str, Fact], theirs: Mapping[str, Fact]) -> int:
        """Count the items that only one side has, or that it has otherwise."""
        known = {fact.target for fact in theirs.values() if fact.kind == self._part.counts}
        return len({fact.target for fact in mine.values() if fact.kind == self._part.counts} - known)

    def _gone(self, facts: Mapping[str, Fact]) -> int:
        """Count the deletions after which nothing was stored again."""
        noted = [fact.dropped or {} for fact in facts.values() if fact.kind == self._part.gone]
        return sum(each.get("returned_ns", 0) <= each.get("at_ns", 0) for each in noted)

    # Comparing

    async def _differences(self) -> tuple[dict[str, Fact], dict[str, Fact]]:
        """Return the facts that only this kernel has, and those that only the other one has, by their digests."""
        mine, theirs = await self._facts(self._here, []), await self._facts(self._there, [])
        self._tally.kept_here = mine.kept_here
        if not len(mine.buckets) == len(theirs.buckets) == BUCKETS:
            raise Failed(f"{self._url} did not compare {self._part.name}: it sent no digests")
        pairs = zip(mine.buckets, theirs.buckets, strict=True)
        different = [number for number, (one, other) in enumerate(pairs) if one != other]
        self._tally.equal = not different
        ours, others = await self._listed(self._here, different), await self._listed(self._there, different)
        return (
            {name: fact for name, fact in ours.items() if name not in others},
            {name: fact for name, fact in others.items() if name not in ours},
        )

    async def _listed(self, side: Side, buckets: Sequence[int]) -> dict[str, Fact]:
        found: dict[str, Fact] = {}
        left = list(buckets)
        while left:
            answer = await self._facts(side, left)
            covered = set(answer.covered)
            if not covered or not covered <= set(left):
                raise Failed(f"{self._url} did not list what it has of {self._part.name}: no progress")
            found |= {fact.digest: fact for fact in answer.facts}
            left = [number for number in left if number not in covered]
        return found

    async def _facts(self, side: Side, buckets: Sequence[int]) -> Facts:
        answer = await side.call(self._part.facts, {"buckets": buckets} if buckets else {})
        try:
            found = msgspec.convert(answer, Facts)
        except msgspec.ValidationError as error:
            raise Failed(f"{self._url} answered {self._part.facts} with something else: {error}") from None
        if found.format != FORMAT:
            raise Failed(
                f"{self._url} compares {self._part.name} in format {found.format}, this version of Linckia in {FORMAT};"
                " update the older one"
            )
        return found

    # Carrying

    async def _delete(self, side: Side, facts: Iterable[Fact]) -> int:
        """Send deletions; return how many items were deleted."""
        gone = [fact.dropped or fact.forgotten for fact in facts if fact.kind == self._part.gone]
        deleted = 0
        for start in range(0, len(gone), GONE):
            answer = await self._join(side, {self._part.gone: gone[start : start + GONE]})
            deleted += answer["deleted"]
        return deleted

    async def _carry(self, source: Side, target: Side, facts: Iterable[Fact]) -> Moved:
        """Carry the items of these facts, parents first."""
        moved = Moved()
        barred = [fact.target for fact in facts if fact.kind == "barred"]
        for start in range(0, len(barred), GONE):
            await self._join(target, {"barred": barred[start : start + GONE]})
        depths: dict[str, int] = {}
        for fact in facts:
            if fact.kind not in ("barred", self._part.gone):
                depths[fact.target] = min(fact.depth, depths.get(fact.target, fact.depth))
        wanted = sorted(depths, key=lambda each: (depths[each], each))
        while wanted:
            asked = wanted[:CHOSEN]
            answer = await source.call(self._part.choose, {self._part.ids: asked})
            items, prompts, done = answer.get(self._part.items), answer.get("prompts", []), answer.get("done")
            if (
                not isinstance(done, int) or not 0 < done <= len(asked) or not isinstance(items, list)
                or not isinstance(prompts, list) or not all(isinstance(item, dict) for item in items)
                or not {item.get(self._part.key) for item in items} <= set(asked[:done])
            ):  # fmt: skip
                raise Failed(f"{self._url} did not send the {self._part.items} that were asked for")
            await self._put(target, items, prompts, moved)
            wanted = wanted[done:]
        return moved

    async def _put(self, target: Side, items: list[JsonObject], prompts: list[str], moved: Moved) -> None:
        if not items:
            return
        sent = {self._part.items: items, **({"prompts": prompts} if prompts else {})}
        try:
            answer = await self._join(target, sent)
        except TooLarge:
            if len(items) == 1:
                key = str(items[0][self._part.key])
                complain(f"{key} is left out: it is longer, or has more parts, than one request may have")
                moved.left.append(key)
                return
            half = len(items) // 2
            for some in (items[:half], items[half:]):
                needed = {item.get("prompt") for item in some}
                await self._put(target, some, prompts if needed != {None} else [], moved)
            return
        left = answer["left"]
        moved.items += len(items) - left
        moved.deleted += answer["deleted"]
        moved.conflicts += answer.get("conflicts", 0)
        moved.left += [str(item[self._part.key]) for item in items][:left]

    async def _join(self, side: Side, params: Mapping[str, object]) -> dict[str, int]:
        answer = await side.call(self._part.join, params)
        if not all(isinstance(answer.get(name), int) for name in ("deleted", "left")):
            raise Failed(f"{self._url} answered {self._part.join} with something else")
        found: dict[str, int] = answer
        return found
