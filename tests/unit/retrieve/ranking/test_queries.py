"""A query's vector is made once for all that ask it, and again for another model or where it failed."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from proto.errors import Unavailable
from proto.ops.embed import EmbedResult, EmbedTexts, TextKind
from services.retrieve.ranking.queries import CACHED_QUERIES, QueryCall, QueryVectors
from tests.unit.retrieve.rig import WordEmbedder


def of(queries: QueryVectors, embedder: WordEmbedder, fingerprint: str = "words:1") -> QueryCall:
    """As a search asks."""

    async def ask(query: EmbedTexts, timeout_s: float) -> EmbedResult:
        cached = queries.cached(query.texts[0], fingerprint)
        return await (cached or queries.shared(embedder.query, lambda: fingerprint))(query, timeout_s)

    return ask


def query(text: str) -> EmbedTexts:
    return EmbedTexts(texts=[text], kind=TextKind.QUERY)


async def test_a_query_that_was_asked_lately_is_embedded_once() -> None:
    embedder, queries = WordEmbedder(), QueryVectors()
    first = await of(queries, embedder)(query("sea star"), 1.0)
    assert await of(queries, embedder)(query("sea star"), 1.0) is first
    assert embedder.calls == 1
    for n in range(CACHED_QUERIES):
        await of(queries, embedder)(query(f"another {n}"), 1.0)
    await of(queries, embedder)(query("sea star"), 1.0)
    assert embedder.calls == CACHED_QUERIES + 2


async def test_searches_of_one_moment_share_the_vector_that_is_being_made() -> None:
    embedder, queries = WordEmbedder(), QueryVectors()
    found: list[EmbedResult] = []

    async def ask() -> None:
        found.append(await of(queries, embedder)(query("sea star"), 1.0))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
    assert (len(found), embedder.calls) == (3, 1)


async def test_a_vector_of_another_model_is_made_again() -> None:
    embedder, queries = WordEmbedder("words:1"), QueryVectors()
    await of(queries, embedder)(query("sea star"), 1.0)
    embedder.fingerprint = "words:2"
    # The collection has adopted the new model, so the cached vector is useless.
    assert (await of(queries, embedder, "words:2")(query("sea star"), 1.0)).fingerprint == "words:2"
    assert embedder.calls == 2


async def test_a_search_that_waits_for_a_shared_vector_requests_its_own_if_that_fails() -> None:
    embedder, queries = WordEmbedder(), QueryVectors()
    embedder.hangs = True
    found: list[EmbedResult] = []
    async with trio.open_nursery() as nursery:
        gone = trio.CancelScope()

        async def give_up() -> None:
            with gone:
                await of(queries, embedder)(query("sea star"), 1.0)

        async def ask() -> None:
            found.append(await of(queries, embedder)(query("sea star"), 1.0))

        nursery.start_soon(give_up)
        await embedder.until_called(1)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        embedder.hangs = False
        gone.cancel()
    assert (len(found), embedder.calls) == (1, 2)
    embedder.failure = Unavailable("down")
    for _ in range(2):
        with pytest.raises(Unavailable):
            await of(queries, embedder)(query("never made"), 1.0)
    assert embedder.calls == 4
