"""The columns in memory: their answers equal those of SQLite, whatever changed since they were loaded."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.operation import Params
from services.files.browse import space
from services.files.operations.changes import MoveFiles, Relocation
from services.files.operations.queries import FoundEntries, QueryCreate, QueryExecute
from services.files.operations.reading import Navigate
from services.files.operations.resources import (
    ResourceFuzzyMatch,
    ResourceIs,
    ResourceMetricRange,
    ResourceSearch,
    ResourceSum,
    ResourceTimeRange,
    TextMode,
)
from services.files.operations.sets import ResourceSetAddChild, ResourceSetCreate, ResourceSetDelete, ResourceSetModify
from services.files.operations.shared import Filter
from services.files.operations.space import SpaceSummaryOf, TopEntries, TopFiles
from services.files.query import arrays, columns
from services.files.query.columns import Columns
from tests.in_process import Bench
from tests.unit.files.rig import change_tree, files_service, index, make_tree

NAMES = (
    "a",
    "B",
    "ü",
    "STRASSE",
    "straße",
    "K\N{KELVIN SIGN}k",
    "long\N{LATIN SMALL LETTER LONG S}",
    "x_y",
    "100%",
    "a-",
    "a-b",
    "a b",
)

MODES: tuple[TextMode, ...] = ("contains", "prefix", "suffix")
PATTERNS: tuple[tuple[str, TextMode], ...] = (
    ("a.*1", "regex"), ("x+1.*t$", "regex"), ("(a|b)[0-9]+\\.txt", "regex"), ("long[sx]|K+k", "regex"),
    ("*/[ak]*1*", "glob"), ("*ss*.TXT", "glob"),
)  # fmt: skip


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Columns]:
    """Use columns even for few entries; lists those that services made."""
    for module in (columns, space):
        monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(columns, "CALM_S", 0)
    every: list[Columns] = []
    begin = Columns.__init__

    def noted(self: Columns, *given: Any) -> None:
        every.append(self)
        begin(self, *given)

    monkeypatch.setattr(Columns, "__init__", noted)
    return every


@asynccontextmanager
async def filled(folder: Path, seed: int) -> AsyncIterator[tuple[Bench, Path]]:
    """A service with an indexed tree of varied names, and two sets, one below the other."""
    chance = random.Random(seed)
    root = folder / "root"
    make_tree(root, chance, 150)
    for number in range(20):
        # The content of a directory follows siblings such as `a-`.
        (root / chance.choice(["", "a", "a-"]) / "".join(chance.choices("a-.0", k=1 + number % 3))).mkdir(
            parents=True, exist_ok=True
        )
    for number in range(60):
        where = chance.choice([path for path in (root, *root.rglob("*")) if path.is_dir() and not path.is_symlink()])
        path = where / f"{chance.choice(NAMES)}{number % 7}{chance.choice(['.JPG', '.txt', '', '.tar.gz'])}"
        path.write_bytes(b"x" * chance.choice([0, 1, 77, 5000]))
        os.utime(path, ns=(0, chance.choice([10**18, 10**9, 1_700_000_000 * 10**9])))
    os.mkfifo(root / "pipe")
    async with files_service(folder / "data", root) as bench:
        await index(bench, root)
        await bench.call(ResourceSetCreate(name="one"))
        await bench.call(ResourceSetCreate(name="two"))
        await bench.call(ResourceSetAddChild(parent="one", child="two"))
        for name in ("one", "two"):
            await bench.call(ResourceSetModify(name=name, operation="add", paths=some_of(root, chance)))
        await bench.call(QueryCreate(name="saved", query=Filter(min_size=1, sort_by="ctime")))
        yield bench, root


def some_of(root: Path, chance: random.Random) -> list[str]:
    every = [str(root), *(os.path.join(at, name) for at, *names in os.walk(root) for part in names for name in part)]
    return chance.sample(every, len(every) // 3)


def questions(root: Path) -> list[Params[Any]]:
    """Operations that columns may answer."""
    asked: list[Params[Any]] = [
        *(ResourceSum(name="one", metric=metric) for metric in ("size", "count", "files", "directories")),
        *(ResourceIs(name="one", field="extension", value=value) for value in ("jpg", ".TXT", "tar.gz", "none")),
        *(ResourceIs(name="two", field="kind", value=kind) for kind in ("file", "directory", "symlink", "other")),
        ResourceIs(name="one", field="size", value=5000),
        ResourceMetricRange(name="one", metric="size", min=1),
        ResourceMetricRange(name="one", metric="disk_size", max=4096, offset=3, limit=5),
        ResourceMetricRange(name="one", metric="links", min=2),
        ResourceMetricRange(name="one", metric="depth", min=2),
        ResourceTimeRange(name="one", field="mtime", min="2001-01-01", max="2024-01-01"),
        ResourceTimeRange(name="one", field="added_at", min="2001-01-01"),
        ResourceSearch(name="one", include_children=True, sort_by="name", sort_desc=False),
        ResourceSearch(name="one", include_children=True, sort_by="name", limit=7, offset=7),
        ResourceSearch(name="two", kind="file", extension="txt", name_contains="A", min_size=1),
        QueryExecute(name="saved"),
        *(Navigate(path=str(root), sort="name", desc=desc) for desc in (True, False)),
        *(Navigate(path=str(root), sort="size", desc=desc) for desc in (True, False)),
        Navigate(path=str(root), sort="mtime"),
        Navigate(path=str(root), limit=3, offset=2),
        TopFiles(path=str(root)),
        TopFiles(path=str(root), measure="disk", limit=4, offset=4),
        SpaceSummaryOf(path=str(root)),
    ]  # fmt: skip
    for pattern in ("A", "Ü", "strasse", "straße", "k", "s", "1.t", f"{root.name}/", "/a", "/", "%", "x_", ".JPG"):
        for mode in MODES:
            for any_case in (True, False):
                asked += (
                    ResourceFuzzyMatch(name="one", field=field, pattern=pattern, mode=mode, case_sensitive=not any_case)
                    for field in ("name", "path")
                )
    for pattern, mode in PATTERNS:
        for sensitive in (True, False):
            asked.append(
                ResourceFuzzyMatch(name="one", field="path", pattern=pattern, mode=mode, case_sensitive=sensitive)
            )
    return asked


async def compared(
    bench: Bench, root: Path, made: list[Columns], monkeypatch: pytest.MonkeyPatch, *, loaded: bool
) -> None:
    """Compare all answers with those of SQLite; `loaded`: columns must have answered."""
    views = []
    original = Columns.view

    def counted(self: Columns, *given: Any) -> Any:
        views.append(original(self, *given))
        return views[-1]

    for params in questions(root):
        with monkeypatch.context() as patched:
            patched.setattr(Columns, "view", counted)
            found = await bench.call(params)
        with monkeypatch.context() as patched:
            patched.setattr(Columns, "view", lambda self, db, needed: None)
            assert found == await bench.call(params), params
    assert not loaded or views.count(None) == 0, "some columns were not loaded"
    assert views


@pytest.mark.parametrize("seed", range(4))
async def test_answers_equal_those_of_sqlite_after_any_change(
    tmp_path: Path, seed: int, made: list[Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(columns, "MAX_COLUMNS", 1000)
    monkeypatch.setattr(arrays, "FEW_FOUND", chance.choice([1, 1000]))
    async with filled(tmp_path, seed) as (bench, root):
        await compared(bench, root, made, monkeypatch, loaded=False)
        await made[0].settled()
        await compared(bench, root, made, monkeypatch, loaded=True)
        for _ in range(3):
            change_tree(root, chance, 6)
            await index(bench, root)
            for name in ("one", "two"):
                for operation in ("remove", "add"):
                    await bench.call(ResourceSetModify(name=name, operation=operation, paths=some_of(root, chance)[:5]))
            await compared(bench, root, made, monkeypatch, loaded=True)
        await bench.call(ResourceSetDelete(name="two"))
        await bench.call(ResourceSetCreate(name="two"))
        await compared(bench, root, made, monkeypatch, loaded=False)


async def test_more_changes_than_are_noted_one_by_one_drop_the_columns(
    tmp_path: Path, made: list[Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_CHANGED", 5)
    async with filled(tmp_path, 1) as (bench, root):
        await bench.call(TopFiles(path=str(root)))
        await made[0].settled()
        for number in range(6):
            (root / f"largest {number}").write_bytes(b"x" * (100_000 + number))
        await index(bench, root)
        found = await bench.call(TopFiles(path=str(root)))
        assert [entry.name for entry in found.entries[:6]] == [f"largest {number}" for number in range(5, -1, -1)]
        await made[0].settled()
        assert found == await bench.call(TopFiles(path=str(root)))


async def test_a_moved_directory_is_found_at_its_new_path_only(
    tmp_path: Path, made: list[Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path, 2) as (bench, root):
        (root / "before").mkdir()
        (root / "before/inside.txt").write_bytes(b"x" * 999_999)
        await index(bench, root)
        await compared(bench, root, made, monkeypatch, loaded=False)
        await made[0].settled()
        move = Relocation(from_=str(root / "before"), to=str(root / "after"))
        await bench.call(MoveFiles(moves=[move]))
        found = await bench.call(TopFiles(path=str(root)))
        assert found.entries[0].path == str(root / "after/inside.txt")
        await compared(bench, root, made, monkeypatch, loaded=False)


async def test_sqlite_answers_if_columns_cannot_be_loaded(
    tmp_path: Path, made: list[Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise MemoryError

    async with filled(tmp_path, 3) as (bench, root):
        with monkeypatch.context() as patched:
            patched.setattr(arrays.Arrays, "load", fail)
            found = await bench.call(TopFiles(path=str(root)))
            await made[0].settled()
            assert found == await bench.call(TopFiles(path=str(root)))
            await made[0].settled()
        await compared(bench, root, made, monkeypatch, loaded=False)
        await made[0].settled()
        await compared(bench, root, made, monkeypatch, loaded=True)


async def test_a_damaged_database_leaves_no_columns_of_the_old_one(
    tmp_path: Path, made: list[Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path, 4) as (bench, root):
        await compared(bench, root, made, monkeypatch, loaded=False)
        await made[0].settled()
        database = made[0]._database
        await trio.to_thread.run_sync(database.begin_again, "damaged by a test")
        (root / "new.txt").write_bytes(b"x" * 999_999)
        await index(bench, root)
        found = await bench.call(TopFiles(path=str(root)))
        assert found.entries[0].path == str(root / "new.txt")
        await compared(bench, root, made, monkeypatch, loaded=False)


async def test_unused_columns_are_dropped(tmp_path: Path, made: list[Columns], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "IDLE_S", 0.01)
    dropped = trio.Event()
    original = Columns.drop

    async def drop(self: Columns) -> None:
        await original(self)
        dropped.set()

    monkeypatch.setattr(Columns, "drop", drop)
    async with filled(tmp_path, 5) as (bench, root):
        found = await bench.call(TopFiles(path=str(root)))
        await dropped.wait()
        assert found == await bench.call(TopFiles(path=str(root)))


async def test_no_answer_is_older_than_the_index_while_it_changes(
    tmp_path: Path, made: list[Columns], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries, loads and changes at the same time: an acknowledged file is in every answer from then on."""
    monkeypatch.setattr(columns, "MAX_CHANGED", 9)
    async with filled(tmp_path, 6) as (bench, root):
        written = 0

        async def ask(order: TopFiles | QueryExecute) -> None:
            while written < 40:
                least = written
                found: TopEntries | FoundEntries = await bench.call(order)
                assert max(entry.size for entry in found.entries) >= 100_000 + least, order

        (root / "largest").write_bytes(b"x" * 100_000)
        await index(bench, root)
        async with trio.open_nursery() as tasks:
            tasks.start_soon(ask, TopFiles(path=str(root)))
            tasks.start_soon(ask, QueryExecute(name="saved"))
            for number in range(1, 41):
                (root / "largest").write_bytes(b"x" * (100_000 + number))
                await index(bench, root)
                written = number
