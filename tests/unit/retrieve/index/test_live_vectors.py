"""A collection's index beside its database: it grows into segments, opens with them, and is rebuilt where they are
missing, torn, stale or of another model; search goes on throughout."""

from __future__ import annotations

import shutil
import threading
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio

from proto.ops.retrieve import Filter, Fusion, RetrieveSearch
from services.retrieve.filters import compile_filters
from services.retrieve.index import segment
from services.retrieve.index.live_vectors import LiveVectors
from services.retrieve.index.segment import VectorLimits
from services.retrieve.local_collection import LocalCollection
from tests.unit.retrieve.rig import WordEmbedder, ask, embedded, execute, group, near, opened, vector
from tests.unit.retrieve.vectors_rig import TINY, assert_searches_as_the_database_says, tended


async def fill(collection: LocalCollection, embedder: WordEmbedder, start: int, end: int) -> None:
    await collection.put(
        [group(f"g{n}", f"word{n} a", f"word{n} b", metadata={"third": n % 3}) for n in range(start, end)]
    )
    await embedded(collection, embedder)


async def kind(collection: LocalCollection) -> str:
    return (await collection.status()).index


async def made(folder: Path) -> set[str]:
    """Create a collection of 40 groups in segments and a tail; return its segments' names."""
    embedder = WordEmbedder()
    async with opened(folder, limits=TINY) as collection:
        await fill(collection, embedder, 0, 30)
        await tended(collection)
        await fill(collection, embedder, 30, 33)
        assert await kind(collection) == "rabitq+flat"
    return names(folder)


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "notes.vectors").iterdir()}


async def test_a_collection_grows_into_segments_and_shrinks_back(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path, limits=TINY) as collection:
        await fill(collection, embedder, 0, 4)
        assert not await collection.vectors.write_due_segment(collection)
        assert await kind(collection) == "flat"
        assert not (tmp_path / "notes.vectors").exists()
        await fill(collection, embedder, 4, 40)
        before = (await collection.status()).size_bytes
        await tended(collection)
        assert await kind(collection) == "rabitq"
        assert (await collection.status()).size_bytes > before
        await assert_searches_as_the_database_says(collection)
        # Changed, deleted, moved.
        await collection.put([group("g1", "alpha", "word1 b"), group("g2", "word2 b", "word2 a")])
        await collection.delete([f"g{n}" for n in range(20, 30)])
        await assert_searches_as_the_database_says(collection)
        await embedded(collection, embedder)
        await tended(collection)
        await assert_searches_as_the_database_says(collection)
        await collection.delete([f"g{n}" for n in range(1, 40)])
        await tended(collection)
        assert await kind(collection) == "flat"
        await assert_searches_as_the_database_says(collection)
        assert names(tmp_path) == set()


async def test_a_restart_opens_the_segments_that_were_saved_and_reads_the_rest(tmp_path: Path) -> None:
    saved = await made(tmp_path)
    async with opened(tmp_path, limits=TINY) as collection:
        assert await kind(collection) == "rabitq+flat"
        assert names(tmp_path) == saved
        assert not await collection.vectors.write_due_segment(collection)
        await assert_searches_as_the_database_says(collection)


async def test_changes_after_the_save_are_applied_at_the_next_start(tmp_path: Path) -> None:
    await made(tmp_path)
    async with opened(tmp_path, limits=TINY) as collection:
        await collection.delete(["g0", "g1"])
        await collection.put([group("g2", "alpha", "beta")])
        await embedded(collection, WordEmbedder())
    async with opened(tmp_path, limits=TINY) as collection:
        await assert_searches_as_the_database_says(collection)
        for words in ("word0 a", "word2 a"):
            found = await collection.items([item for item, _ in await near(collection, vector(words), 50, None)])
            assert not {each.text for each in found.values()} & {"word0 a", "word0 b", "word2 a", "word2 b"}


