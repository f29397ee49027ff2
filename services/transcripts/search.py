"""Searches turns, and all corpora at once: builds the filters, and adds the origin to each hit.

`everything_search` queries the collections in parallel. Scores are comparable if the same stages ran in each (cosine
and words in one range, or the cross-encoder's score), and are compared directly. If a corpus could only be searched by
words, its scores are not comparable, and `degraded` says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import apsw
import trio
from msgspec.structs import replace

from proto.errors import InvalidParams, LinckiaError, Unavailable
from proto.ops.memory import found_by
from proto.ops.retrieve import Filter, Hit, RetrieveSearch, SearchResult, Value
from proto.wire.frames import Written
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.runtime.storage import Damaged
from services.shared.date_ranges import range_in, rfc3339
from services.shared.times import between
from services.transcripts import conversations, forest
from services.transcripts.answers import written
from services.transcripts.feed import AROUND, COLLECTION, TurnFeed
from services.transcripts.messages import changes_of, files_of, read_text
from services.transcripts.operations.conversations import (
    Corpus,
    EverythingHit,
    EverythingResult,
    LineageTurn,
    Ranking,
    SearchEverything,
    TranscriptHit,
    TranscriptSearchResult,
    TranscriptsSearch,
)

DEFAULT_TOP_K = 5
MAX_TOP_K = 1000
CANDIDATES, TURNS = 50, 100
"""Passages that each stage passes on; more of turns, as a turn may be found by others of its conversation."""

PER_CONVERSATION = 8
"""Hits to request per wanted conversation: most have a few turns on one subject."""

MAX_REPEATS = 20
"""Most turns named that have the words of a hit."""

CHARS_PER_TOKEN = 4
"""Characters per token of English text and code in all common tokenizers."""

_TIMES = {Corpus.TRANSCRIPTS: "at", Corpus.NOTES: "date", Corpus.MEMORY: "at"}
"""The metadata with a passage's time, of the corpora that have one."""

_OWN = ("root", "after", "tools", "in", "of", "expires", "holds_from", "begins", "folders", "extensions", "hash")
"""Metadata that corpora use only for filters, or that is returned as the id."""

_TURN_CHARS = 110
"""Size of a turn's hash, role and punctuation."""


