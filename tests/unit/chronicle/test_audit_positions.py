"""The audit log is read to its end from any position, each line once, across rotations, kills and deletions."""

from __future__ import annotations

import random
from pathlib import Path

from kernel.chronicle.audit import Audit, AuditEntry, files_of, now, path_of
from kernel.chronicle.audit_positions import read_after


class Writer:
    """Writes entries with ascending numbers as their operations."""

    def __init__(self, folder: Path, *, max_bytes: int = 1000, files: int = 100) -> None:
        self.audit = Audit(folder, max_bytes=max_bytes, files=files)
        self.count = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.audit.record(AuditEntry(at=now(), who="ann", operation=str(self.count), target="x" * 40))
            self.count += 1
        self.audit._gather()
        self.audit._write()


def read(folder: Path, position: str, limit: int = 7) -> tuple[list[int], str, bool]:
    found: list[int] = []
    lost = False
    while True:
        page = read_after(folder, position, limit)
        found += [int(each.operation) for each in page.entries]
        position, lost = page.position, lost or page.is_lost
        if not page.more:
            return found, position, lost


def test_each_line_is_read_once_across_rotations(tmp_path: Path) -> None:
    chance = random.Random(1)
    writer, position = Writer(tmp_path), ""
    seen: list[int] = []
    for _ in range(60):
        writer.write(chance.randrange(0, 12))
        if chance.random() < 0.6:
            found, position, lost = read(tmp_path, position, chance.randrange(1, 20))
            assert not lost
            seen += found
    seen += read(tmp_path, position)[0]
    assert len(files_of(tmp_path)) > 10
    assert seen == list(range(writer.count))


def test_nothing_to_read_leaves_the_position(tmp_path: Path) -> None:
    assert read(tmp_path, "") == ([], "", False)
    Writer(tmp_path).write(3)
    _, position, _ = read(tmp_path, "")
    assert read(tmp_path, position) == ([], position, False)


def test_lines_that_were_rotated_away_are_reported_as_lost_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path, files=2)
    writer.write(1)
    _, position, _ = read(tmp_path, "")
    writer.write(60)
    found, position, lost = read(tmp_path, position)
    assert lost
    assert found == list(range(found[0], 61))
    assert read(tmp_path, position) == ([], position, False)


def test_a_deleted_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    Writer(tmp_path).write(3)
    _, position, _ = read(tmp_path, "")
    path_of(tmp_path).unlink()
    assert read(tmp_path, position) == ([], "", True)
    Writer(tmp_path).write(2)
    assert read(tmp_path, "")[0] == [0, 1]


def test_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(2)
    whole = path_of(tmp_path).read_bytes()
    path_of(tmp_path).write_bytes(whole[:-10])
    found, position, _ = read(tmp_path, "")
    assert found == [0]
    path_of(tmp_path).write_bytes(whole)
    assert read(tmp_path, position)[0] == [1]
    # A kernel that was killed leaves half a line, which its successor ends.
    path_of(tmp_path).write_bytes(whole[:-10] + b"\n" + whole.splitlines(keepends=True)[1])
    assert read(tmp_path, "")[0] == [0, 1]
