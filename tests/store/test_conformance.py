"""Every store of collections keeps, finds and forgets alike."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, cast

import pytest
import trio

from proto.errors import InvalidParams, OperationError
from proto.ops.retrieve import Filter, Group, Item, Scrubbed
from services.retrieve.store import Snapshot, Transaction
from tests.store.rig import Store, asked, ids, opened, words
from tests.unit.retrieve.rig import WordEmbedder, ask, embedded, group


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
