"""Every store of collections keeps, finds, ranks and forgets alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import psycopg
import pytest
import trio

from proto.errors import InvalidParams, OperationError
from proto.ops.retrieve import Filter, Fusion, Group, Item, RetrieveSearch, Scrubbed, Value
from services.retrieve.collection import Collection
from services.retrieve.index.vectors import Matrix
from services.retrieve.item_store import ItemWithVector
from services.retrieve.postgres import collection as postgres_collection
from services.retrieve.postgres import searching
from services.retrieve.ranking.neighbours import GroupNeighbours
from services.retrieve.store import Snapshot, Transaction
from tests.postgres import PostgresServer
from tests.store.rig import FLAT, LocalStore, ServerStore, Store, indexed, opened
from tests.unit.retrieve.rig import DIMENSIONS, WordEmbedder, ask, drained, embedded, group, outbox_of, vector, worked

VOCABULARY = [f"word{n}" for n in range(60)] + ["running", "runs", "Müller", "über", "snake_case", "parseHttpRequest"]


@pytest.fixture(params=["local", "hnsw", "binary"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "local":
        made: Store = LocalStore(tmp_path)
    else:
        server: PostgresServer = request.getfixturevalue("server")
        made = ServerStore(server, request.param)
    yield made
    made.close()


def asked(query: str, method: str = "weighted", *filters: Filter, limit: int = 10) -> RetrieveSearch:
    return RetrieveSearch(
        collection="notes", query=query, limit=limit, filters=list(filters), fusion=Fusion(method=method)
    )


async def words(collection: Collection, query: str, *filters: Filter) -> list[str]:
    found = (await collection.find_words(query, 100, filters)).hits
    items = await collection.items([item for item, _ in found])
    return [items[item].group for item, _ in found]


async def ids(collection: Collection) -> dict[str, int]:
    """Item ids by text."""
    found = (await collection.find_words("piece", 1000, ())).hits
    return {each.text: item for item, each in (await collection.items([item for item, _ in found])).items()}


async def test_a_group_is_replaced_as_a_whole_and_unchanged_items_keep_id_and_vector(store: Store) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece one", "piece two"), group("b", "piece three")])
        await embedded(collection, embedder)
        before = await ids(collection)
        embedder.texts.clear()
        change = await collection.put([group("a", "piece zero", "piece two"), group("b", "piece three")])
        assert (len(change.rows), change.gone) == (1, [before["piece one"]])
        after = await ids(collection)
        assert after == {
            "piece zero": after["piece zero"], "piece two": before["piece two"], "piece three": before["piece three"],
        }  # fmt: skip
        await embedded(collection, embedder)
        assert embedder.texts == ["piece zero"]
        # The same again changes nothing at all.
        change = await collection.put([group("a", "piece zero", "piece two")])
        assert (change.rows, change.gone) == ([], [])
        assert await ids(collection) == after
        # A piece that moves to another group is not embedded again.
        await collection.put([group("c", "piece two")])
        await collection.put([group("a", "piece zero")])
        assert collection.waiting == 0
        found = await ask(collection, embedder, asked("piece two", "vector"))
        assert (found.hits[0].group, round(found.hits[0].vector or 0, 2)) == ("c", 1.0)
        await collection.delete(["a", "nowhere"])
        assert await words(collection, "piece") in (["b", "c"], ["c", "b"])
        status = await collection.status()
        assert (status.groups, status.items, status.vectors, status.vectors_waiting) == (2, 2, 2, 0)


async def test_keys_may_be_exchanged_and_ids_are_never_used_twice(store: Store) -> None:
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece one", "piece two")])
        seen = set((await ids(collection)).values())
        await collection.put([group("a", "piece two", "piece one")])
        swapped = await ids(collection)
        assert not seen & set(swapped.values())
        await collection.delete(["a"])
        await collection.put([group("a", "piece one", "piece two")])
        assert not (seen | set(swapped.values())) & set((await ids(collection)).values())


async def test_values_and_fields_of_any_length_are_stored_and_filtered(store: Store) -> None:
    dice = random.Random(1)
    long = "".join(map(chr, dice.choices(range(0x4E00, 0x9FFF), k=9000)))
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece", metadata={"field": long, long: "value", "list": [long]})])
        await collection.put([group("b", "piece", metadata={"field": long[:-1] + "x", long[:-1]: "value"})])
        for field, asked_for, found in (
            ("field", {"any_of": [long]}, ["a"]),
            ("field", {"prefix": long}, ["a"]),
            ("field", {"prefix": long[:-1]}, ["a", "b"]),
            ("field", {"prefix": long[1:]}, []),
            ("list", {"any_of": [long, "other"]}, ["a"]),
            (long, {"any_of": ["value"]}, ["a"]),
        ):
            filters = [Filter(field=field, **cast(dict[str, Any], asked_for))]
            assert await collection.read(partial(_matching, filters=filters)) == found


def _matching(store: Snapshot, filters: list[Filter]) -> list[str]:
    return store.matching(filters)


async def test_a_long_text_of_long_words_is_stored_and_found(store: Store) -> None:
    words_of_it = [f"{chr(0x430 + n % 32) * 40}{n}" for n in range(15_000)]
    async with opened(store.engine()) as collection:
        await collection.put([group("a", " ".join(words_of_it))])
        assert await words(collection, words_of_it[0]) == ["a"]


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


ODD = [
    "",
    "\0",
    "nul \0 inside",
    "\ufdd0",
    "\ufdd0\ufdd1",
    "\ufdd0\0",
    "quote ' \" \\ $1 %s {}",
    "🦀 emoji",
    "漢字かな",
    "a" * 70_000,
]


async def test_any_text_is_kept_as_it_was_given(store: Store) -> None:
    odd = [
        Group(
            id=f"{n}{text[:40]}", title=text[:100], names=text[:50], metadata={"odd": text, text[:20] or "-": n},
            items=[Item(key=f"k{text[:20]}", heading=text[:100], text=text, metadata={"odd": text})],
        )
        for n, text in enumerate(ODD)
    ]  # fmt: skip
    async with opened(store.engine()) as collection:
        await collection.put(odd)
        there = await collection.read(lambda view: view.contents([each.id for each in odd]))
        for content, given in zip(there, odd, strict=True):
            assert (content.id, content.title, content.names, content.metadata) == (
                given.id, given.title, given.names, given.metadata,
            )  # fmt: skip
            (piece,), (item,) = content.pieces, given.items
            assert (piece.key, piece.heading, piece.text, piece.metadata) == (
                item.key, item.heading, item.text, item.metadata,
            )  # fmt: skip
        assert (await collection.put(odd)).rows == []
        page = await collection.read(lambda view: view.group_ids("", 100))
        assert sorted(page.ids) == sorted(each.id for each in odd)
        for text in ODD:
            await words(collection, text or "-")


async def test_everything_is_there_after_a_restart(store: Store) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put([group(f"g{n}", f"piece number{n}", metadata={"n": n}) for n in range(50)])
        await embedded(collection, embedder)
        await collection.put([group("late", "piece late")])
        epoch = collection.epoch
        before = await ask(collection, embedder, asked("number7 piece"))
    async with opened(store.engine()) as collection:
        assert collection.epoch == epoch
        assert collection.fingerprint == embedder.fingerprint
        assert (await collection.count_waiting(), collection.progress.made) == (1, 50)
        after = await ask(collection, embedder, asked("number7 piece"))
        assert [(hit.group, hit.score, hit.lexical, hit.vector) for hit in after.hits] == [
            (hit.group, hit.score, hit.lexical, hit.vector) for hit in before.hits
        ]
    engine = store.engine()
    assert await engine.names() == ["notes"]
    assert await engine.remove("notes")
    assert not await engine.remove("notes")
    assert (await engine.names(), await engine.holds("notes")) == ([], False)


async def test_writers_at_once_leave_what_one_of_them_wrote(store: Store) -> None:
    async with opened(store.engine()) as first, trio.open_nursery() as nursery:
        second = await store.engine().open("notes", lambda: None) if store.shared else first

        async def write(writer: int) -> None:
            dice = random.Random(writer)
            for _ in range(10):
                names = dice.sample([f"g{n}" for n in range(12)], 4)
                to = dice.choice([first, second])
                if dice.random() < 0.2:
                    await to.delete(names)
                else:
                    text = f"piece of writer{writer}"
                    await to.put([group(name, text, f"{text} again", metadata={"writer": writer}) for name in names])

        async with trio.open_nursery() as writers:
            for writer in range(6):
                writers.start_soon(write, writer)
        contents = await first.read(lambda view: view.contents([f"g{n}" for n in range(12)]))
        for content in contents:
            by = content.metadata["writer"]
            text = f"piece of writer{by}"
            assert [piece.text for piece in content.pieces] == [text, f"{text} again"]
            each = Filter(field="writer", any_of=[cast(int, by)])
            assert content.id in await words(second, f"writer{by}", each)
        status = await first.status()
        assert (status.groups, status.items, status.vectors_waiting) == (
            len(contents),
            2 * len(contents),
            2 * len(contents),
        )
        nursery.cancel_scope.cancel()


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
                while not (await collection.status()).vectors_failed:  # noqa: ASYNC110
                    await trio.sleep(0.01)
        assert (collection.progress.waiting, collection.progress.made) == (1, 7)
        embedder.poison.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox_of(collection, embedder, now=lambda: 4e9))
            await drained(collection)
            nursery.cancel_scope.cancel()


async def test_deleted_data_can_be_scrubbed_and_the_rest_stays(store: Store) -> None:
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece one"), group("b", "piece two")])
        await collection.delete(["a"])
        assert await collection.scrub() == Scrubbed()
        assert await words(collection, "piece") == ["b"]


async def test_a_write_that_is_refused_changes_nothing(store: Store) -> None:
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece one")])

        def refuse(change: Transaction) -> None:
            change.remember("quota", "used")
            raise OperationError("the quota is used up")

        with pytest.raises(OperationError, match="quota"):
            await collection.put([group("a", "piece two"), group("b", "piece three")], refuse)
        with pytest.raises(InvalidParams, match=r"groups\[1\].id"):
            await collection.put([group("a", "piece two"), group("a", "piece three")])
        assert await words(collection, "piece") == ["a"]
        assert list(await ids(collection)) == ["piece one"]
        assert await collection.read(lambda view: view.meta("quota")) is None


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
