"""A backup shows all stores at one moment, regardless of writes, moves and restarts in the meantime."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from proto.backup import STAGING, BackupFailed
from services.backup.moment import Moment
from tests.unit.backup import writing
from tests.unit.backup.writing import DATABASES, PROGRAM, TRASH, check_one_moment, counts


@pytest.fixture
def data(tmp_path: Path) -> Path:
    writing.make(tmp_path / "data")
    return tmp_path / "data"


def held(data: Path) -> Moment:
    return Moment(data, PROGRAM.stores)


def copied(moment: Moment, to: Path) -> Path:
    """The pieces of a moment as a data directory."""
    for piece in moment.pieces:
        path = to / piece.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if piece.source is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(b"".join(piece.blocks(64 * 1024)))
    return to


def test_all_stores_are_of_one_moment_while_they_are_written(data: Path, tmp_path: Path) -> None:
    with writing.writing(data) as writer:
        for n in range(6):
            writer.begin(25)
            with held(data) as moment:
                found = counts(copied(moment, tmp_path / str(n)))
            check_one_moment(found)
            assert found[0] >= 25 * n, "the snapshot holds writes acknowledged before it"
            assert writer.wait() == 25 * (n + 1)
    assert counts(data) == [150] * 4


@pytest.mark.parametrize("is_moved", [False, True], ids=["in the log", "in the file"])
def test_writes_and_moves_during_the_copy_are_not_in_it(data: Path, tmp_path: Path, is_moved: bool) -> None:
    with writing.writing(data) as writer:
        writer.begin(10)
        writer.wait()
        if is_moved:
            for path in DATABASES:
                with contextlib.closing(apsw.Connection(str(data / path))) as db:
                    db.pragma("wal_checkpoint(TRUNCATE)")
        with held(data) as moment:
            writer.begin(60)
            assert writer.wait() == 70, "writers do not wait for the copy"
            shutil.rmtree(data / TRASH / "3")
            assert counts(copied(moment, tmp_path / "copy")) == [10] * 4
        with held(data) as later:
            copy = copied(later, tmp_path / "later")
    assert not (copy / TRASH / "3").exists()
    assert not list((data / STAGING).iterdir())


def test_a_store_that_is_not_free_holds_up_no_other(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.backup.moment.PATIENCE_S", 0.2)
    monkeypatch.setattr("services.backup.moment.HOLD_S", 0.05)
    with writing.locked(data / DATABASES[1]), held(data) as moment:
        (problem,) = moment.problems
        assert "files.db was written continuously for" in problem
        assert "is copied without a lock" in problem
        assert set(moment.schemas) == {DATABASES[0], DATABASES[2]}
        assert {piece.path for piece in moment.pieces} >= {"token", *DATABASES}
    with held(data) as moment:
        assert not moment.problems
        assert counts(copied(moment, tmp_path / "copy")) == [0] * 4


STOPPED = """
import os, signal, sys
from pathlib import Path
from kernel.cli.care.data_format import program
from services.backup import moment
moment.OR_DIE_S = 0.3
moment.LockedDatabase.pin = lambda store: os.kill(os.getpid(), signal.SIGSTOP)
moment.Moment(Path(sys.argv[1]), program().stores).__enter__()
"""


def test_a_backup_that_stands_still_while_it_holds_writers_is_killed(data: Path) -> None:
    assert subprocess.run([sys.executable, "-c", STOPPED, str(data)], check=False).returncode == -signal.SIGKILL
    with contextlib.closing(apsw.Connection(str(data / DATABASES[0]))) as db:
        writing.put(db, 1)
    with held(data) as moment:
        assert [piece.path for piece in moment.pieces if piece.path == "token"]


def test_one_backup_at_a_time(data: Path) -> None:
    with (
        held(data),
        pytest.raises(BackupFailed, match=r"another backup of .* is in progress"),
        held(data),
    ):
        pass
    with held(data) as moment:
        assert {piece.path for piece in moment.pieces} >= {"token", *DATABASES}


def test_a_damaged_store_is_copied_as_it_is_and_named(data: Path, tmp_path: Path) -> None:
    file = data / DATABASES[2]
    file.write_bytes(b"no database at all\n" * 300)
    with held(data) as moment:
        (problem,) = moment.problems
        assert "transcripts.db is damaged" in problem
        copy = copied(moment, tmp_path / "copy")
    assert (copy / DATABASES[2]).read_bytes() == file.read_bytes()
    assert not (copy / "logs").exists()
