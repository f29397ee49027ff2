"""Every store of collections keeps vectors alike, and waits for those that are missing."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from proto.errors import OperationError
from proto.ops.retrieve import Group
from services.retrieve.item_store import ItemWithVector
from tests.store.rig import FLAT, Store, asked, indexed, opened
from tests.unit.retrieve.rig import DIMENSIONS, WordEmbedder, ask, drained, embedded, group, outbox_of, vector, worked


@pytest.mark.parametrize("dimensions", [4000, 8192])
async def test_vectors_of_any_size_are_stored_indexed_and_found(store: Store, dimensions: int) -> None:
    dice = np.random.default_rng(1)
    vectors = dice.standard_normal((FLAT + 1, dimensions)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    fingerprint = f"given:{dimensions}"
    groups = [
        Group(id=f"g{n}", items=[ItemWithVector(key="0", text="piece", vector=each.astype("<f2").tobytes())])
        for n, each in enumerate(vectors)
    ]
    async with opened(store.engine()) as collection:
        await collection.write(lambda transaction: transaction.adopt_model(fingerprint, dimensions))
        await collection.adopt(fingerprint, dimensions)
        await collection.put(groups)
        if store.shared:
            await indexed(collection)
        index = collection.searched_vectors()
        found = await collection.read(lambda snapshot: snapshot.nearest(index, vectors[7], 1, ()))
        items = await collection.items([item for item, _ in found])
        assert [each.group for each in items.values()] == ["g7"]


async def test_vectors_that_are_replaced_count_once(store: Store) -> None:
    def one(x: float, y: float) -> Group:
        packed = np.array([x, y], dtype="<f2").tobytes()
        return Group(id=f"g{x}", items=[ItemWithVector(key="0", text="piece", vector=packed)])

    async with opened(store.engine()) as collection:
        await collection.write(lambda transaction: transaction.adopt_model("given:2", 2))
        await collection.adopt("given:2", 2)
        for _ in range(3):
            await collection.put([one(1, 0), one(0, 1)])
        assert collection.vector_count == 2


async def test_a_new_model_takes_over_once_all_its_vectors_are_there(store: Store) -> None:
    old, new = WordEmbedder("words:1"), WordEmbedder("words:2")
    new.earlier.add("words:1")
    async with opened(store.engine()) as collection:
        await collection.put([group(f"g{n}", f"piece number{n}") for n in range(30)])
        await embedded(collection, old)
        await collection.adopt("words:2", DIMENSIONS)
        assert (collection.fingerprint, collection.waiting) == ("words:1", 30)
        assert collection.coming is not None
        found = await ask(collection, new, asked("number7", "vector"))
        assert found.hits[0].group == "g7"
        async with worked(collection, new):
            await drained(collection)
        assert collection.fingerprint == "words:2"
        assert (await collection.count_waiting(), collection.progress.made) == (0, 30)
        assert (await ask(collection, new, asked("number7", "vector"))).hits[0].group == "g7"
        assert (await collection.status()).vectors == 30


async def test_a_text_that_fails_waits_and_the_others_do_not(store: Store) -> None:
    embedder = WordEmbedder()
    embedder.poison["poison"] = OperationError("cannot")
    async with opened(store.engine()) as collection:
        await collection.put([group(f"g{n}", "poison" if n == 3 else f"piece {n}") for n in range(8)])
        async with worked(collection, embedder):
            with trio.fail_after(20):
                # The text that fails may be settled before the others, which are made meanwhile.
                while not (await collection.status()).vectors_failed or collection.progress.made < 7:  # noqa: ASYNC110
                    await trio.sleep(0.01)
        assert (collection.progress.waiting, collection.progress.made) == (1, 7)
        embedder.poison.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox_of(collection, embedder, now=lambda: 4e9))
            await drained(collection)
            nursery.cancel_scope.cancel()


async def test_pending_items_are_paged_from_the_newest_and_settled_once(store: Store) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put([group(f"g{n}", f"piece {n}") for n in range(5)])
        everything = await collection.read(lambda store: store.waiting_before(0.0, 2**63 - 1, 10))
        assert [each.text for each in everything] == [f"piece {n}" for n in (4, 3, 2, 1, 0)]
        last = everything[2]
        rest = await collection.read(lambda store: store.waiting_before(0.0, last.item_id, 1))
        assert [each.text for each in rest] == ["piece 1"]
        await collection.adopt(embedder.fingerprint, DIMENSIONS)
        done = [(each, vector(each.text).astype("<f2").tobytes()) for each in everything[:3]]
        for _ in range(2):
            await collection.settle(embedder.fingerprint, done)
            assert await collection.count_waiting() == 2
        # Another model's, and those of words that have changed, are ignored.
        await collection.settle("words:2", [(each, done[0][1]) for each in everything[3:]])
        await collection.settle(embedder.fingerprint, [(everything[4]._replace(hash=b"other"), done[0][1])])
        assert (await collection.status()).vectors == 3
        left = await collection.read(lambda store: store.waiting_before(0.0, 2**63 - 1, 10))
        assert [each.text for each in left] == ["piece 1", "piece 0"]