@pytest.mark.parametrize("filtered", [{"any_of": [1]}, {"at_least": 1.0}, {"any_of": [77]}])
@pytest.mark.parametrize("exact_rows", [0, 10_000])
async def test_a_filter_sees_all_that_it_admits_and_nothing_else(
    tmp_path: Path, filtered: dict[str, list[int] | float], exact_rows: int
) -> None:
    await made(tmp_path)
    limits = VectorLimits(flat_vectors=8, overfetch=10, exact_rows=exact_rows)
    where = compile_filters([Filter(field="third", **filtered)])  # type: ignore[arg-type]  # a table of cases
    async with opened(tmp_path, limits=limits) as collection:
        found = await collection.items([i for i, _ in await near(collection, vector("word1 a"), 1000, where)])
        wanted = {n for n in range(33) if (n % 3 == 1 if filtered == {"any_of": [1]} else n % 3 >= 1)}
        if filtered == {"any_of": [77]}:
            wanted = set()
        assert {each.group for each in found.values()} == {f"g{n}" for n in wanted}
        assert len(found) == 2 * len(wanted)


def remove(path: Path) -> None:
    shutil.rmtree(path)


def tear(path: Path) -> None:
    with (path / "rows").open("r+b") as file:
        file.truncate(100)


def rot(path: Path) -> None:
    with (path / "codes").open("r+b") as file:
        file.seek(40)
        file.write(b"\xff")


def rot_rows(path: Path) -> None:
    with (path / "rows").open("r+b") as file:
        file.seek(1000)
        file.write(b"rot")


@pytest.mark.parametrize("harm", [remove, tear, rot, rot_rows])
async def test_missing_or_torn_files_are_rebuilt_while_searches_stay_complete(tmp_path: Path, harm: object) -> None:
    saved = await made(tmp_path)
    for name in saved:
        harm(tmp_path / "notes.vectors" / name)  # type: ignore[operator]  # one of the four above
    embedder = WordEmbedder()
    asked = RetrieveSearch(collection="notes", query="word3 a")
    async with opened(tmp_path, limits=TINY) as collection:
        result = await ask(collection, embedder, asked)
        assert result.hits[0].group == "g3"
        assert (result.source, result.degraded) == ("hybrid", [])
        assert await kind(collection) == "flat"
        await collection.delete(["g3"])
        await collection.put([group("new", "alpha")])
        await embedded(collection, embedder)
        await assert_searches_as_the_database_says(collection)
        await tended(collection)
        assert await kind(collection) == "rabitq"
        await assert_searches_as_the_database_says(collection)
        assert (await ask(collection, embedder, asked)).degraded == []
    async with opened(tmp_path, limits=TINY) as collection:
        assert not await collection.vectors.write_due_segment(collection)
        await assert_searches_as_the_database_says(collection)


def put_back(folder: Path) -> None:
    for path in folder.glob("notes.db*"):
        path.unlink()
    (folder / "backup").rename(folder / "notes.db")


async def test_a_restored_older_database_ignores_newer_segment_files(tmp_path: Path) -> None:
    """The ids assigned since then are assigned again, to other texts."""
    embedder = WordEmbedder()
    async with opened(tmp_path, limits=TINY) as collection:
        await fill(collection, embedder, 0, 20)
        await tended(collection)
    shutil.copy(tmp_path / "notes.db", tmp_path / "backup")
    async with opened(tmp_path, limits=TINY) as collection:
        await fill(collection, embedder, 20, 60)
        await tended(collection)
    put_back(tmp_path)
    async with opened(tmp_path, limits=TINY) as collection:
        await fill(collection, embedder, 100, 140)
        await tended(collection)
        await assert_searches_as_the_database_says(collection)


async def test_another_model_has_its_own_index_before_it_is_searched(tmp_path: Path) -> None:
    saved = await made(tmp_path)
    async with opened(tmp_path, limits=TINY) as collection:
        count = len(collection.vectors)
        await collection.adopt("words:2", 64)
        assert (len(collection.vectors), await kind(collection)) == (count, "rabitq+flat")
        await assert_searches_as_the_database_says(collection)
        await embedded(collection, WordEmbedder("words:2"))
        assert (collection.fingerprint, len(collection.vectors), await kind(collection)) == ("words:2", count, "rabitq")
        await assert_searches_as_the_database_says(collection)
        assert not names(tmp_path) & saved
    async with opened(tmp_path, limits=TINY) as collection:
        assert (collection.fingerprint, await kind(collection)) == ("words:2", "rabitq")
        await assert_searches_as_the_database_says(collection)
        # And back, with its vectors made again.
        await collection.adopt("words:1", 64)
        await embedded(collection, WordEmbedder("words:1"))
        await assert_searches_as_the_database_says(collection)