class Searching:
    """The operations that search."""

    def __init__(self, database: Database, feed: TurnFeed, patience_s: float) -> None:
        """`patience_s` is how long a search waits until newly stored turns can be found."""
        self._database = database
        self._feed = feed
        self._patience_s = patience_s

    @handles(TranscriptsSearch)
    async def search(self, params: TranscriptsSearch, ctx: Context) -> Written:
        _require_words(params.query)
        conditions = filters(params)
        count = min(params.top_k, MAX_TOP_K) if params.top_k > 0 else DEFAULT_TOP_K
        degraded: list[str] = []
        left = await self._caught_up(degraded, "index")
        limit = min(MAX_TOP_K, count * PER_CONVERSATION if params.distinct else count)
        # Recently deleted turns may still be found, and are dropped below.
        limit = min(MAX_TOP_K, limit + left)
        while True:
            asked = RetrieveSearch(
                collection=COLLECTION,
                query=params.query,
                limit=limit,
                candidates=max(TURNS, limit),
                filters=conditions,
                min_score=params.min_score,
                around=AROUND,
            )
            found = await ctx.call(asked)
            hits = await self._one_each(found.hits) if params.distinct else found.hits
            if len(hits) >= count or len(found.hits) + found.unlikely < limit or limit >= MAX_TOP_K:
                break
            limit = min(MAX_TOP_K, 4 * limit)
        degraded = [*found.degraded, *degraded]

        def answer(db: apsw.Connection) -> Written:
            return _written(params, results(db, hits, count), degraded, found)

        try:
            # Encoded in the thread, because it may be large.
            return await self._database.read(answer)
        except Damaged as error:
            degraded.append(str(error))
        readable: list[TranscriptHit] = []
        for hit in hits[:count]:
            with contextlib.suppress(Damaged):
                readable += await self._database.read(partial(results, hits=[hit], limit=1))
        return _written(params, readable, degraded, found)

    @handles(SearchEverything)
    async def search_everything(self, params: SearchEverything, ctx: Context) -> EverythingResult:
        """Search all available corpora. If all fail, raises the error that they share, or Unavailable."""
        _require_words(params.query)
        corpora = list(dict.fromkeys(params.corpora)) or list(Corpus)
        degraded: list[str] = []
        times = {field: between(field, params.since, params.until) for field in {*_TIMES.values()}}
        if timed := params.since is not None or params.until is not None:
            untimed = [corpus for corpus in corpora if corpus not in _TIMES]
            degraded += [f"{corpus.value}: not searched, because its passages have no time" for corpus in untimed]
            corpora = [corpus for corpus in corpora if corpus in _TIMES]
            if not corpora:
                raise InvalidParams(
                    "`since` and `until` need at least one of the corpora transcripts, notes and memory",
                    field="corpora",
                )
        if Corpus.TRANSCRIPTS in corpora:
            await self._caught_up(degraded, "transcripts")
        found: dict[Corpus, SearchResult] = {}
        errors: list[LinckiaError] = []

        async def ask(corpus: Corpus) -> None:
            try:
                asked = RetrieveSearch(
                    collection=corpus.value,
                    query=params.query,
                    limit=params.limit,
                    candidates=max(TURNS if corpus is Corpus.TRANSCRIPTS else CANDIDATES, params.limit),
                    min_score=params.min_score,
                    around=AROUND if corpus is Corpus.TRANSCRIPTS else None,
                    filters=[
                        *(found_by(ctx.session, time.time()) if corpus is Corpus.MEMORY else []),
                        *(times[_TIMES[corpus]] if timed else []),
                    ],
                )
                found[corpus] = begun(await ctx.call(asked), time.time())
                if corpus is Corpus.TRANSCRIPTS:
                    found[corpus] = await self._of_different_words(asked, found[corpus], ctx)
            except LinckiaError as error:
                errors.append(error)
                degraded.append(f"{corpus.value}: {error}")

        async with trio.open_nursery() as nursery:
            for corpus in corpora:
                nursery.start_soon(ask, corpus)
        if not found:
            kinds = {type(error) for error in errors}
            raise (kinds.pop() if len(kinds) == 1 else Unavailable)("; ".join(degraded), retry_after_ms=1000)
        hits = merged(found)
        # What is nearest in a corpus that has nothing likely is noise beside what is likely in another.
        hits = [hit for hit in hits if hit.score >= params.min_score] or hits
        turns = [hit.id for hit in hits if hit.corpus is Corpus.TRANSCRIPTS]
        # The search may still have recently deleted items.
        there: set[str] = set()
        try:
            there = await self._database.read(lambda db: {turn for turn in turns if forest.find(db, turn) is not None})
        except Damaged as error:
            degraded.append(f"transcripts: {error}")
        hits = once_each([hit for hit in hits if hit.corpus is not Corpus.TRANSCRIPTS or hit.id in there])
        degraded += [f"{corpus.value}: {reason}" for corpus, result in found.items() for reason in result.degraded]
        kept = hits[: params.limit]
        best = max(found.values(), key=lambda result: result.best or 0.0)
        return EverythingResult(
            query=params.query,
            count=len(kept),
            results=kept,
            degraded=degraded,
            note=best.note,
            searched=[corpus for corpus in corpora if corpus in found],
            unlikely=sum(result.unlikely for result in found.values()),
            hint="" if timed else _hint(params.query),
        )

    async def _of_different_words(self, asked: RetrieveSearch, found: SearchResult, ctx: Context) -> SearchResult:
        """Search for more turns until as many different ones as asked for are found: people repeat themselves."""
        limit = asked.limit
        while (
            len({_words(hit.heading, hit.text) for hit in found.hits}) < asked.limit
            and len(found.hits) + found.unlikely >= limit
            and limit < MAX_TOP_K
        ):
            limit = min(MAX_TOP_K, 4 * limit)
            found = await ctx.call(replace(asked, limit=limit, candidates=max(TURNS, limit)))
        return found

    async def _one_each(self, hits: Sequence[Hit]) -> list[Hit]:
        holders: dict[str, set[int]] = {}
        with contextlib.suppress(Damaged):
            turns = [hit.group for hit in hits]
            holders = await self._database.read(lambda db: conversations.of_turns(db, turns))
        return one_each(hits, holders)

    async def _caught_up(self, degraded: list[str], name: str) -> int:
        """Return how many turns the search does not have yet; also added to `degraded`."""
        try:
            left = await self._feed.caught_up(self._patience_s)
        except Damaged as error:
            degraded.append(f"{name}: {error}")
            return 0
        if left:
            degraded.append(f"{name}: {left} turns are not indexed yet")
        return left


