"""Continuous backups read what has changed, put nothing while nothing changes, and keep one snapshot an interval."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from proto import backup as outcomes
from proto.backup import Access, BackupFailed, File
from services.backup import streaming as module
from services.backup.making import copied
from services.backup.piece import Piece
from services.backup.sealed import Sealed
from services.backup.streaming import Known, Stream, continuous
from services.backup.target import opened
from tests.unit.backup import writing
from tests.unit.backup.writing import DATABASES, PROGRAM, restore

ACCESS = Access(encrypt=True)
EVERY_S = 3600.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    writing.make(data)
    for path in DATABASES:
        add(data, path, os.urandom(2_000_000))
    return data


@pytest.fixture
def target(data: Path, tmp_path: Path) -> Iterator[Sealed]:
    with opened(str(tmp_path / "to"), data, ACCESS, write=True) as found:
        assert isinstance(found, Sealed)
        yield found


def add(data: Path, path: str, content: bytes) -> None:
    with contextlib.closing(apsw.Connection(str(data / path))) as db:
        db.execute("INSERT INTO row(filling) VALUES(?)", (content,))
        # As a service has it open, and its log stays.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def age(data: Path) -> None:
    """Make all files as old as if nothing had been written for a while."""
    for each in data.rglob("*"):
        status = each.stat()
        os.utime(each, ns=(status.st_atime_ns, status.st_mtime_ns - 10**10))


def stream(data: Path, tmp_path: Path, known: Known, every_s: float = EVERY_S) -> Stream:
    return Stream(data, str(tmp_path / "to"), PROGRAM, 1, every_s, known)


def rows(data: Path) -> list[int]:
    found = []
    for path in DATABASES:
        with contextlib.closing(apsw.Connection(str(data / path))) as db:
            assert db.pragma("integrity_check") == "ok"
            found += [int(n) for (n,) in db.execute("SELECT count(*) FROM row")]
    return found


def objects(tmp_path: Path) -> set[Path]:
    return {each for each in (tmp_path / "to").rglob("*") if each.is_file()}


def test_only_what_has_changed_is_read_and_nothing_is_put_while_nothing_changes(
    data: Path, target: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(piece: Piece, to: Sealed) -> File:
        if piece.source is not None:
            read.append(piece.path)
        return copied(piece, to)

    monkeypatch.setattr(module, "copied", noted)
    made = stream(data, tmp_path, {})
    age(data)
    made.tick(target)
    assert {*DATABASES, "token"} <= set(read)
    before = objects(tmp_path)
    read.clear()
    for _ in range(3):
        made.tick(target)
    assert (read, objects(tmp_path)) == ([], before)

    add(data, DATABASES[0], b"more")
    made.tick(target)
    assert set(read) == {f"{DATABASES[0]}-wal"}
    restore(tmp_path / "to", tmp_path / "again", access=ACCESS._replace(key_file=data / "backup.key"))
    assert rows(tmp_path / "again") == rows(data)


def test_a_log_that_was_moved_into_its_database_is_in_the_next_snapshot(
    data: Path, target: Sealed, tmp_path: Path
) -> None:
    made = stream(data, tmp_path, {})
    for number in range(4):
        age(data)
        add(data, DATABASES[number % 3], os.urandom(300_000))
        if number % 2:
            with contextlib.closing(apsw.Connection(str(data / DATABASES[number % 3]))) as db:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        made.tick(target)
        again = tmp_path / f"again{number}"
        restore(tmp_path / "to", again, access=ACCESS._replace(key_file=data / "backup.key"))
        assert rows(again) == rows(data)


def test_one_snapshot_an_interval_is_kept_and_the_newest(data: Path, target: Sealed, tmp_path: Path) -> None:
    made = stream(data, tmp_path, {})
    made.tick(target)
    (first,) = target.names()
    for n in range(3):
        add(data, DATABASES[0], bytes([n]))
        made.tick(target)
    kept, newest = target.names()
    assert (kept, newest > first) == (first, True)
    made._every_s = 0
    add(data, DATABASES[0], b"last")
    made.tick(target)
    (only,) = target.names()
    assert only > newest
    assert outcomes.known(data)[str(tmp_path / "to")].snapshot == only
    restore(tmp_path / "to", tmp_path / "again", access=ACCESS._replace(key_file=data / "backup.key"))
    assert rows(tmp_path / "again") == rows(data)


def test_a_chunk_that_was_removed_there_is_put_again(data: Path, tmp_path: Path) -> None:
    wanted = iter([True, True, False])
    to, began = tmp_path / "to", time.time()

    def once() -> bool:
        return next(wanted, False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TICK_S", 0)
        continuous(data, str(to), PROGRAM, ACCESS, 1, EVERY_S, once)
    assert (outcomes.known(data)[str(to)].succeeded or 0) >= began
    known: Known = {}
    age(data)
    with opened(str(to), data, ACCESS, write=True) as target:
        assert isinstance(target, Sealed)
        stream(data, tmp_path, known).tick(target)
    for chunk in (to / "chunks").rglob("*.*"):
        chunk.unlink()
    add(data, DATABASES[0], b"more")
    with opened(str(to), data, ACCESS, write=True) as target:
        assert isinstance(target, Sealed)
        with pytest.raises(BackupFailed, match="did not arrive"):
            stream(data, tmp_path, known).tick(target)
        stream(data, tmp_path, {}).tick(target)
    restore(to, tmp_path / "again", access=ACCESS._replace(key_file=data / "backup.key"))
    assert rows(tmp_path / "again") == rows(data)


def test_a_target_that_is_not_encrypted_is_refused_and_said(data: Path, tmp_path: Path) -> None:
    wanted = iter([True, True])
    continuous(data, str(tmp_path / "plain"), PROGRAM, Access(), 1, EVERY_S, lambda: next(wanted, False))
    assert "set `encrypt`" in outcomes.known(data)[str(tmp_path / "plain")].error