async def test_searches_and_writes_continue_during_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = WordEmbedder()
    begun, go_on, switched = threading.Event(), threading.Event(), trio.Event()
    write = segment.write

    def slow(*arguments: object) -> segment.SegmentRecord | None:
        begun.set()
        go_on.wait()
        return write(*arguments)  # type: ignore[arg-type]  # passed through as they came

    monkeypatch.setattr(segment, "write", slow)
    async with opened(tmp_path, limits=TINY) as collection:
        await fill(collection, embedder, 0, 30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collection.vectors.maintain, collection, lambda trouble: switched.set())
            await trio.to_thread.run_sync(begun.wait)
            await assert_searches_as_the_database_says(collection)
            await collection.delete(["g3"])
            await collection.put([group("g4", "alpha", "word4 a")])
            await embedded(collection, embedder)
            await assert_searches_as_the_database_says(collection)
            assert await kind(collection) == "flat"
            go_on.set()
            with trio.fail_after(20):
                await switched.wait()
            assert await kind(collection) == "rabitq+flat"
            await assert_searches_as_the_database_says(collection)
            nursery.cancel_scope.cancel()
    async with opened(tmp_path, limits=TINY) as collection:
        await assert_searches_as_the_database_says(collection)


async def test_a_model_of_other_dimensions_adopted_during_a_rebuild_waits_for_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in await made(tmp_path):
        remove(tmp_path / "notes.vectors" / name)
    begun, go_on = threading.Event(), threading.Event()
    build = LiveVectors._build

    def slow(*arguments: object) -> segment.Segment | None:
        begun.set()
        go_on.wait()
        return build(*arguments)  # type: ignore[arg-type]  # passed through as they came

    monkeypatch.setattr(LiveVectors, "_build", slow)
    async with opened(tmp_path, limits=TINY) as collection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collection.vectors.write_due_segment, collection)
            await trio.to_thread.run_sync(begun.wait)
            await collection.adopt("wide:1", 128)
            go_on.set()
        assert await kind(collection) == "rabitq"
        await assert_searches_as_the_database_says(collection)


async def test_the_index_stays_unchanged_on_a_full_disk_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = WordEmbedder()
    said: list[str] = []
    tried_thrice, tended_at_last = trio.Event(), trio.Event()

    def report(trouble: str) -> None:
        said.append(trouble)
        if len(said) == 3:
            tried_thrice.set()
        if not trouble:
            tended_at_last.set()

    def full(*_: object) -> segment.SegmentRecord:
        raise OSError(28, "No space left on device")

    async with opened(tmp_path, limits=TINY) as collection:
        await fill(collection, embedder, 0, 30)
        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patched, trio.fail_after(20):
                patched.setattr(segment, "write", full)
                nursery.start_soon(partial(collection.vectors.maintain, collection, report, retry_s=0.001))
                await tried_thrice.wait()
                assert all("No space left" in each for each in said)
                assert await kind(collection) == "flat"
                await assert_searches_as_the_database_says(collection)
            with trio.fail_after(20):
                await tended_at_last.wait()
            nursery.cancel_scope.cancel()
        assert await kind(collection) == "rabitq"
        await assert_searches_as_the_database_says(collection)


async def test_a_switch_that_the_database_refuses_changes_nothing(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path, limits=TINY) as collection:
        await fill(collection, embedder, 0, 30)
        await execute(
            collection,
            "CREATE TRIGGER full BEFORE INSERT ON meta BEGIN SELECT RAISE(ABORT, 'disk full'); END",
        )
        with pytest.raises(apsw.ConstraintError, match="disk full"):
            await collection.vectors.write_due_segment(collection)
        assert names(tmp_path) == set()
        await execute(collection, "DROP TRIGGER full")
        await tended(collection)
        assert await kind(collection) == "rabitq"
        await assert_searches_as_the_database_says(collection)


async def test_fused_searches_have_true_cosines_over_segments_and_tail(tmp_path: Path) -> None:
    await made(tmp_path)
    async with opened(tmp_path, limits=TINY) as collection:
        for method in ("weighted", "rrf", "vector"):
            asked = RetrieveSearch(collection="notes", query="word5 a", limit=33, fusion=Fusion(method=method))
            result = await ask(collection, WordEmbedder(), asked)
            assert result.degraded == []
            assert {hit.group for hit in result.hits} == {f"g{n}" for n in range(33)}
            for hit in result.hits:
                assert hit.vector == pytest.approx(float(vector(hit.text) @ vector("word5 a")), abs=2e-3)
