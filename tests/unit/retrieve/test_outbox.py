"""Every item gets the vector of its own words, through any failure of the embedder and any change meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import trio

from proto.errors import Internal, LinckiaError, MaybeExecuted, OperationError, Overloaded, Unavailable
from proto.ops.embed import EmbedResult, EmbedTexts
from proto.wire.frames import Backlog
from services.retrieve.collection import MAX_PRIORITIZED
from services.retrieve.local_collection import LocalCollection
from services.retrieve.vector_outbox import BATCH
from services.shared.text.cutting import embedded_text
from tests.unit.retrieve.rig import (
    WordEmbedder,
    drained,
    embedded,
    failed,
    group,
    near,
    opened,
    outbox_of,
    vector,
    worked,
)


async def nearest(collection: LocalCollection, text: str) -> str:
    (item_id, cosine), *_ = await near(collection, vector(text), 1, None)
    assert cosine > 0.99
    return (await collection.items([item_id]))[item_id].text


async def test_items_get_their_vectors_and_keep_them_over_a_restart(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), f"text number {n}") for n in range(300)])
        await embedded(collection, embedder)
    async with opened(tmp_path) as collection:
        assert len(collection.vectors) == 300
        assert await nearest(collection, "text number 77") == "text number 77"
        status = await collection.status()
        assert (status.vectors, status.vectors_waiting, status.fingerprint) == (300, 0, "words:1")


@pytest.mark.slow
@pytest.mark.parametrize("failure", [Unavailable("down"), Overloaded("full", retry_after_ms=20)])
async def test_embedding_continues_when_the_embedder_comes_back(tmp_path: Path, failure: LinckiaError) -> None:
    embedder = WordEmbedder()
    embedder.failure = failure
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "one", "two")])
        async with worked(collection, embedder):
            await embedder.until_called(2)
            assert await collection.count_waiting() == 2
            embedder.failure = None
            await drained(collection)
        assert len(collection.vectors) == 2
        assert (await collection.status()).vectors_failed == 0


@pytest.mark.parametrize("failure", [OperationError("bad text"), MaybeExecuted("died"), Internal("oh")])
async def test_one_bad_text_keeps_no_other_from_its_vector(tmp_path: Path, failure: LinckiaError) -> None:
    embedder = WordEmbedder()
    embedder.poison["poison"] = failure
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), "poison" if n == 37 else f"text {n}") for n in range(100)])
        async with worked(collection, embedder):
            await drained(collection, waiting=1)
            await failed(collection)
        status = await collection.status()
        assert (status.vectors, status.vectors_waiting, status.vectors_failed) == (99, 1, 1)


async def test_a_text_that_failed_is_tried_again_later(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    embedder.poison["poison"] = OperationError("bad text")
    clock = [1000.0]
    async with opened(tmp_path) as collection, trio.open_nursery() as nursery:
        await collection.put([group("a", "poison")])
        nursery.start_soon(outbox_of(collection, embedder, now=lambda: clock[0]))
        await failed(collection)
        embedder.poison.clear()
        clock[0] += 31
        collection.has_work.set()
        await drained(collection)
        nursery.cancel_scope.cancel()
        assert len(collection.vectors) == 1


def between(
    embedder: WordEmbedder, meanwhile: Callable[[], Awaitable[object]]
) -> Callable[[EmbedTexts], Awaitable[EmbedResult]]:
    """The embedder, with something happening while its first answer is under way."""
    first = True

    async def embed(params: EmbedTexts) -> EmbedResult:
        nonlocal first
        result = await embedder.embed(params)
        if first:
            first = False
            await meanwhile()
        return result

    return embed


async def test_a_text_that_changed_meanwhile_never_gets_the_old_texts_vector(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection, trio.open_nursery() as nursery:
        await collection.put([group("a", "old words"), group("b", "other"), group("c", "third")])

        async def change() -> None:
            await collection.put([group("a", "new meaning")])
            await collection.delete(["b"])

        nursery.start_soon(outbox_of(collection, embedder, between(embedder, change)))
        await drained(collection)
        nursery.cancel_scope.cancel()
        assert len(collection.vectors) == 2
        assert await nearest(collection, "new meaning") == "new meaning"
        found = await near(collection, vector("old words"), 10, None)
        assert max(cosine for _, cosine in found) < 0.9


async def test_a_new_model_replaces_every_vector_at_once_and_the_two_never_mix(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), f"text {n}") for n in range(200)])
        await embedded(collection, embedder)
        await collection.adopt("words:2", 64)
        assert (len(collection.vectors), collection.fingerprint, collection.waiting) == (200, "words:1", 200)
        embedder.fingerprint, embedder.earlier = "words:2", {"words:1"}
        halfway, go_on = trio.Event(), trio.Event()

        async def embed(params: EmbedTexts) -> EmbedResult:
            if collection.waiting <= 100:
                halfway.set()
                await go_on.wait()
            return await embedder.embed(params)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox_of(collection, embedder, embed))
            with trio.fail_after(20):
                await halfway.wait()
            assert 0 < collection.waiting <= 100
            assert (len(collection.vectors), collection.fingerprint) == (200, "words:1")
            go_on.set()
            await drained(collection)
            nursery.cancel_scope.cancel()
        assert (len(collection.vectors), collection.fingerprint, collection.coming) == (200, "words:2", None)
        status = await collection.status()
        assert (status.vectors, status.fingerprint, status.coming) == (200, "words:2", None)
    async with opened(tmp_path) as collection:
        assert (len(collection.vectors), collection.fingerprint) == (200, "words:2")


async def test_items_put_during_a_change_of_model_are_found_with_the_previous_model(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), f"text {n}") for n in range(2 * BATCH)])
        await embedded(collection, embedder)
        await collection.adopt("words:2", 64)
        await collection.put([group("new", "fresh words"), group("7", "moved"), group("moved here", "text 7")])
        assert (collection.progress.lacking, len(collection.vectors)) == (2, 2 * BATCH)
        embedder.fingerprint, embedder.earlier = "words:2", {"words:1"}
        asked: list[str] = []

        async def embed(params: EmbedTexts) -> EmbedResult:
            asked.append(params.fingerprint)
            assert collection.fingerprint == "words:1"
            if asked == ["words:1", ""]:
                assert await nearest(collection, "fresh words") == "fresh words"
            return await embedder.embed(params)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox_of(collection, embedder, embed))
            await drained(collection)
            nursery.cancel_scope.cancel()
        assert asked == ["words:1", "", "", ""]
        assert (len(collection.vectors), collection.fingerprint) == (2 * BATCH + 2, "words:2")


async def test_a_piece_that_the_new_model_fails_on_does_not_keep_the_others_from_being_searched(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), f"text {n}") for n in range(20)])
        await embedded(collection, embedder)
        embedder.fingerprint, embedder.poison["19"] = "words:2", OperationError("bad text")
        async with worked(collection, embedder):
            with trio.fail_after(20):
                while collection.fingerprint != "words:2":  # noqa: ASYNC110  # the outbox tells nobody
                    await trio.sleep(0.01)
        assert (len(collection.vectors), collection.waiting) == (19, 1)


async def test_going_back_to_a_model_keeps_its_remaining_vectors(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "one", "two")])
        await embedded(collection, embedder)
        await collection.adopt("words:2", 64)
        await collection.adopt("words:1", 64)
        assert (len(collection.vectors), collection.waiting) == (2, 0)


async def test_an_idle_worker_notices_a_new_model(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "one")])
        await embedded(collection, embedder)
        embedder.fingerprint = "words:2"
        async with worked(collection, embedder):
            with trio.fail_after(20):
                while collection.fingerprint != "words:2" or not len(collection.vectors):  # noqa: ASYNC110
                    await trio.sleep(0.01)


async def test_vectors_are_kept_in_halves_that_agree_with_what_is_searched(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "some text of words")])
        await embedded(collection, embedder)
        before = await near(collection, vector("some text"), 1, None)
    async with opened(tmp_path) as collection:
        after = await near(collection, vector("some text"), 1, None)
    assert before == after
    assert np.isclose(before[0][1], float(vector("some text") @ vector("some text of words")), atol=1e-3)


@pytest.mark.parametrize(
    ("title", "heading", "text", "expected"),
    [
        ("", "", "body", "body"),
        ("Title", "", "body", "Title\nbody"),
        ("Title", "Title > Part", "body", "Title > Part\nbody"),
        ("Title", "Part", "Part\nbody", "Title\nPart\nbody"),
    ],
)
def test_title_and_heading_are_embedded_before_the_text_once(
    title: str, heading: str, text: str, expected: str
) -> None:
    assert embedded_text(title, heading, text) == expected


async def test_searched_items_are_embedded_before_those_that_have_waited_longer(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), f"text number {n}") for n in range(400)])
        collection.prioritize(["399", "7", "is not there"])
        await embedded(collection, embedder)
        assert set(embedder.texts[:2]) == {"text number 399", "text number 7"}
        assert len(embedder.texts) == 400
        assert collection.prioritized == {}


async def test_only_a_limited_number_of_recently_searched_groups_is_prioritized(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        collection.prioritize(["nothing waits"])
        assert not collection.prioritized
        await collection.put([group("a", "one")])
        collection.prioritize(map(str, range(MAX_PRIORITIZED + 1)))
        assert (len(collection.prioritized), "0" in collection.prioritized) == (MAX_PRIORITIZED, False)


async def test_a_collection_says_how_far_its_vectors_are_while_some_are_to_come(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        assert collection.backlog() is None
        await collection.put([group(str(n), f"text number {n}") for n in range(300)])
        assert (await collection.status()).backlog == Backlog(done=0, total=300)
        gate = trio.Event()

        async def embed(params: EmbedTexts) -> EmbedResult:
            if embedder.calls:
                await gate.wait()
            return await embedder.embed(params)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox_of(collection, embedder, embed))
            await drained(collection, 300 - BATCH)
            held = collection.backlog()
            assert held is not None
            assert (held.done, held.total) == (BATCH, 300)
            assert held.per_s
            assert held.left_s == pytest.approx((300 - BATCH) / held.per_s, abs=0.1)
            gate.set()
            await drained(collection)
            assert collection.backlog() is None
            nursery.cancel_scope.cancel()