def _hint(query: str) -> str:
    """Return how to search only the time that the query names; empty if it names none."""
    if (named := range_in(query, time.time())) is None:
        return ""
    said, ends = named
    given = ", ".join(f"`{name}` {rfc3339(end)}" for name, end in zip(("since", "until"), ends, strict=True) if end)
    return f"all times were searched; for only {said!r}: {given}"


def _require_words(query: str) -> None:
    if not query.strip():
        raise InvalidParams("parameter `query` is blank; say what to look for", field="query")


def _written(params: TranscriptsSearch, hits: list[TranscriptHit], degraded: list[str], found: SearchResult) -> Written:
    kept = hits if params.max_tokens is None else within(hits, params.max_tokens)
    return written(
        TranscriptSearchResult(
            query=params.query, count=len(kept), results=kept, degraded=degraded, unlikely=found.unlikely,
            note=found.note,
        )
    )  # fmt: skip


def begun(found: SearchResult, now_s: float) -> SearchResult:
    """Leave out memories that do not hold yet. Few have a stated begin, so this costs less than a filter."""
    hits = [hit for hit in found.hits if not _is_pending(hit.group_metadata.get("begins"), now_s)]
    return found if len(hits) == len(found.hits) else replace(found, hits=hits)


def _is_pending(begins: Value, now_s: float) -> bool:
    return isinstance(begins, int | float) and begins > now_s


def merged(found: Mapping[Corpus, SearchResult]) -> list[EverythingHit]:
    """Merge the hits of all corpora, best first; ties are ordered by rank in their own corpus."""
    ranked = [
        (rank, _hit(corpus, found[corpus].source, hit))
        for corpus in sorted(found)
        for rank, hit in enumerate(found[corpus].hits)
    ]
    return [hit for _, hit in sorted(ranked, key=lambda each: (-each[1].score, each[0]))]


def once_each(hits: Sequence[EverythingHit]) -> list[EverythingHit]:
    """Return one hit for turns of the same role and words, the latest, at the place of the best.

    Its metadata name the others as `repeated_in`, at most `MAX_REPEATS` of them. Other corpora are unchanged: where a
    note or memory stands is part of what it says.
    """
    alike: dict[tuple[str, str, str], list[EverythingHit]] = {}
    for hit in hits:
        own = hit.id if hit.corpus is not Corpus.TRANSCRIPTS else ""
        alike.setdefault((hit.corpus, own, "\0".join(_words(hit.context, hit.text))), []).append(hit)
    kept: list[EverythingHit] = []
    for some in alike.values():
        latest = max(some, key=_time)
        others = [hit.id for hit in some if hit is not latest]
        more = {"repeated_in": others[:MAX_REPEATS]} if others else {}
        kept.append(replace(latest, score=some[0].score, metadata=latest.metadata | more))
    return kept


def _words(role: str, text: str) -> tuple[str, str]:
    return role, text.strip()


def _time(hit: EverythingHit) -> float:
    at = hit.metadata.get("at")
    return float(at) if isinstance(at, int | float) else 0.0


