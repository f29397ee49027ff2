"""Repair fixes some problems, only reports others, and does neither while a kernel runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw
import pytest

from kernel.cli.care.findings import Finding, Verdict
from kernel.cli.care.repair import repaired
from proto.control.address import hold
from tests.unit.backup import writing
from tests.unit.backup.writing import backup


@pytest.fixture
def data(tmp_path: Path) -> Path:
    writing.make(tmp_path / "data")
    (tmp_path / "data/services/transcripts/transcripts.db").chmod(0o600)
    return tmp_path / "data"


def damage(path: Path) -> None:
    """A database of some pages of which the middle is nonsense."""
    path.parent.mkdir(exist_ok=True)
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("CREATE TABLE IF NOT EXISTS row(n INTEGER PRIMARY KEY, filling BLOB)").fetchall()
        for n in range(1, 20):
            writing.put(db, n)
    with path.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096 * 30)


def test_an_intact_data_directory_needs_no_repair(data: Path) -> None:
    assert list(repaired(data)) == []


def test_a_damaged_index_is_removed_and_what_is_whole_stays(data: Path) -> None:
    damage(data / "services/graph/graph.db")
    with contextlib.closing(apsw.Connection(str(data / "services/documents/index.db"))) as db:
        db.execute("CREATE TABLE t(x)").fetchall()
    aside = data / "services/graph/graph.db.damaged-17"
    aside.write_bytes(b"old")
    said = list(repaired(data))
    assert [each.verdict for each in said] == [Verdict.OK, Verdict.OK]
    assert "graph.db was damaged" in said[0].found
    assert not (data / "services/graph/graph.db").exists()
    assert not aside.exists()
    assert (data / "services/documents/index.db").exists()
    assert list(repaired(data)) == []


def test_a_damaged_source_is_kept_and_the_backup_named(data: Path, tmp_path: Path) -> None:
    path = data / "services/transcripts/transcripts.db"
    made = backup(data, tmp_path / "to")
    damage(path)
    before = path.read_bytes()
    (finding,) = repaired(data)
    assert finding.verdict is Verdict.BAD
    assert finding.what == "services/transcripts/transcripts.db"
    assert "Its readable part is served" in finding.found
    assert f"restore {tmp_path / 'to'} --at {made.snapshot} --replace" in finding.remedy
    assert path.read_bytes() == before


def test_secrets_are_for_their_owner_and_what_died_leaves_nothing(data: Path) -> None:
    left = ["kernel.sock", "tokens.json.new", "backup.staging/services/x", "services/yaml/tmp/left/a"]
    for each in left:
        (data / each).parent.mkdir(parents=True, exist_ok=True)
        (data / each).write_text("left")
    (data / "token").chmod(0o644)
    said = [each.found for each in repaired(data)]
    assert len(said) == 2
    assert "token could be read by others" in said[0]
    assert "kernel.sock" in said[1]
    assert (data / "token").stat().st_mode & 0o777 == 0o600
    assert not [each for each in left if (data / each).exists()]


def test_stores_are_left_alone_under_a_kernel(data: Path) -> None:
    index = data / "services/graph/graph.db"
    damage(index)
    with hold(data):
        said = list(repaired(data))
    assert [(each.what, each.verdict) for each in said] == [("repair", Verdict.NOTE)]
    assert "held by another kernel" in said[0].found
    assert index.exists()
    assert isinstance(said[0], Finding)
