"""What tests of changes to files share: items of a call, sets to look at, a small tree."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from services.files.index.tree import find
from services.files.operations.changes import Relocation, RelocationOutcome
from services.files.operations.resources import ResourceSearch
from services.files.query import sets
from tests.in_process import Bench


def pairs(*given: tuple[Path | str, Path | str]) -> list[Relocation]:
    return [Relocation(from_=str(source), to=str(target)) for source, target in given]


def statuses(results: list[RelocationOutcome]) -> list[str]:
    return [result.status for result in results]


def put_into_set(data: Path, name: str, *members: Path) -> None:
    db = apsw.Connection(str(data / "files/files.db"))
    db.set_busy_timeout(10_000)  # the service writes to it, too
    with db:
        id_ = sets.make(db, name)
        for path in members:
            entry = find(db, str(path))
            assert entry is not None
            sets.add(db, id_, [entry.id])
    db.close()


async def members(bench: Bench, name: str) -> list[str]:
    page = await bench.call(ResourceSearch(name=name, sort_by="path", sort_desc=False))
    return [entry.path for entry in page.entries]


def small_tree(root: Path) -> None:
    (root / "a/inner").mkdir(parents=True)
    (root / "b").mkdir()
    (root / "a/one").write_bytes(b"1" * 5000)
    (root / "a/inner/two").write_bytes(b"2" * 70)
    (root / "b/three").write_bytes(b"3" * 9)
    os.link(root / "a/inner/two", root / "b/linked")
    (root / "link").symlink_to("a")
