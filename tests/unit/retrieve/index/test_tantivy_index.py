"""Words of large collections: the same is found as in a small one, at once, through every switch, crash and damage."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
import trio

from proto.ops.retrieve import Filter, Fusion, RetrieveSearch, SearchResult
from services.retrieve.filters import compile_filters
from services.retrieve.index import lexical
from services.retrieve.index.lexical import Fts5
from services.retrieve.index.tantivy_index import TantivyIndex
from services.retrieve.index.word_index import CHECK_WAIT_S
from services.retrieve.local_collection import LocalCollection
from services.retrieve.ranking.queries import Patience
from services.retrieve.ranking.search import search
from tests.unit.retrieve.rig import WordEmbedder, group
from tests.waiting import until

VOCABULARY = [
    "parseHttpRequest", "snake_case", "os.path.join", "running", "runs", "ran", "café", "cafes", "naïve", "日本語",
    "HTTPServer", "IL-6", "x", "flies", *(f"word{n}" for n in range(200)),
]  # fmt: skip


async def keep(collection: LocalCollection, report: Callable[[str], None] = lambda trouble: None) -> None:
    await collection.words.maintain(collection, report, retry_s=0.01, count_every_s=0.01)


@asynccontextmanager
async def opened(folder: Path, large: int = 1, *, kept: bool = True) -> AsyncIterator[LocalCollection]:
    """A collection whose words are kept in step with tantivy from `large` items on (not kept: nobody does)."""
    collection = LocalCollection("notes", folder, trio.CapacityLimiter(4), large_words=large)
    await collection.load()
    async with trio.open_nursery() as nursery:
        if kept:
            nursery.start_soon(keep, collection)
        else:
            collection.words._settled.set()
        await collection.words.check()
        yield collection
        nursery.cancel_scope.cancel()
    collection.close()


async def switched(collection: LocalCollection) -> None:
    await until(lambda: collection.words.kind == "tantivy")


async def find(collection: LocalCollection, query: str, filters: Sequence[Filter] = (), limit: int = 10) -> list[int]:
    return [item for item, _ in (await collection.find_words(query, limit, filters)).hits]


async def by_fts5(
    collection: LocalCollection, query: str, filters: Sequence[Filter] = (), limit: int = 10
) -> list[int]:
    where = compile_filters(filters)
    return [item for item, _ in await collection.on_reader(lambda db: Fts5(db).search(query, limit, where))]


async def texts_by_fts5(collection: LocalCollection, query: str) -> list[str]:
    items = await collection.items(await by_fts5(collection, query, limit=100))
    return sorted(item.text for item in items.values())


async def texts_of(
    collection: LocalCollection, query: str, filters: Sequence[Filter] = (), limit: int = 100
) -> list[str]:
    items = await collection.items(await find(collection, query, filters, limit))
    return sorted(item.text for item in items.values())


async def test_both_indexes_find_the_same_and_rank_it_alike(tmp_path: Path) -> None:
    dice = random.Random(0)
    groups = [
        group(f"g{n}", " ".join(dice.choices(VOCABULARY, k=30)), title=" ".join(dice.choices(VOCABULARY, k=2)))
        for n in range(500)
    ]
    async with opened(tmp_path) as collection:
        await collection.put(groups)
        await switched(collection)
        agreed = 0
        for _ in range(40):
            query = " ".join(dice.choices(VOCABULARY, k=dice.randint(1, 4)))
            everything = set(await find(collection, query, limit=1000))
            assert everything == set(await by_fts5(collection, query, limit=1000)), query
            ours, theirs = await find(collection, query), await by_fts5(collection, query)
            agreed += len(set(ours) & set(theirs))
        assert agreed >= 0.85 * 400
        assert collection.words.kind == "tantivy"


FORMS = {
    "http": "parseHttpRequest", "snake": "snake_case", "os.path.join": "os.path.join(x)", "run": "running",
    "cafes": "café", "本語": "日本語", "parsehttprequest": "parseHttpRequest()",
}  # fmt: skip


@pytest.mark.slow
async def test_code_forms_and_scripts_are_found_before_and_after_the_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group("first", "nothing of note")])
        await switched(collection)
        await collection.put([group(f"form{n}", text) for n, text in enumerate(FORMS.values())])
        for query, text in FORMS.items():
            assert text in await texts_of(collection, query)
        await until(lambda: not collection.words.pending)
        for query, text in FORMS.items():
            assert text in await texts_of(collection, query)
            assert await texts_of(collection, query) == await texts_by_fts5(collection, query)


@pytest.mark.slow
async def test_written_items_are_found_at_once_and_removed_ones_never_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        for round_ in range(60):
            await collection.put([group(f"g{round_}", f"zebra number{round_}")])
            assert await texts_of(collection, f"number{round_}") == [f"zebra number{round_}"]
            if round_ % 3 == 0:
                await collection.delete([f"g{round_}"])
                assert await texts_of(collection, f"number{round_}") == []
            elif round_ % 3 == 1:
                await collection.put([group(f"g{round_}", f"zebra changed{round_}")])
                assert await texts_of(collection, f"number{round_}") == []
                assert await texts_of(collection, f"changed{round_}") == [f"zebra changed{round_}"]
            if round_ == 20:
                await switched(collection)
        await until(lambda: not collection.words.pending)
        assert collection.words.kind == "tantivy"
        assert len(await texts_of(collection, "zebra")) == 40
        assert set(await find(collection, "zebra", limit=100)) == set(await by_fts5(collection, "zebra", limit=100))


async def test_the_switch_comes_with_the_size_and_nobody_notices(tmp_path: Path) -> None:
    async with opened(tmp_path, large=50) as collection:
        await collection.put([group(f"g{n}", f"zebra number{n}") for n in range(49)])
        assert (await collection.status()).words == "fts5"
    async with opened(tmp_path, large=50) as collection:
        await collection.put([group("one-more", "zebra at last")])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(switched, collection)
            while collection.words.kind == "fts5":
                assert len(await find(collection, "zebra", limit=100)) == 50
        assert len(await find(collection, "zebra", limit=100)) == 50
        assert (await collection.status()).words == "tantivy"


@pytest.mark.parametrize("few", [1000, 3])
async def test_a_filter_admits_all_that_it_should_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr("services.retrieve.index.tantivy_index.FEW", few)
    async with opened(tmp_path) as collection:
        await collection.put(
            [group(f"g{n}", f"zebra {'x ' * (n % 7)}", metadata={"colour": "red" if n % 10 == 0 else "blue"})
             for n in range(200)]
        )  # fmt: skip
        await switched(collection)
        await collection.put([group("late", "zebra late", metadata={"colour": "red"})])
        await collection.put([group("later", "zebra later", metadata={"colour": "green"})])
        where = [Filter(field="colour", any_of=["red"])]
        found = await find(collection, "zebra", where, limit=15)
        assert len(found) == 15
        assert set(found) <= set(await by_fts5(collection, "zebra", where, limit=500))
        assert len(await find(collection, "zebra", where, limit=500)) == 21
        assert await texts_of(collection, "late", where) == ["zebra late"]
        assert await texts_of(collection, "later", where) == []


async def test_after_a_crash_missing_items_are_indexed_and_leftover_ones_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group(f"g{n}", f"zebra number{n}") for n in range(30)])
        await switched(collection)
        # Behave from here on as if the process died before the next commit.
        monkeypatch.setattr(TantivyIndex, "flush", lambda self: None)
        await collection.put([group("new", "zebra lost")])
        await collection.delete(["g7"])
    monkeypatch.undo()
    async with opened(tmp_path) as collection:
        assert await texts_of(collection, "lost") == ["zebra lost"]
        await switched(collection)
        assert await texts_of(collection, "lost") == ["zebra lost"]
        assert await texts_of(collection, "number7") == []
        assert set(await find(collection, "zebra", limit=100)) == set(await by_fts5(collection, "zebra", limit=100))


@pytest.mark.slow
async def test_scrubbed_words_are_in_no_file_any_more_and_the_rest_is_found(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group("kept", "zebra kept"), group("secret", "hunterpassword")])
        await switched(collection)
        await collection.delete(["secret"])
        await until(lambda: not collection.words.pending)
        await collection.scrub()
        assert holding(tmp_path, b"hunterpassword") == []
        await switched(collection)
        assert await texts_of(collection, "zebra") == ["zebra kept"]


@pytest.mark.parametrize("killed_after", ["nothing", "an addition", "a removal", "an edit", "the first of all"])
async def test_an_index_of_an_earlier_process_is_opened_and_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: str
) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group(f"g{n}", f"zebra number{n}") for n in range(30)])
        await switched(collection)
        monkeypatch.setattr(TantivyIndex, "flush", lambda self: None)
        match killed_after:
            case "an addition":
                await collection.put([group("new", "zebra lost")])
            case "a removal":
                await collection.delete(["g29"])
            case "an edit":
                await collection.put([group("g0", "zebra edited")])
            case "the first of all":
                await collection.delete(["g0"])
                await collection.put([group("g1", "zebra edited")])
    monkeypatch.undo()
    loaded: list[int] = []
    load = TantivyIndex.load

    def noted(self: TantivyIndex, rows: Iterable[lexical.Row]) -> None:
        kept = list(rows)
        loaded.extend(row.item_id for row in kept)
        load(self, kept)

    monkeypatch.setattr(TantivyIndex, "load", noted)
    async with opened(tmp_path) as collection:
        await switched(collection)
        assert len(loaded) == (killed_after not in ("nothing", "a removal"))
        assert set(await find(collection, "zebra", limit=100)) == set(await by_fts5(collection, "zebra", limit=100))


async def test_once_tantivy_answers_no_check_of_the_other_index_is_reported(tmp_path: Path) -> None:
    asked = RetrieveSearch(collection="notes", query="zebra", fusion=Fusion(method="lexical"))

    async def answer(collection: LocalCollection) -> SearchResult:
        return await search(collection, asked, WordEmbedder().query, Patience(1), lambda: None)

    async with opened(tmp_path) as collection:
        await collection.put([group("g", "zebra")])
        await switched(collection)
    collection = LocalCollection("notes", tmp_path, trio.CapacityLimiter(4), large_words=1)
    await collection.load()
    collection.words.check_wait_s = 0.01
    assert (await answer(collection)).degraded == ["lexical: the word index is still being checked"]
    collection.words.check_wait_s = CHECK_WAIT_S
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, collection)
        result = await answer(collection)
        assert (result.degraded, [hit.group for hit in result.hits]) == ([], ["g"])
        assert collection.words.kind == "tantivy"
        nursery.cancel_scope.cancel()
    collection.close()


def holding(folder: Path, words: bytes) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        # The index makes and removes files meanwhile.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            if words in path.read_bytes():
                found.append(path)
    return found


def files_of(folder: Path) -> list[Path]:
    (words,) = folder.glob("notes.words-*")
    return sorted(path for path in words.iterdir() if path.suffix not in (".lock", ""))


@pytest.mark.parametrize("harm", ["zeros", "shorter", "missing", "meta"])
async def test_damaged_files_are_noticed_and_rebuilt(tmp_path: Path, harm: str) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group(f"g{n}", f"zebra number{n}") for n in range(30)])
        await switched(collection)
    for path in files_of(tmp_path):
        data = path.read_bytes()
        if harm == "meta":
            if path.name == "meta.json":
                path.write_bytes(b"{")
        elif path.suffix in (".term", ".idx"):
            if harm == "missing":
                path.unlink()
            else:
                path.write_bytes(bytes(len(data)) if harm == "zeros" else data[: len(data) // 2])
    async with opened(tmp_path) as collection:
        assert len(await find(collection, "zebra", limit=100)) == 30
        await switched(collection)
        assert len(await find(collection, "zebra", limit=100)) == 30
        assert await texts_of(collection, "number7") == ["zebra number7"]


async def test_searches_work_without_an_unwritable_index_which_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.words-1-1").write_text("in the way")
    said: list[str] = []
    async with opened(tmp_path, kept=False) as collection, trio.open_nursery() as nursery:
        await collection.put([group("g", "zebra")])
        nursery.start_soon(keep, collection, said.append)
        await switched(collection)
        assert await texts_of(collection, "zebra") == ["zebra"]
        nursery.cancel_scope.cancel()
    assert said[-1] == ""


def harm_words(path: Path, harm: str) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        match harm:
            case "zeros":
                db.execute("UPDATE words_data SET block = zeroblob(length(block)) WHERE id > 10")
            case "structure":
                db.execute("UPDATE words_data SET block = zeroblob(length(block)) WHERE id = 10")
            case "averages":
                db.execute("UPDATE words_data SET block = zeroblob(length(block)) WHERE id = 1")
            case "index":
                db.execute("DELETE FROM words_idx")
            case "sizes":
                db.execute("DELETE FROM words_docsize WHERE id < 10")
            case "all":
                db.execute("DELETE FROM words_data")
    db.close()


@pytest.mark.parametrize("harm", ["zeros", "structure", "averages", "index", "sizes", "all"])
async def test_a_word_index_that_lost_words_without_an_error_is_noticed_at_the_start(tmp_path: Path, harm: str) -> None:
    async with opened(tmp_path, kept=False) as collection:
        await collection.put([group(f"g{n}", f"zebra number{n} " + "filler " * 40) for n in range(300)])
    harm_words(tmp_path / "notes.db", harm)
    async with opened(tmp_path, kept=False) as collection:
        assert collection.words.damage
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collection.rebuild_words)
            assert len(await find(collection, "zebra", limit=500)) == 300
        assert not collection.words.damage
    async with opened(tmp_path, kept=False) as collection:
        assert not collection.words.damage
        assert len(await find(collection, "number7", limit=500)) == 1


async def test_a_word_index_in_use_for_long_is_found_whole(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with opened(tmp_path, kept=False) as collection:
        for _ in range(40):
            name = f"g{dice.randint(0, 20)}"
            if dice.random() < 0.3:
                await collection.delete([name])
            else:
                texts = [" ".join(dice.choices(VOCABULARY, k=dice.randint(0, 40))) for _ in range(dice.randint(0, 4))]
                await collection.put([group(name, *texts, title=dice.choice(["", "one", "two words"]))])
        db = apsw.Connection(str(tmp_path / "notes.db"))
        lexical.prepare_check(db)
        assert lexical.check(db) == ""
        db.close()
