"""Every store of collections filters and ranks alike."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from proto.ops.retrieve import Filter, Group, Item, Value
from services.retrieve.collection import Collection
from services.retrieve.index.vectors import Matrix
from services.retrieve.item_store import ItemWithVector
from services.retrieve.postgres import collection as postgres_collection
from services.retrieve.postgres import searching
from services.retrieve.ranking.neighbours import GroupNeighbours
from services.retrieve.store import Snapshot
from tests.store.rig import FLAT, LocalStore, ServerStore, Store, asked, indexed, opened, words
from tests.unit.retrieve.rig import DIMENSIONS, WordEmbedder, ask, embedded, group, vector

VOCABULARY = [f"word{n}" for n in range(60)] + ["running", "runs", "Müller", "über", "snake_case", "parseHttpRequest"]


FILTERED: list[tuple[dict[str, Any], set[str]]] = [
    ({"any_of": ["red"]}, {"word", "list"}),
    ({"any_of": ["red", 3]}, {"word", "list", "number"}),
    ({"any_of": ["nothing"]}, set()),
    ({"any_of": [1]}, {"bool", "one"}),
    ({"any_of": [2**53 + 1]}, {"large"}),
    ({"any_of": ["3"]}, {"digits"}),
    ({"prefix": "re"}, {"word", "list"}),
    ({"prefix": "%"}, {"percent"}),
    ({"prefix": ""}, {"word", "list", "digits", "percent", "nul"}),
    ({"at_least": 3}, {"number", "large"}),
    ({"at_least": 0.1, "at_most": 0.1}, {"tenth"}),
    ({"at_most": 0}, {"negative", "false"}),
    ({"any_of": ["nul\0"]}, {"nul"}),
]


VALUES: dict[str, Value] = {
    "word": "red", "list": ["red", "blue"], "number": 3, "bool": True, "one": 1, "false": False, "large": 2**53 + 1,
    "digits": "3", "percent": "%x", "tenth": 0.1, "negative": -2.5, "none": None, "nul": "nul\0",
}  # fmt: skip


async def test_filters_admit_the_same_groups_everywhere(store: Store) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put([group(name, "piece", metadata={"field": value}) for name, value in VALUES.items()])
        await collection.put([group("other", "piece", metadata={"another": "red"}), group("bare", "piece")])
        await embedded(collection, embedder)
        for condition, expected in FILTERED:
            each = Filter(field="field", **condition)
            assert set(await words(collection, "piece", each)) == expected, condition
            found = await ask(collection, embedder, asked("piece", "vector", each, limit=100))
            assert {hit.group for hit in found.hits} == expected, condition
            counted = await collection.read(partial(_matched, filters=[each]))
            assert counted == (len(expected), sorted(expected)), condition
        both = [Filter(field="field", prefix="re"), Filter(field="field", any_of=["blue"])]
        assert await words(collection, "piece", *both) == ["list"]


def _matched(snapshot: Snapshot, filters: list[Filter]) -> tuple[int, list[str]]:
    return snapshot.count_groups(filters), snapshot.matching(filters)


async def test_words_get_the_same_scores_everywhere(store: Store, tmp_path: Path) -> None:
    dice = random.Random(5)
    groups = [
        Group(
            id=f"g{n}", title=" ".join(dice.choices(VOCABULARY, k=2)), names=dice.choice(VOCABULARY),
            items=[_text(dice)],
        )
        for n in range(150)
    ]  # fmt: skip
    queries = [
        "word1",
        "word2 word3 word4",
        "running",
        "mueller",
        "snake case",
        "parse http word9",
        "http request",
        "x",
    ]
    folder = tmp_path / "reference"
    folder.mkdir()
    async with opened(store.engine()) as collection, opened(LocalStore(folder).engine()) as reference:
        await collection.put(groups)
        await reference.put(groups)
        for query in queries:
            scores = [
                {each: round(score, 4) for each, score in (await _scored(of, query)).items()}
                for of in (collection, reference)
            ]
            assert scores[0] == scores[1], query
            weights = [await of.read(lambda view: view.weights(query)) for of in (collection, reference)]  # noqa: B023
            # The local store counts by its highest id.
            assert weights[0].keys() == weights[1].keys()
            assert all(abs(weights[0][term] - weights[1][term]) < 0.02 for term in weights[0])


def _text(dice: random.Random) -> Item:
    text = " ".join(dice.choices(VOCABULARY, k=dice.randint(3, 40)))
    return Item(key="0", heading=dice.choice(VOCABULARY), text=text)


async def _scored(collection: Collection, query: str) -> dict[str, float]:
    found = (await collection.find_words(query, 1000, ())).hits
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    items = await collection.items([item for item, _ in found])
    return {items[item].group: score for item, score in found}


async def test_vector_search_equals_a_full_comparison_with_an_index_and_without(store: Store) -> None:
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((20, DIMENSIONS))
    rows = centres[rng.integers(0, 20, 3 * FLAT)] + 0.6 * rng.standard_normal((3 * FLAT, DIMENSIONS))
    halves = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    async with opened(store.engine()) as collection:
        await collection.write(lambda change: change.adopt_model(f"given:{DIMENSIONS}", DIMENSIONS))
        await collection.adopt(f"given:{DIMENSIONS}", DIMENSIONS)
        for start in (0, FLAT // 2, FLAT):
            end = {0: FLAT // 2, FLAT // 2: FLAT, FLAT: 3 * FLAT}[start]
            await collection.put([_given(n, halves[n]) for n in range(start, end)])
            if end > FLAT:
                await indexed(collection)
            recall = [await _recall(collection, halves[:end], rng, ()) for _ in range(20)]
            assert np.mean(recall) >= (0.95 if end > FLAT else 1.0)
            few = [await _recall(collection, halves[:end], rng, [Filter(field="tens", any_of=[3])]) for _ in range(5)]
            assert np.mean(few) == 1.0
        # Deleted groups are not found, and others take their place.
        await collection.delete([f"g{n}" for n in range(0, 3 * FLAT, 2)])
        query = halves[4].astype(np.float32)
        index = collection.searched_vectors()
        found = await collection.read(lambda view: view.nearest(index, query, 50, ()))
        numbers = {int(each.group[1:]) for each in (await collection.items([item for item, _ in found])).values()}
        assert (len(numbers), {number % 2 for number in numbers}) == (50, {1})
        cosines = await collection.read(lambda view: view.cosines(index, query, [item for item, _ in found]))
        assert all(abs(cosines[item] - score) < 1e-4 for item, score in found)


def _given(number: int, half: Any) -> Group:
    item = ItemWithVector(key="0", text="", vector=half.astype("<f2").tobytes())
    return Group(id=f"g{number}", items=[item], metadata={"tens": number % 10})


async def _recall(collection: Collection, halves: Any, rng: np.random.Generator, filters: Any) -> float:
    query: Matrix = (halves[rng.integers(len(halves))] + 0.05 * rng.standard_normal(DIMENSIONS)).astype(np.float32)
    query /= np.linalg.norm(query)
    exact = halves.astype(np.float32) @ query
    if filters:
        exact[np.arange(len(halves)) % 10 != 3] = -2
    best = np.sort(exact)[-10:]
    index = collection.searched_vectors()
    found = await collection.read(lambda view: view.nearest(index, query, 10, filters))
    assert len(found) == 10
    return float(np.mean([score >= best[0] - 1e-4 for _, score in found]))


async def test_neighbours_and_pairs_come_from_the_stored_vectors(store: Store) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "cat sat", "cat slept"), group("b", "cat sat"), group("c", "stock market")])
        await embedded(collection, embedder)
        neighbours = GroupNeighbours(collection)
        found = await neighbours.similar("a", 5, -1)
        assert [each.group for each in found.neighbours] == ["b", "c"]
        expected = vector("cat sat") + vector("cat slept")
        assert (
            abs(found.neighbours[0].similarity - float(expected @ vector("cat sat") / np.linalg.norm(expected))) < 2e-3
        )
        await collection.put([group("d", "cat sat")])
        await embedded(collection, embedder)
        assert {each.group for each in (await neighbours.similar("a", 5, 0.5)).neighbours} == {"b", "d"}


async def test_words_of_a_large_collection_on_a_server_are_ranked_nearly_as_if_all_were_scored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(store, ServerStore):
        pytest.skip("the local store scores every item")
    dice = random.Random(3)
    weights = [1 / (n + 1) for n in range(2000)]
    async with opened(store.engine()) as collection:
        for start in range(0, 3000, 500):
            await collection.put(
                [group(f"g{n}", " ".join(f"w{each}" for each in dice.choices(range(2000), weights, k=12)))
                 for n in range(start, start + 500)]
            )  # fmt: skip
        queries = [" ".join(f"w{each}" for each in dice.choices(range(2000), weights, k=4)) for _ in range(30)]
        exact = [await _scored(collection, query) for query in queries]
        monkeypatch.setattr(postgres_collection, "SMALL", 1000)
        monkeypatch.setattr(searching, "FEW", 300)
        with psycopg.connect(store.postgres.dsn, autocommit=True) as connection:
            connection.execute(f"ANALYZE {store.schema}.items_1")
    async with opened(store.engine()) as collection:
        kept = []
        for query, before in zip(queries, exact, strict=True):
            best = sorted(before, key=lambda each: -before[each])[:5]
            found = await _scored(collection, query)
            assert len(found) <= 300
            kept.append(sum(before[each] >= before[best[-1]] - 0.3 for each in [*found][:5]) / max(1, len(best[:5])))
        assert sum(kept) / len(kept) > 0.9
