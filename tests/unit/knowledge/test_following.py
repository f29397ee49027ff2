"""Notes that follow their files by what the watcher tells, on real folders, without looking through them all."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from proto.ops.embed import EmbedMaxSim, EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, MaxSimResult
from proto.ops.retrieve import RetrieveGroups, RetrieveStatus
from services.knowledge.ingest import ingest
from services.knowledge.ingest.note_walk import Walk, look
from services.knowledge.main import open_service as open_knowledge
from services.knowledge.operations.notes import ExploreLinks, KnowledgeStatus, QueryByTags, SearchDocuments
from services.knowledge.operations.writing import InjectTags
from services.retrieve.main import open_service as open_retrieve
from services.runtime.handlers import Context, Environment, Handlers
from services.runtime.roots import Roots
from services.watch.main import open_service as open_watch
from tests.in_process import Bench, services_in_process
from tests.unit.knowledge.rig import MemorySearch, found, until, write
from tests.unit.retrieve.rig import WordEmbedder

HOUR_S = 3600.0


@asynccontextmanager
async def following(
    folder: Path, root: Path, search: MemorySearch, *, rescan_s: float = HOUR_S
) -> AsyncIterator[Bench]:
    """Notes and the watcher; once this is entered, the notes are watched."""
    services = {"retrieve": search.open, "watch": open_watch, "knowledge": open_knowledge}
    settings = {"knowledge": {"scan_interval_s": rescan_s}}
    async with services_in_process(services, folder, roots=[root], settings=settings) as bench:
        await watched(bench)
        yield bench
        if "knowledge" in bench.running:
            await bench.stop("knowledge")


async def watched(bench: Bench) -> None:
    """Until the notes are watched and the walk that this began with is through."""
    await until(bench, lambda status: status.unwatched is None and status.scan_interval_s >= 300)


async def eventually(bench: Bench, query: str, ids: list[str]) -> None:
    """Wait until a search finds exactly these."""
    with trio.fail_after(10):
        while await found(bench, query) != ids:  # noqa: ASYNC110  # no event tells
            await trio.sleep(0.01)


@pytest.mark.slow
async def test_every_change_shows_without_a_walk_of_the_folders(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "# A\n\nThe zebra walks. See [[b]].")
    write(root, "b.md", "# B\n\nNothing of note.")
    async with following(tmp_path / "data", root, MemorySearch()) as bench:
        await eventually(bench, "zebra", ["a"])
        write(root, "a.md", "# A\n\nThe okapi walks.")
        await eventually(bench, "okapi", ["a"])
        # The watcher requests a full walk when it takes over, and that walk precedes its reports.
        before = (await bench.call(KnowledgeStatus())).last_scan
        assert await found(bench, "zebra") == []
        assert await bench.call(ExploreLinks(id="a")) == []
        write(root, "new/deep/c.md", "# C\n\nquagga")
        await eventually(bench, "quagga", ["c"])
        (root / "new").rename(root / "old")
        await until(bench, lambda status: status.notes == 3)
        (root / "old/deep/c.md").rename(root / "d.md")
        await eventually(bench, "quagga", ["d"])
        write(root, "other/e.md", "# E\n\nnumbat")
        await eventually(bench, "numbat", ["e"])
        write(root, ".gitignore", "other/\n")
        await eventually(bench, "numbat", [])
        (root / ".gitignore").unlink()
        await eventually(bench, "numbat", ["e"])
        shutil.rmtree(root / "other")
        await eventually(bench, "numbat", [])
        (root / "a.md").unlink()
        await eventually(bench, "okapi", [])
        assert (await bench.call(KnowledgeStatus())).last_scan == before


async def test_added_tags_show_at_once(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "# A\n\nThe zebra walks.")
    async with following(tmp_path / "data", root, MemorySearch()) as bench:
        await until(bench, lambda status: status.notes == 1 and not status.pending)
        await bench.call(InjectTags(file_path="a.md", tags=["[SEES: b]", "striped"]))
        # The next request finds them.
        assert [link.target for link in await bench.call(ExploreLinks(id="a"))] == ["b"]
        assert [note.id for note in await bench.call(QueryByTags(tags=["striped"]))] == ["a"]


@pytest.mark.slow
async def test_tags_are_added_while_the_search_is_away_and_show_once_it_is_back(tmp_path: Path, root: Path) -> None:
    file = write(root, "a.md", "# A\n\nThe zebra walks.")
    async with following(tmp_path / "data", root, MemorySearch()) as bench:
        await until(bench, lambda status: status.notes == 1 and not status.pending)
        await bench.stop("retrieve")
        with trio.fail_after(10):
            await bench.call(InjectTags(file_path="a.md", tags=["striped"]))
        assert "<!-- tags: striped -->" in file.read_text()


@pytest.mark.slow
async def test_walks_replace_an_unavailable_watcher_until_it_returns(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "# A\n\nzebra")
    async with following(tmp_path / "data", root, MemorySearch(), rescan_s=0.05) as bench:
        await eventually(bench, "zebra", ["a"])
        await bench.stop("watch")
        write(root, "b.md", "# B\n\nokapi")
        await eventually(bench, "okapi", ["b"])
        status = await until(bench, lambda status: status.unwatched is not None)
        assert "watch is not running" in str(status.unwatched)
        assert status.scan_interval_s < 300
        await bench.start("watch")
        await watched(bench)
        write(root, "c.md", "# C\n\nquagga")
        await eventually(bench, "quagga", ["c"])


@pytest.mark.slow
async def test_answer_says_that_changes_show_late_while_nobody_watches(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "# A\n\nzebra")
    async with following(tmp_path / "data", root, MemorySearch(), rescan_s=60) as bench:
        assert (await bench.call(SearchDocuments(query="zebra"))).metadata.degraded == []
        await bench.stop("watch")
        await until(bench, lambda status: status.unwatched is not None)
        await bench.stop("knowledge")
        await bench.start("knowledge")
        await until(bench, lambda status: not status.scanning)
        degraded = (await bench.call(SearchDocuments(query="zebra"))).metadata.degraded
        assert any("up to 60 s to appear" in reason for reason in degraded)


async def test_a_walk_requested_during_a_walk_takes_place(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks, is_watched = 0, threading.Event()

    def counted(roots: Roots, files: Iterable[str], folders: Iterable[str]) -> Walk:
        nonlocal walks
        found = look(roots, files, folders)
        if folders is not roots:
            return found
        walks += 1
        # The watcher takes over during the first walk: what changed before it did is found by another.
        is_watched.wait(10)
        return found

    monkeypatch.setattr(ingest, "look", counted)
    services = {"retrieve": MemorySearch().open, "watch": open_watch, "knowledge": open_knowledge}
    async with services_in_process(services, tmp_path / "data", roots=[root]) as bench:
        await until(bench, lambda status: status.unwatched is None)
        assert walks == 1
        is_watched.set()
        with trio.fail_after(10):
            while walks < 2:  # noqa: ASYNC110  # no event tells
                await trio.sleep(0.01)
        await bench.stop("knowledge")


@pytest.mark.slow
async def test_changes_during_an_outage_of_either_service_are_found(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    for number in range(30):
        write(root, f"n{number}.md", f"# N {number}\n\nnumber{number}")
    async with following(tmp_path / "data", root, search) as bench:
        for turn, victim in enumerate(("watch", "knowledge", "watch", "knowledge")):
            await bench.stop(victim)
            write(root, f"n{turn}.md", f"# N {turn}\n\nchanged{turn}")
            (root / f"n{10 + turn}.md").unlink()
            (root / f"n{20 + turn}.md").rename(root / f"m{turn}.md")
            await bench.start(victim)
            await eventually(bench, f"changed{turn}", [f"n{turn}"])
            await eventually(bench, f"number{20 + turn}", [f"m{turn}"])
            await eventually(bench, f"number{10 + turn}", [])
        # Deleted notes are left out of answers at once, and removed from the search when nothing else needs doing.
        with trio.fail_after(10):
            while sorted(search.groups) != sorted(name.removesuffix(".md") for name in os.listdir(root)):  # noqa: ASYNC110
                await trio.sleep(0.01)


class Embedder(WordEmbedder):
    """As a service."""

    @asynccontextmanager
    async def open(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()

        @handlers.handle(EmbedTexts)
        async def embed(params: EmbedTexts, ctx: Context) -> EmbedResult:
            return await self.embed(params)

        @handlers.handle(EmbedMaxSim)
        async def maxsim(params: EmbedMaxSim, ctx: Context) -> MaxSimResult:
            return MaxSimResult(scores=[0.5] * len(params.texts))

        @handlers.handle(EmbedModelParams)
        async def model(params: EmbedModelParams, ctx: Context) -> EmbedModel:
            return await self.model(params)

        yield handlers


async def test_renamed_note_keeps_its_vectors_under_its_new_id(tmp_path: Path, root: Path) -> None:
    embedder = Embedder()
    for number in range(3):
        text = f"The {('zebra', 'okapi', 'quagga')[number]} walks by the water, early in the morning, and drinks. "
        write(root, f"n{number}.md", f"# Note {number}\n\n{text * 5}\n\n## More\n\n{text * 40}\n")
    services = {"embed": embedder.open, "retrieve": open_retrieve, "watch": open_watch, "knowledge": open_knowledge}
    async with services_in_process(services, tmp_path / "data", roots=[root]) as bench:
        await watched(bench)

        async def vectors() -> int:
            with trio.fail_after(10):
                while (await bench.call(RetrieveStatus(collection="notes"))).vectors_waiting:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            return (await bench.call(RetrieveStatus(collection="notes"))).vectors

        async def ids(expected: list[str]) -> None:
            with trio.fail_after(10):
                while (await bench.call(RetrieveGroups(collection="notes"))).ids != expected:  # noqa: ASYNC110
                    await trio.sleep(0.01)

        await ids(["n0", "n1", "n2"])
        count = await vectors()
        assert count >= 6
        embedder.texts.clear()
        (root / "n0.md").rename(root / "k0.md")
        (root / "n1.md").rename(root / "n0.md")
        await ids(["k0", "n0", "n2"])
        assert await vectors() == count
        assert embedder.texts == []
        hits = (await bench.call(SearchDocuments(query="okapi"))).results
        assert [hit.id for hit in hits if "okapi" in hit.snippet] == ["n0"]
        await bench.stop("knowledge")
