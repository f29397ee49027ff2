"""A stored group is there, whole, at once and after a restart; a deleted one is no longer found by any means."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import apsw
import msgspec
import pytest

from proto.errors import InvalidParams
from proto.ops.retrieve import Filter, Fusion, Group, Item, RetrieveSearch
from services.retrieve import item_store
from services.retrieve.index import lexical
from services.retrieve.index.lexical import WordsDamaged
from services.retrieve.local_collection import LocalCollection
from services.runtime.database.copies import damaged_files
from tests.unit.retrieve.rig import WordEmbedder, ask, embedded, execute, group, near, opened, vector


def asked(query: str, **settings: object) -> RetrieveSearch:
    return msgspec.convert({"collection": "notes", "query": query, **settings}, RetrieveSearch)


async def words_of(collection: LocalCollection, query: str) -> list[str]:
    found = (await collection.find_words(query, 100, ())).hits
    items = await collection.items([item for item, _ in found])
    return [items[item].group for item, _ in found]


async def test_a_put_is_found_by_words_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        change = await collection.put([group("a", "the cat sat", "dogs bark"), group("b", "fish swim")])
        assert (len(change.rows), change.gone, change.progress.waiting) == (3, [], 3)
        assert await words_of(collection, "cats") == ["a"]
    async with opened(tmp_path) as collection:
        assert await words_of(collection, "which fish is swimming?") == ["b"]
        assert collection.waiting == 3


async def test_putting_the_same_again_changes_nothing_and_keeps_vectors(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "one", "two", title="T", metadata={"n": 1})])
        await embedded(collection, embedder)
        change = await collection.put([group("a", "one", "two", title="T", metadata={"n": 1})])
        assert (change.rows, change.gone, change.progress.waiting) == ([], [], 0)
        change = await collection.put([group("a", "one", "two", title="T", metadata={"n": 2})])
        assert (change.rows, change.gone, change.progress.waiting) == ([], [], 0)
        assert len(collection.vectors) == 2


async def test_a_put_removes_omitted_items_and_changed_ones_are_found_by_their_new_words_only(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "alpha", "beta", "gamma")])
        change = await collection.put([group("a", "alpha", "delta")])
        assert (len(change.rows), len(change.gone)) == (1, 2)
        assert await words_of(collection, "beta") == []
        assert await words_of(collection, "gamma") == []
        assert await words_of(collection, "delta") == ["a"]


async def test_a_piece_that_only_moved_keeps_its_vector(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "one", "two")])
        await embedded(collection, embedder)
        change = await collection.put([group("a", "two", "one"), group("b", "two")])
        assert change.progress.waiting == 0
        hits = await near(collection, vector("two"), 10, None)
        items = await collection.items([item for item, _ in hits[:2]])
        assert {(item.group, item.text) for item in items.values()} == {("a", "two"), ("b", "two")}
        assert len(collection.vectors) == 3


async def test_a_new_title_is_found_and_the_old_one_is_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "text", title="Aardvark")])
        await collection.put([group("a", "text", title="Buffalo")])
        assert await words_of(collection, "aardvark") == []
        assert await words_of(collection, "buffalo") == ["a"]


async def test_deleted_groups_cannot_be_found(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "cat one", "cat two"), group("b", "cat three")])
        await embedded(collection, embedder)
        change = await collection.delete(["a", "never there"])
        assert len(change.gone) == 2
        for method in ("weighted", "rrf", "lexical", "vector"):
            result = await ask(collection, embedder, asked("cat one", fusion={"method": method}))
            assert [hit.group for hit in result.hits] == ["b"]
        status = await collection.status()
        assert (status.groups, status.items, status.vectors, status.vectors_waiting) == (1, 1, 1, 0)
    async with opened(tmp_path) as collection:
        assert len(collection.vectors) == 1


async def test_an_item_without_embedding_is_found_by_words_and_never_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        quiet = Group(id="a", items=[Item(key="0", text="short cat", embed=False)])
        assert (await collection.put([quiet])).progress.waiting == 0
        assert await words_of(collection, "cat") == ["a"]
        loud = Group(id="a", items=[Item(key="0", text="short cat")])
        assert (await collection.put([loud])).progress.waiting == 1
        await embedded(collection, WordEmbedder())
        assert (await collection.put([quiet])).progress.waiting == 0
        assert len(collection.vectors) == 0


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ([group("a", "x"), group("a", "y")], "groups[1].id"),
        ([Group(id="a", items=[Item(key="k", text="x"), Item(key="k", text="y")])], "groups[0].items[1].key"),
        ([group("a", "x", metadata={"n": float("nan")})], "groups[0].metadata.n"),
    ],
)
async def test_a_bad_put_names_its_field_and_changes_nothing(tmp_path: Path, groups: list[Group], field: str) -> None:
    async with opened(tmp_path) as collection:
        with pytest.raises(InvalidParams) as caught:
            await collection.put(groups)
        assert caught.value.failure.field == field
        assert (await collection.status()).groups == 0


async def test_a_put_that_fails_half_way_leaves_nothing_of_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "old words")])
        await execute(
            collection,
            "CREATE TRIGGER full BEFORE INSERT ON items WHEN NEW.text = 'third' "
            "BEGIN SELECT RAISE(ABORT, 'disk full'); END",
        )
        with pytest.raises(apsw.ConstraintError):
            await collection.put([group("a", "first", "second", "third"), group("b", "more")])
        assert await words_of(collection, "old") == ["a"]
        assert await words_of(collection, "first second more") == []
        assert (await collection.status()).groups == 1


FILTERED: list[tuple[Filter, set[str]]] = [
    (Filter(field="tags", any_of=["x"]), {"a", "b"}),
    (Filter(field="tags", any_of=["z", "y"]), {"b", "c"}),
    (Filter(field="year", at_least=2000), {"b", "c"}),
    (Filter(field="year", at_least=1990, at_most=2000), {"a", "b"}),
    (Filter(field="path", prefix="docs/"), {"a", "c"}),
    (Filter(field="path", prefix="docs/%"), set()),
    (Filter(field="path", at_least=0), set()),
    (Filter(field="draft", any_of=[1]), {"c"}),
    (Filter(field="draft"), {"a", "c"}),
    (Filter(field="tags", any_of=[]), set()),
    (Filter(field='we"ird', any_of=["'"]), {"a"}),
    (Filter(field="big", any_of=[2**63 - 1]), {"b"}),
]


@pytest.mark.parametrize(("condition", "expected"), FILTERED)
async def test_filters_apply_in_every_stage(tmp_path: Path, condition: Filter, expected: set[str]) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put(
            [
                group(
                    "a", "cat", metadata={"tags": ["x"], "year": 1990, "path": "docs/a", "draft": False, 'we"ird': "'"}
                ),
                group("b", "cat", metadata={"tags": ["x", "y"], "year": 2000.0, "path": "src/b", "big": 2**63 - 1}),
                group("c", "cat", metadata={"tags": ["z"], "year": 2010, "path": "docs/c", "draft": True, "no": None}),
            ]
        )
        await embedded(collection, embedder)
        for method in ("lexical", "vector", "weighted"):
            question = RetrieveSearch(
                collection="notes", query="cat", filters=[condition], fusion=Fusion(method=method)
            )
            assert {hit.group for hit in (await ask(collection, embedder, question)).hits} == expected


async def test_filters_apply_before_ranking(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group(f"n{n:04}", "cat cat cat", metadata={"k": n}) for n in range(500)])
        await collection.put([group("last", "a cat among many dogs", metadata={"k": -1})])
        await embedded(collection, embedder)
        question = RetrieveSearch(
            collection="notes", query="cat", limit=5, candidates=5, filters=[Filter(field="k", at_most=-1)]
        )
        assert [hit.group for hit in (await ask(collection, embedder, question)).hits] == ["last"]


async def test_pages_of_ids_meet_end_to_end(tmp_path: Path) -> None:
    names = sorted(["ä", "z", "Z", "a/b", "0", "日本"])
    async with opened(tmp_path) as collection:
        await collection.put([group(name, "x") for name in names])
        seen: list[str] = []
        more = True
        while more:
            page = await collection.on_reader(partial(item_store.group_ids, after=seen[-1] if seen else "", limit=2))
            seen += page.ids
            more = page.more
        assert seen == names


async def test_a_damaged_word_index_is_rebuilt_from_the_text(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), f"cat number {n} " * 50) for n in range(50)])
        await execute(collection, "UPDATE words_data SET block = x'ffffffffffffffffffff' WHERE id > 10")
        with pytest.raises(WordsDamaged):
            await collection.find_words("cat", 10, ())
        await collection.rebuild_words()
        assert len(await words_of(collection, "cat")) == 50


async def test_an_index_of_another_version_is_rebuilt_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "cat")])
    monkeypatch.setattr(lexical, "VERSION", "next")
    async with opened(tmp_path) as collection:
        assert await words_of(collection, "cat") == ["a"]
        await collection.put([group("a", "dog")])
        assert await words_of(collection, "cat") == []


async def test_a_file_that_is_no_database_is_set_aside_and_reported(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_bytes(b"something else entirely " * 100)
    async with opened(tmp_path) as collection:
        assert "notes.db.damaged-" in (await collection.status()).degraded[0]
    (aside,) = damaged_files(tmp_path / "notes.db")
    assert aside.read_bytes().startswith(b"something else")


async def test_any_text_is_a_query(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group("a", "NEAR AND OR NOT cat*")])
        for query in ('"', "cat AND", "(((", "a:b", "NEAR(", "*", "'", "\x00cat", "title:cat", "-cat", "^", "日", "😀"):
            await collection.find_words(query, 10, ())
        assert await words_of(collection, "cat* OR (") == ["a"]
        assert await words_of(collection, "\x00 cat") == ["a"]
