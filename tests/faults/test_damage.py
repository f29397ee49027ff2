"""A damaged page, a truncated file or a foreign file in place of any database: served, or rebuilt, or said."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import apsw
import pytest
import trio

from proto.errors import LinckiaError, Unavailable
from tests.faults.scene import scene
from tests.faults.subjects import SUBJECTS, Subject, check_typed
from tests.in_process import Bench
from tests.unit.runtime.faults import PAGE_BYTES, damage_page, files_in, page_count, pages_of

TRIES = 50
MOST = 10

Kind = tuple[Path, str, Callable[[Path], object]]
"""A database, the part of it to damage, and how."""


def tables_of(path: Path) -> list[str]:
    """Every table and index of a database that is closed."""
    connection = apsw.Connection(str(path))
    try:
        rows = connection.execute("SELECT name FROM sqlite_schema WHERE rootpage > 0 ORDER BY name").fetchall()
        return ["sqlite_schema", *(str(name) for (name,) in rows)]
    finally:
        connection.close()


def damages_of(path: Path) -> dict[str, Callable[[Path], object]]:
    """The ways to damage a copy of the file: the first page of each table, half of it cut off, other content."""
    done: dict[str, Callable[[Path], object]] = {
        table: partial(damage_page, page=pages[0]) for table in tables_of(path) if (pages := pages_of(path, table))
    }
    return done | {"cut": cut, "foreign": lambda copy: copy.write_bytes(b"this is not a database\n" * 400)}


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(max(1, page_count(path) // 2) * PAGE_BYTES)


async def write_first(subject: Subject, folder: Path) -> None:
    async with scene(subject, folder) as (bench, root):
        await subject.write(bench, root, 1)
        # If the data is derived from other data, the rebuilt state can be compared.
        assert await subject.seen(bench, root) == {1}


@pytest.mark.parametrize("name", SUBJECTS)
async def test_damage_of_any_file_is_served_rebuilt_or_named(
    name: str, tmp_path: Path, sample: Callable[[Sequence[Kind], int], list[Kind]]
) -> None:
    subject = SUBJECTS[name]
    await write_first(subject, tmp_path / "first")
    databases = [path.relative_to(tmp_path / "first") for path in files_in(tmp_path / "first" / "data", "**/*.db")]
    assert databases
    kinds = [(each, *damage) for each in databases for damage in damages_of(tmp_path / "first" / each).items()]
    folder, whole = tmp_path / "first", tmp_path / "whole"
    folder.rename(whole)
    for relative, label, damage in sample(kinds, MOST):
        # Use the same path, because the databases contain it too.
        shutil.copytree(whole, folder, symlinks=True)
        damage(folder / relative)
        try:
            await lives_with_damage(subject, folder)
        except BaseException as error:
            error.add_note(f"damaged: {relative}, {label}")
            raise
        shutil.rmtree(folder)


async def lives_with_damage(subject: Subject, folder: Path) -> None:
    """The service starts, answers, and says what it cannot answer; no call ends it, and none fails as `internal`."""
    async with scene(subject, folder) as (bench, root):
        seen: set[int] | None = None
        for _ in range(TRIES):
            try:
                seen = await subject.seen(bench, root)
                break
            except LinckiaError as error:
                check_typed(error)
                await trio.sleep(0.02)
        try:
            with trio.fail_after(20):
                await subject.write(bench, root, 2)
        except LinckiaError as error:
            check_typed(error)
        else:
            if seen is not None:
                # What a rebuilt database has lost is stated again by others, or made again.
                seen = await seen_again(subject, bench, root)
                assert {2} <= seen <= {1, 2}
        assert not bench.failures


async def seen_again(subject: Subject, bench: Bench, root: Path) -> set[int]:
    """The writes that are seen; one that was lost, for the damage was noticed after it, is stated again."""
    for _ in range(TRIES):
        with contextlib.suppress(Unavailable):
            seen = await subject.seen(bench, root)
            if 2 in seen or not subject.fed:
                return seen
            await subject.write(bench, root, 2)
        await trio.sleep(0.02)
    raise AssertionError("the data that was written again does not appear")
