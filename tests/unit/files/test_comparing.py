"""A rescan lets other processes compare a part of the stored rows, and is right whether they answer, refuse or die."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from services.files.index import comparing
from services.files.index.comparing import open_service as open_compare
from services.files.index.listing import open_folder
from services.files.main import open_service as open_files
from services.files.operations.index import Compared, CompareFolders
from services.runtime.handlers import Context, Environment, Handlers
from tests.in_process import Bench, services_in_process
from tests.unit.files.rig import OnDisk, change_tree, differences, files_service, index, make_tree, stored


class Spied:
    """`compare`, and how many folders it was asked about; `before` each answer something may be done."""

    def __init__(self, before: Callable[[], Any] = lambda: None) -> None:
        self.folders = 0
        self._before = before

    @asynccontextmanager
    async def open(self, env: Environment) -> AsyncIterator[Handlers]:
        async with open_compare(env) as true:
            handlers = Handlers()
            _, answer = true.by_name.pop("compare_folders")
            handlers.by_name |= true.by_name

            @handlers.handle(CompareFolders)
            async def compare_folders(params: CompareFolders, ctx: Context) -> Compared:
                self.folders += len(params.paths)
                self._before()
                found = await answer(params, ctx)
                assert isinstance(found, Compared)
                return found

            yield handlers


@asynccontextmanager
async def both(data: Path, root: Path, compare: Spied, **settings: Any) -> AsyncIterator[Bench]:
    services = {"compare": compare.open, "files": open_files}
    async with services_in_process(services, data, roots=[root], settings={"files": settings}) as bench:
        yield bench
        await bench.stop("files")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "PIECE_ENTRIES", 8)


@pytest.mark.slow
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(3))
async def test_a_rescan_is_right_whether_other_processes_compare_or_not(tmp_path: Path, seed: int) -> None:
    chance, compare = random.Random(seed), Spied()
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, chance, 300)
    async with both(data, root, compare) as bench:
        await index(bench, root)
        assert differences(data, root) == []
        assert compare.folders == 0
        for _ in range(6):
            change_tree(root, chance, 25)
            result = await index(bench, root)
            assert differences(data, root) == []
            size, _, files, directories = OnDisk(root).sums(str(root))
            assert (result.files, result.directories, result.total_size) == (files, directories + 1, size)
        assert compare.folders > 100


@pytest.mark.usefixtures("small_pieces")
async def test_a_rescan_continues_if_the_comparing_processes_die(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(4), 400)
    died: list[int] = []

    def die() -> None:
        died.append(compare.folders)
        bench.running["compare"].scope.cancel()

    compare = Spied(die)
    async with both(data, root, compare) as bench:
        await index(bench, root)
        change_tree(root, random.Random(5), 20)
        with trio.fail_after(30):
            running = bench.running["compare"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(index, bench, root)
                await running.ended.wait()
                # The kernel answers for dead services in the same way.
                await bench.stop("compare")
        assert died
        assert differences(data, root) == []
        change_tree(root, random.Random(6), 20)
        await index(bench, root)
        assert differences(data, root) == []


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("at", ["d/0", "d/9", "d", "e"])
async def test_folders_that_go_while_they_are_compared_are_not_in_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    for name in ("a", "b", "d", "e"):
        for number in range(10):
            (root / name / str(number)).mkdir(parents=True)
            (root / name / str(number) / "file").write_text("x")
    doomed = [root / "d" / str(number) for number in range(10)]
    true_open = open_folder

    def remove(path: str, above: int | None) -> int:
        # What holds them may have been compared by then, and they themselves.
        if path == f"{root}/{at}":
            for folder in doomed:
                (folder / "file").unlink()
                folder.rmdir()
            doomed.clear()
        return true_open(path, above)

    async with files_service(data, root) as bench:
        await index(bench, root)
        monkeypatch.setattr(comparing, "open_folder", remove)
        await index(bench, root)
        assert doomed == []
        if at.startswith("d"):
            assert not any(path.startswith(f"{root}/d/") for path in stored(data))
        await index(bench, root)
        assert differences(data, root) == []


@pytest.mark.usefixtures("small_pieces")
async def test_ignored_names_are_ignored_by_the_others_too(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    for number in range(60):
        (root / f"d{number}/skip").mkdir(parents=True)
        (root / f"d{number}/file").write_text("x")
    compare = Spied()
    async with both(data, root, compare, ignore=["skip"]) as bench:
        await index(bench, root)
        before = stored(data)
        for number in range(60):
            (root / f"d{number}/skip/more").write_text("x")
        await index(bench, root)
        assert compare.folders > 0
        assert stored(data) == before


async def test_compare_reports_the_differences(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("same", "other", "shut"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("x")
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(root / "same")
    folders = [f"{root}/{name}/" for name in ("same", "other", "nowhere", "link")] + [f"{tmp_path}/outside/"]
    known = [comparing.fingerprint(path, None, frozenset()) for path in folders[:2]]
    (root / "other/file").write_text("xy")
    async with services_in_process({"compare": open_compare}, tmp_path / "data", roots=[root]) as bench:
        fingerprints = [*known, b"x", known[0], comparing.fingerprint(folders[4], None, frozenset())]
        answer = await bench.call(CompareFolders(paths=folders, fingerprints=fingerprints))
        # The link is not followed, nor is anything looked at outside the roots.
        assert answer.different == [1, 2, 3, 4]
        answer = await bench.call(CompareFolders(paths=folders, fingerprints=known[:1]))
        assert answer.different == [1, 2, 3, 4]
