"""A data directory with the three kinds of sources, and a process that writes to one after the other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from kernel.cli.care.backup import Backups, without_kernel
from kernel.cli.care.data_format import program
from proto.backup import Access, Made, Manifest
from services import backup as service

DATABASES = ("services/documents/packs.db", "services/files/files.db", "services/transcripts/transcripts.db")
TRASH = "services/files/trash"

FILLING = 20_000
"""Bytes of each row: some pages, so that the log soon holds more than the database."""


PROGRAM = program()

BACKUPS: Backups = service
"""It is what the command line takes it for."""


def backup(data: Path, to: Path | str, keep: int | None = None, access: Access = Access()) -> Made:  # noqa: B008  # a tuple
    return BACKUPS.backup(data, str(to), PROGRAM, access, keep)


def restore(
    source: Path | str, data: Path, *, at: str | None = None, replace: bool = False,
    access: Access = Access(),  # noqa: B008  # a tuple
) -> tuple[Manifest, Path | None]:  # fmt: skip
    return restore_of([source], data, at=at, replace=replace, access=access)[:2]


def restore_of(
    sources: Sequence[Path | str], data: Path, *, at: str | None = None, replace: bool = False,
    access: Access = Access(),  # noqa: B008  # a tuple
) -> tuple[Manifest, Path | None, list[str]]:  # fmt: skip
    return BACKUPS.restore([*map(str, sources)], data, PROGRAM, without_kernel, access, at=at, replace=replace)


def make(data: Path) -> None:
    for path in DATABASES:
        (data / path).parent.mkdir(parents=True)
        with contextlib.closing(apsw.Connection(str(data / path))) as db:
            db.pragma("journal_mode", "wal")
            db.execute("CREATE TABLE row(n INTEGER PRIMARY KEY, filling BLOB); PRAGMA user_version = 3").fetchall()
    (data / TRASH).mkdir()
    (data / "token").write_text("linckia_0123456789abcdefghijklmnopqrstuvwxyz\n")
    (data / "token").chmod(0o600)
    (data / "logs").mkdir()
    (data / "logs" / "kernel.log").write_text("a line\n")


def put(db: apsw.Connection, n: int) -> None:
    db.execute("INSERT INTO row VALUES(?, ?)", (n, os.urandom(FILLING)))


def main(data: Path) -> None:
    """Write the next number, wherever there is a line on stdin, into each, one after the other, and say so."""
    dbs = [apsw.Connection(str(data / path)) for path in DATABASES]
    for db in dbs:
        db.set_busy_timeout(10_000)
        db.pragma("synchronous", "off")
        # A checkpoint after nearly each commit restarts the log just as often.
        db.wal_autocheckpoint(8)
    n = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            n += 1
            for db in dbs:
                put(db, n)
            item = data / "services" / f"item-{n}"
            item.mkdir()
            (item / "file").write_text(f"item {n}\n")
            item.rename(data / TRASH / str(n))
        print(n, flush=True)


class Writer:
    """The process that writes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._said = process.stdin, process.stdout

    def begin(self, rounds: int) -> None:
        self._to.write(f"{rounds}\n")
        self._to.flush()

    def wait(self) -> int:
        """Wait until the writer has reached `count` writes; return how many there are."""
        return int(self._said.readline())


@contextlib.contextmanager
def writing(data: Path) -> Iterator[Writer]:
    # Run the writer in a process of its own: the tests concern locks between processes, and fcntl(2) has no effect
    # within one.
    command = [sys.executable, "-m", "tests.unit.backup.writing", str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Writer(process)
        finally:
            process.kill()


HOLDER = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another process is its writer, without a pause."""
    command = [sys.executable, "-c", HOLDER, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield


def counts(data: Path) -> list[int]:
    """The last number of each database, whose rows are whole, and of the trash."""
    found = []
    for path in DATABASES:
        with contextlib.closing(apsw.Connection(str(data / path), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            assert db.pragma("integrity_check") == "ok"
            last = db.execute("SELECT coalesce(max(n), 0) FROM row").get
            assert db.execute("SELECT count(*) FROM row").get == last
            found.append(last)
    items = sorted(int(item.name) for item in (data / TRASH).iterdir())
    assert items == list(range(1, len(items) + 1))
    assert all((data / TRASH / str(n) / "file").read_text() == f"item {n}\n" for n in items)
    return [*found, len(items)]


def check_one_moment(found: Sequence[int]) -> None:
    """Later writes of a round are never ahead, and none is a whole round behind."""
    assert list(found) == sorted(found, reverse=True)
    assert found[0] - found[-1] <= 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
