"""One search of all corpora: conversations, notes and documents, each passage with where it is from.

The collections are asked side by side. Their scores are of one kind where the same stages ran in each (a cosine and
words in one range, or the cross-encoder's score), and are compared as they are; where one corpus could be searched by
words alone, its scores say little beside the others', and `degraded` says so.
"""

from __future__ import annotations

import trio

from proto.errors import InvalidParams, LinckiaError, Unavailable
from proto.ops.retrieve import Hit, RetrieveSearch, SearchResult
from proto.ops.transcripts import Corpus, EverythingHit, EverythingResult, SearchEverything
from services.runtime.handlers import Context
from services.transcripts.search.feed import Feed
from services.transcripts.store import forest
from services.transcripts.store.database import Store

_HIDDEN = frozenset({"root"})
"""Of the metadata: for the search itself."""


async def search(
    params: SearchEverything, ctx: Context, store: Store, feed: Feed, patience_s: float
) -> EverythingResult:
    """Raises Unavailable where no corpus can be searched."""
    if not params.query.strip():
        raise InvalidParams("parameter `query` is blank; say what to look for", field="query")
    corpora = list(dict.fromkeys(params.corpora)) or list(Corpus)
    left = await feed.caught_up(patience_s) if Corpus.TRANSCRIPTS in corpora else 0
    found: dict[Corpus, SearchResult] = {}
    degraded: list[str] = []

    async def ask(corpus: Corpus) -> None:
        try:
            found[corpus] = await ctx.call(
                RetrieveSearch(collection=corpus.value, query=params.query, limit=params.limit)
            )
        except LinckiaError as error:
            degraded.append(f"{corpus.value}: {error}")

    async with trio.open_nursery() as nursery:
        for corpus in corpora:
            nursery.start_soon(ask, corpus)
    if not found:
        raise Unavailable("; ".join(degraded), retry_after_ms=1000)
    hits = [_hit(corpus, result.source, hit) for corpus, result in found.items() for hit in result.hits]
    turns = [hit.id for hit in hits if hit.corpus is Corpus.TRANSCRIPTS]
    # What was deleted a moment ago, the search may still hold.
    there = await store.read(lambda db: {hash_ for hash_ in turns if forest.find(db, hash_) is not None})
    hits = [hit for hit in hits if hit.corpus is not Corpus.TRANSCRIPTS or hit.id in there]
    hits.sort(key=lambda hit: (-hit.score, hit.corpus, hit.id))
    degraded += [f"{corpus.value}: {reason}" for corpus, result in found.items() for reason in result.degraded]
    if left:
        degraded.append(f"transcripts: {left} turns are still to be indexed")
    kept = hits[: params.limit]
    searched = [corpus for corpus in corpora if corpus in found]
    return EverythingResult(query=params.query, count=len(kept), results=kept, searched=searched, degraded=degraded)


def _hit(corpus: Corpus, source: str, hit: Hit) -> EverythingHit:
    return EverythingHit(
        corpus=corpus,
        id=hit.group,
        score=hit.score,
        title=hit.title,
        context=hit.heading,
        text=hit.text,
        source=source,
        metadata={key: value for key, value in hit.group_metadata.items() if key not in _HIDDEN},
    )
