"""The operations that compare notes: gaps, near-duplicates, and reading suggestions."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import apsw
import trio

from proto.errors import InvalidParams, LinckiaError, Unavailable
from proto.ops.embed import EmbedTexts
from proto.ops.retrieve import UNLIKELY, Pair, RetrievePairs, RetrieveStatus
from services.knowledge import nodes
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.notes.files import text_if_readable
from services.knowledge.notes.frontmatter import split
from services.knowledge.operations import notes as ops
from services.knowledge.search import duplicates, gaps, reading_suggestions, words
from services.knowledge.search.refinement import Refiner
from services.knowledge.search.search_operations import Search
from services.knowledge.search.topics import MAX_PAIRS
from services.runtime.database import Database
from services.runtime.handlers import Context, handles

FIRST_PAIRS = 2000
"""Number of pairs requested first; many, because the most similar notes are probably linked."""

READ_PAIRS = 200
"""Number of pairs whose notes are read and compared at a time."""

MAX_READ = 5000
"""Maximum number of notes read per call."""

ALIKE = 0.8
"""Minimum cosine of candidates for near-duplicates; their words then decide."""

GROUP_NOTES = 20
"""Maximum number of notes listed per group of near-duplicates."""

QUOTED = 20
"""Number of gaps that quote the nearest sentences, and the timeout for embedding those.  At least this many gaps are
read, so that sentences repeated in many notes can be recognised."""
QUOTES_WAIT_S = 5.0

SEARCHED_CHARS = 8192
READING_HITS = 20

Contents = dict[str, gaps.NoteContent | None]
Known = dict[str, duplicates.Runs]


class Discovery:
    """The operations."""

    def __init__(self, database: Database, ingest: Ingest, refiner: Refiner, search: Search) -> None:
        self._database = database
        self._ingest = ingest
        self._refiner = refiner
        self._search = search
        self._working = trio.CapacityLimiter(2)

    @handles(ops.FindGaps)
    async def find_gaps(self, params: ops.FindGaps, ctx: Context) -> list[ops.Gap]:
        wanted = max(FIRST_PAIRS, 4 * params.limit)
        known: Known = {}
        while True:
            asked = RetrievePairs(collection=COLLECTION, threshold=params.threshold, limit=wanted)
            compared = await ctx.call(asked)
            pairs = await self._database.read(functools.partial(gaps.without_links, pairs=compared.pairs))
            pairs = await self._distinct(pairs, max(params.limit, QUOTED), known)
            complete = len(pairs) >= params.limit or not compared.more
            if complete or wanted >= MAX_PAIRS:
                break
            wanted = min(MAX_PAIRS, 8 * wanted)
        await self._check_whole(ctx, bool(pairs), compared.vectors_waiting, complete)
        ids = dict.fromkeys(id_ for pair in pairs for id_ in (pair.first, pair.second))
        there = await self._database.read(lambda db: {id_: nodes.find(db, id_) for id_ in ids})
        shown = pairs[: params.limit]
        contents, said = await trio.to_thread.run_sync(self._contents, shown, there, limiter=self._working)
        plain = await self._explained(shown, contents, said, ctx)
        return await self._refiner.linked(shown, plain, contents, ctx)

    async def _distinct(self, pairs: Sequence[Pair], limit: int, known: Known) -> list[Pair]:
        """Return the first `limit` of `pairs` that are not near-duplicates."""
        kept: list[Pair] = []
        for start in range(0, len(pairs), READ_PAIRS):
            some = pairs[start : start + READ_PAIRS]
            alike = await self._likenesses(some, known)
            kept += [pair for pair, share in zip(some, alike, strict=True) if share < duplicates.SAME]
            if len(kept) >= limit:
                break
        return kept[:limit]

    async def _likenesses(self, pairs: Sequence[Pair], known: Known) -> list[float]:
        """Return the similarity of each pair's texts, reading notes not `known` yet, up to `MAX_READ` in all.

        Pairs with a note that cannot be read, or beyond that limit, have 0.
        """
        ids = dict.fromkeys(id_ for pair in pairs for id_ in (pair.first, pair.second) if id_ not in known)
        missing = list(ids)[: MAX_READ - len(known)]
        there = await self._database.read(lambda db: [nodes.find(db, id_) for id_ in missing])

        def compare() -> list[float]:
            for id_, node in zip(missing, there, strict=True):
                trio.from_thread.check_cancelled()
                # None if the file cannot be read.
                text = None if node is None else text_if_readable(node.place, self._ingest.roots)
                known[id_] = duplicates.runs(split(text or "")[1])
            none: duplicates.Runs = frozenset()
            return [duplicates.likeness(known.get(pair.first, none), known.get(pair.second, none)) for pair in pairs]

        return await trio.to_thread.run_sync(compare, limiter=self._working)

    def _contents(
        self, pairs: Sequence[Pair], there: Mapping[str, nodes.IndexedNote | None]
    ) -> tuple[Contents, list[gaps.Compared]]:
        """Return the contents of the notes, and the sentences to compare for the first pairs.  Blocks on the disk."""
        contents: Contents = {}
        for id_, node in there.items():
            trio.from_thread.check_cancelled()
            contents[id_] = None if node is None else gaps.content(node.place, self._ingest.roots)
        common = words.commonplaces(each.sentences for each in contents.values() if each is not None)
        said = [gaps.compared(contents[pair.first], contents[pair.second], common) for pair in pairs[:QUOTED]]
        return contents, [*said, *([([], [])] * (len(pairs) - len(said)))]

    async def _explained(
        self, pairs: Sequence[Pair], contents: Contents, said: Sequence[gaps.Compared], ctx: Context
    ) -> list[ops.Gap]:
        """Return the gaps with reasons that quote the nearest sentences."""
        texts = list(dict.fromkeys(each.text for both in said for own in both for each in own))
        vectors: words.Vectors = {}
        try:
            if texts:
                vectors = words.unpacked(texts, await ctx.call(EmbedTexts(texts=texts), timeout_s=QUOTES_WAIT_S))
        except LinckiaError as error:
            ctx.log("warning", f"notes_gaps: sentences are compared by words only: {error.failure.message}")

        def explain() -> list[ops.Gap]:
            made: list[ops.Gap] = []
            for pair, both in zip(pairs, said, strict=True):
                trio.from_thread.check_cancelled()
                made.append(gaps.gap(pair, contents[pair.first], contents[pair.second], both, vectors))
            return made

        return await trio.to_thread.run_sync(explain, limiter=self._working)

    async def _check_whole(self, ctx: Context, found: bool, vectors_waiting: int, complete: bool) -> None:
        """Log why the result may be incomplete.

        Raises:
            Unavailable: nothing was found, and not all notes could be compared.
        """
        lacking = self._lacking(vectors_waiting)
        if not complete:
            lacking.append(
                f"only the {MAX_PAIRS} most similar pairs were compared, and nearly all are linked or duplicates"
            )
        for reason in lacking:
            ctx.log("warning", f"notes_gaps: {reason}")
        if found or not lacking:
            return
        if complete and not self._ingest.index.pending and self._ingest.scanned:
            # Pieces that cannot be embedded must not delay the result forever.
            status = await ctx.call(RetrieveStatus(collection=COLLECTION))
            if vectors_waiting <= status.vectors_failed:
                return
            if status.no_model:
                raise Unavailable(f"notes are compared by meaning, which needs a model: {status.no_model}")
        raise Unavailable(
            "no gaps found yet, and not all notes could be compared: " + "; ".join(lacking), retry_after_ms=1000
        )

    def _lacking(self, vectors_waiting: int) -> list[str]:
        waiting = [f"vector: {vectors_waiting} pieces are still waiting for vectors"] if vectors_waiting else []
        return [*self._ingest.degraded(), *waiting]

    @handles(ops.FindDuplicateNotes)
    async def find_duplicate_notes(self, params: ops.FindDuplicateNotes, ctx: Context) -> ops.DuplicateNotes:
        found = duplicates.Groups()
        for same in await self._database.read(duplicates.same_text):
            for other in same[1:]:
                found.join(same[0], other, 1.0)
        asked = RetrievePairs(collection=COLLECTION, threshold=ALIKE, limit=MAX_PAIRS)
        compared = await ctx.call(asked)
        known: Known = {}
        for start in range(0, len(compared.pairs), READ_PAIRS):
            some = [p for p in compared.pairs[start : start + READ_PAIRS] if not found.together(p.first, p.second)]
            for pair, share in zip(some, await self._likenesses(some, known), strict=True):
                if share >= params.threshold:
                    found.join(pair.first, pair.second, share)
        lacking = self._lacking(compared.vectors_waiting)
        if compared.more or len(known) >= MAX_READ:
            lacking.append(f"only {len(known)} notes of the most similar pairs were compared word by word")
        groups = found.all()

        def listed(db: apsw.Connection) -> list[ops.DuplicateGroup]:
            return [
                ops.DuplicateGroup(
                    notes=[
                        ops.DuplicateNote(id=id_, path=node.place.path)
                        for id_ in duplicates.linked_first(db, ids)[:GROUP_NOTES]
                        if (node := nodes.find(db, id_)) is not None
                    ],
                    size=len(ids),
                    share=round(share, 3),
                )
                for share, ids in groups[: params.limit]
            ]

        return ops.DuplicateNotes(
            groups=await self._database.read(listed), more=max(0, len(groups) - params.limit), degraded=lacking
        )

    @handles(ops.SuggestReading)
    async def suggest_reading(self, params: ops.SuggestReading, ctx: Context) -> ops.ReadingList:
        if not params.context.strip():
            raise InvalidParams("parameter `context` is blank; describe the task or give a note's id", field="context")
        node = await self._database.read(lambda db: nodes.sought(db, params.context.strip()))
        query, least = params.context, UNLIKELY
        if node is not None:
            here = node
            content = await trio.to_thread.run_sync(gaps.content, here.place, self._ingest.roots, limiter=self._working)
            text = "" if content is None else content.text
            query = await self._database.read(lambda db: reading_suggestions.query_of(db, here, text))
            least = UNLIKELY if len(text) >= reading_suggestions.SHORT_CHARS else 0.0
        asked = ops.SearchDocuments(query=query[:SEARCHED_CHARS], limit=READING_HITS + params.limit, min_score=least)
        found = await self._search.search_documents(asked, ctx)
        results = await self._database.read(
            lambda db: reading_suggestions.readings(db, found.results, node, params.limit)
        )
        return ops.ReadingList(
            results=results, stages=[*found.metadata.stages, "links"], degraded=found.metadata.degraded
        )
