"""A disk that is full is called so, however a library says it."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from proto.errors import Executed
from services.runtime.storage import disk_full, starved_of, trouble_of

FULL = "the disk is full"


def fill_with_sqlite3(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA max_page_count=4")
        db.execute("CREATE TABLE t(x)")
        db.execute("INSERT INTO t VALUES(zeroblob(100000))")


def fill_with_apsw(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA max_page_count=4")
    db.execute("CREATE TABLE t(x); INSERT INTO t VALUES(zeroblob(100000))")


def write_to_a_full_device(path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")


def fail_for_it(path: Path) -> None:
    try:
        write_to_a_full_device(path)
    except OSError as error:
        raise ExceptionGroup("several", [ValueError("another"), RuntimeError("wrapped")]) from error


@pytest.mark.parametrize("fill", [fill_with_sqlite3, fill_with_apsw, write_to_a_full_device, fail_for_it])
def test_a_full_disk_is_named(fill: Callable[[Path], None], tmp_path: Path) -> None:
    with pytest.raises((sqlite3.Error, apsw.Error, OSError, ExceptionGroup)) as caught:
        fill(tmp_path / "t.db")
    assert trouble_of(caught.value) == FULL
    failure = disk_full(caught.value, tmp_path, Executed.MAYBE)
    assert failure is not None
    assert failure.failure.message.startswith(f"{FULL} ({tmp_path}")
    assert failure.failure.executed is Executed.MAYBE


def insert_with_sqlite3(path: Path) -> None:
    sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("INSERT INTO t VALUES(1)")


def insert_with_apsw(path: Path) -> None:
    apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY).execute("INSERT INTO t VALUES(1)")


@pytest.mark.parametrize("insert", [insert_with_sqlite3, insert_with_apsw])
def test_a_database_that_may_only_be_read_is_named(insert: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    sqlite3.connect(path).executescript("CREATE TABLE t(x)").close()
    with pytest.raises((sqlite3.Error, apsw.Error)) as caught:
        insert(path)
    assert trouble_of(caught.value) == "the disk is read-only"


@pytest.mark.parametrize(
    "error", [ValueError("full"), KeyError(13), FileNotFoundError(2, "not there"), apsw.BusyError()]
)
def test_other_errors_are_not_blamed_on_the_disk(error: Exception, tmp_path: Path) -> None:
    assert trouble_of(error) == ""
    assert disk_full(error, tmp_path) is None


def test_lack_of_descriptors_is_found_anywhere_in_an_error_s_causes() -> None:
    first, second = ValueError("first"), ValueError("second")
    # As where the error of one task is raised again while another's is handled, and the other way round.
    first.__context__, second.__context__ = second, first
    assert not starved_of(first)
    second.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert starved_of(first) == "open files"


def test_lack_of_threads_is_recognized() -> None:
    assert starved_of(RuntimeError("can't start new thread")) == "threads"