def filters(params: TranscriptsSearch) -> list[Filter]:
    """Return the filters for `params`.

    Raises InvalidParams for an invalid time.
    """
    named = {name: getattr(params, name) for name in ("role", "agent", "project")}
    found = [Filter(field=name, any_of=[value]) for name, value in named.items() if value]
    if params.tool == "*":
        found.append(Filter(field="tools", prefix=""))
    elif params.tool:
        found.append(Filter(field="tools", any_of=[params.tool]))
    return found + between("at", params.since, params.until)


def one_each(hits: Sequence[Hit], holders: Mapping[str, Collection[object]]) -> list[Hit]:
    """Return the best hit of each conversation; `holders` are the conversations that each turn is part of."""
    seen: set[object] = set()
    best: list[Hit] = []
    for hit in hits:
        mine = set(holders.get(hit.group, ())) or {hit.group_metadata.get("root")}
        if not mine <= seen:
            best.append(hit)
        seen |= mine
    return best


def results(db: apsw.Connection, hits: Sequence[Hit], limit: int) -> list[TranscriptHit]:
    """Convert hits to results; hits without a node are left out."""
    found: list[TranscriptHit] = []
    for hit in hits:
        if (node := forest.find(db, hit.group)) is None:
            continue
        path = [
            LineageTurn(hash=digest.hex(), role=role, text=read_text(forest.read_blocks(content)))
            for digest, role, content in forest.lineage(db, node.node_id, "hash, role, content")
        ]
        blocks = node.blocks
        found.append(
            TranscriptHit(
                hash=node.hash, score=hit.score, role=node.role, preview=path[-1].text, depth=len(path), lineage=path,
                machine=node.elsewhere, branch=node.branch, files=files_of(blocks), changes=changes_of(blocks),
            )
        )  # fmt: skip
        if len(found) == limit:
            break
    return found


def within(found: Sequence[TranscriptHit], max_tokens: int) -> list[TranscriptHit]:
    """Return as many results as fit, at least one. Its oldest turns are cut first, the hit last."""
    left = max_tokens * CHARS_PER_TOKEN
    kept: list[TranscriptHit] = []
    for hit in found:
        frame = _TURN_CHARS * (len(hit.lineage) + 1)
        # The turn itself is returned twice.
        room = left - frame - 2 * len(hit.preview)
        if room < 0 and kept:
            break
        # In a long conversation the turns' hashes alone exceed the limit, and the hit itself matters most.
        own = hit.preview if room >= 0 else cut(hit.preview, max(left // 4, (left - frame) // 2))
        lineage: list[LineageTurn] = []
        room = max(0, room)
        for turn in reversed(hit.lineage[:-1]):
            text = cut(turn.text, room)
            room -= len(text)
            lineage.append(replace(turn, text=text))
        lineage.reverse()
        kept.append(replace(hit, preview=own, lineage=[*lineage, replace(hit.lineage[-1], text=own)]))
        left -= frame + 2 * len(own) + sum(len(turn.text) for turn in lineage)
        if left <= 0:
            break
    return kept


def cut(text: str, room: int) -> str:
    """Truncate `text` to `room` characters, with an ellipsis."""
    if len(text) <= room:
        return text
    return f"{text[: max(0, room - 1)].rstrip()}…" if room > 0 else ""


def _hit(corpus: Corpus, source: str, hit: Hit) -> EverythingHit:
    first, last = (hit.item_metadata.get(name) for name in ("first", "last"))
    return EverythingHit(
        corpus=corpus,
        # Documents with the same content form one group, and tools identify it by its hash.
        id=str(hit.group_metadata.get("hash", hit.group)) if corpus is Corpus.DOCUMENTS else hit.group,
        score=hit.score,
        title=hit.title,
        context=hit.heading,
        text=hit.text,
        lines=f"{first}-{last}" if first else "",
        source=source,
        ranking=Ranking(words=_rounded(hit.lexical), similarity=_rounded(hit.vector), rerank=_rounded(hit.rerank)),
        metadata={key: value for key, value in hit.group_metadata.items() if value and key not in _OWN},
    )


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 4)
