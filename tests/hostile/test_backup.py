"""Backups next to a compromised service: whatever it puts into its folder adds nothing foreign to the backup, and
everything else is in it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from kernel.cli.care.findings import Verdict
from kernel.cli.care.repair import repaired
from proto.backup import Made
from services.shared import zstd
from tests.system.running import RunningKernel
from tests.system.test_hostile import attack, kernel
from tests.unit.backup import writing
from tests.unit.backup.writing import backup, restore

__all__ = ["kernel"]

SECRET = b"a secret of somebody else"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    writing.make(data)
    (data / "services/echo").mkdir()
    with contextlib.closing(database(tmp_path / "outside.db")) as db:
        db.execute("CREATE TABLE t(x); PRAGMA user_version = 7")
        db.execute("INSERT INTO t VALUES(?)", (SECRET.decode(),))
    return data


def database(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    return db


@pytest.fixture
def own(data: Path) -> Iterator[Path]:
    """Provide the folder of the compromised service."""
    yield data / "services/echo"
    # Leftovers may be deeper than Python recurses.
    subprocess.run(["find", str(data / "services/echo"), "-mindepth", "1", "-delete"], check=True)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Provide a database that the service may not read, and whose content and neighbours must not change."""
    path = tmp_path / "outside.db"
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    yield path
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert sorted(each.name for each in path.parent.glob("outside.db*")) == ["outside.db"]


def holds_secret(to: Path) -> bool:
    chunks = (path.read_bytes() for path in (to / "chunks").glob("*/*"))
    return any(SECRET in zstd.decompress(chunk) for chunk in chunks)


def saved(data: Path, to: Path) -> Made:
    """Make a backup, and check that everything outside the compromised service is in it."""
    made = backup(data, to)
    assert not holds_secret(to)
    again = to.with_name(f"{to.name} restored")
    restore(to, again)
    assert writing.counts(again) == [0] * 4
    assert (again / "token").exists()
    return made


def linked(how: Callable[[Path, Path], None], end: str) -> Callable[[Path, Path], None]:
    def make(own: Path, outside: Path) -> None:
        if end:
            database(own / "x.db").close()
        how(own / f"x.db{end}", outside)

    return make


def soft(link: Path, to: Path) -> None:
    link.symlink_to(to)


def hard(link: Path, to: Path) -> None:
    link.hardlink_to(to)


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
@pytest.mark.parametrize("how", [soft, hard])
def test_a_link_leads_no_backup_to_another_database(
    data: Path, own: Path, outside: Path, tmp_path: Path, how: Callable[[Path, Path], None], end: str
) -> None:
    linked(how, end)(own, outside)
    made = saved(data, tmp_path / "to")
    assert any(each.startswith("services/echo/x.db") and "link" in each for each in made.problems), made.problems
    assert made.stores == 3
    restored = tmp_path / "to restored/services/echo/x.db"
    assert end or restored.is_symlink() or not restored.exists()


def test_a_link_to_a_folder_is_not_followed(data: Path, own: Path, outside: Path, tmp_path: Path) -> None:
    own.joinpath("deep").symlink_to(outside.parent)
    made = saved(data, tmp_path / "to")
    assert made.problems == ["services/echo/deep is a link, whose target is not in the backup"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("name", ["x.db", "plain"])
def test_a_file_of_another_user_is_left_out(data: Path, own: Path, outside: Path, tmp_path: Path, name: str) -> None:
    own.joinpath(name).write_bytes(outside.read_bytes())
    os.chown(own, 65534, -1)
    made = saved(data, tmp_path / "to")
    assert made.problems
    assert all("belongs to user 0, not to 65534" in each for each in made.problems)


SWAP = """
import os, sys
own, outside = sys.argv[1:]
os.chdir(own)
os.symlink(outside, "file-link")
os.symlink(os.path.dirname(outside), "folder-link")
os.mkdir("folder")
open("folder/outside.db", "wb").close()
os.link("own.db", "x.db")
print(flush=True)
while True:
    for name, link in (("x.db", "file-link"), ("folder", "folder-link")):
        for _ in range(2):
            os.rename(name, "aside"), os.rename(link, name), os.rename("aside", link)
"""


def test_no_swap_while_a_backup_looks_leads_it_elsewhere(data: Path, own: Path, outside: Path, tmp_path: Path) -> None:
    with contextlib.closing(database(own / "own.db")) as db:
        db.execute("CREATE TABLE t(x)")
    command = [sys.executable, "-c", SWAP, str(own), str(outside)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            for n in range(8):
                saved(data, tmp_path / f"to-{n}")
            assert process.poll() is None
        finally:
            process.kill()


def empty_index(own: Path) -> None:
    database(own / "x.db").close()
    (own / "x.db-shm").touch()
    (own / "x.db-wal").touch()


def nonsense_index(own: Path) -> None:
    database(own / "x.db").close()
    (own / "x.db-shm").write_bytes(b"\1" * 32768)
    (own / "x.db-wal").write_bytes(b"\xff" * 70_000)


def short_file(own: Path) -> None:
    (own / "x.db").write_bytes(b"SQLite format 3\0\x10\0\2\2")


def no_page_size(own: Path) -> None:
    (own / "x.db").write_bytes(b"SQLite format 3\0\0\3\2\2" + bytes(4096))


def fifos(own: Path) -> None:
    for end in (".db", "y.db-wal", "plain"):
        os.mkfifo(own / f"x{end}")


def many_fifos(own: Path) -> None:
    for n in range(2000):
        os.mkfifo(own / f"fifo-{n}")


def listening(own: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{os.open(own, os.O_PATH)}/x.db")


def deep(own: Path) -> None:
    at = os.open(own, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=at)
        below = os.open("deep", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def long_names(own: Path) -> None:
    at = os.open(own, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("x" * 200, dir_fd=at)
        at, above = os.open("x" * 200, os.O_RDONLY, dir_fd=at), at
        os.close(above)
    os.close(at)


def holes(own: Path) -> None:
    for name in ("plain", "x.db"):
        with (own / name).open("wb") as file:
            file.write(b"SQLite format 3\0\x10\0\2\2" + bytes(80))
            file.truncate(1 << 43)


def odd_names(own: Path) -> None:
    Path(os.fsdecode(os.fsencode(own) + b"/\xff\xfe")).touch()
    Path(os.fsdecode(os.fsencode(own) + b"/\xff.db")).mkdir()


def a_screen_of_its_own(own: Path) -> None:
    os.mkfifo(own / "\x1b[2Jgone\nlinckia: all is well")


@pytest.mark.parametrize(
    "leave",
    [no_page_size, fifos, many_fifos, listening, deep, long_names, holes, odd_names, a_screen_of_its_own],
)
def test_unexpected_files_of_a_service_are_named_and_prevent_no_backup(
    data: Path, own: Path, tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    leave(own)
    made = saved(data, tmp_path / "to")
    assert made.problems
    assert all("services/echo" in each for each in made.problems)
    assert all(each.isprintable() for each in made.problems)
    assert len(made.problems) < 50


@pytest.mark.parametrize("leave", [empty_index, nonsense_index, short_file])
def test_an_unreadable_index_prevents_no_backup(
    data: Path, own: Path, tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    leave(own)
    assert saved(data, tmp_path / "to").stores == 4


def test_a_service_that_never_lets_go_of_its_lock_prevents_no_backup(
    data: Path, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATIENCE_S", "LESS_PATIENCE_S"):
        monkeypatch.setattr(f"services.backup.moment.{name}", 0.1)
    database(own / "x.db").close()
    with writing.locked(own / "x.db"):
        (problem,) = saved(data, tmp_path / "to").problems
    assert "services/echo/x.db was written continuously" in problem


def test_no_restored_file_runs_as_the_user_who_restores(data: Path, own: Path, tmp_path: Path) -> None:
    (own / "program").write_text("#!/bin/sh\n")
    (own / "program").chmod(0o6755)
    saved(data, tmp_path / "to")
    assert (tmp_path / "to restored/services/echo/program").stat().st_mode & 0o7777 == 0o755


def test_the_backup_command_names_what_it_left_out(data: Path, own: Path, tmp_path: Path) -> None:
    own.joinpath("x.db").symlink_to(tmp_path / "outside.db")
    command = [sys.executable, "-m", "kernel.cli", "backup", str(tmp_path / "to"), "--data", str(data)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 4, ended
    assert "services/echo/x.db is a link" in ended.stderr
    assert "3 stores" in ended.stdout


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("how", [soft, hard])
def test_a_repair_opens_and_changes_only_files_of_the_service(
    data: Path, own: Path, outside: Path, how: Callable[[Path, Path], None], end: str
) -> None:
    outside.chmod(0o644)
    linked(how, end)(own, outside)
    how(data / "services/transcripts/transcripts.db-x", outside)
    (said,) = (each for each in repaired(data) if "could be read by others" not in each.found)
    assert said.verdict is Verdict.BAD
    assert "services/echo/x.db" in said.found
    assert "link" in said.found
    assert outside.stat().st_mode & 0o777 == 0o644


def test_a_repair_removes_nothing_by_a_link(data: Path, own: Path, outside: Path) -> None:
    own.joinpath("tmp").symlink_to(outside.parent)
    list(repaired(data))
    assert outside.exists()
    assert not own.joinpath("tmp").is_symlink()


def test_a_repair_removes_what_is_too_deep_to_be_named(data: Path, own: Path) -> None:
    own.joinpath("tmp").mkdir()
    deep(own / "tmp")
    list(repaired(data))
    assert list(own.joinpath("tmp").iterdir()) == []


def test_a_running_service_gets_nothing_into_a_backup(kernel: RunningKernel, tmp_path: Path) -> None:
    outside = kernel.data_dir.parent / "outside.db"
    with contextlib.closing(database(outside)) as db:
        db.execute("CREATE TABLE t(x)")
        db.execute("INSERT INTO t VALUES(?)", (SECRET.decode(),))
    assert attack(kernel, "plant", path=str(outside))["got"] == "planted"
    made = backup(kernel.data_dir, tmp_path / "to")
    assert not holds_secret(tmp_path / "to")
    assert {each.split()[0] for each in made.problems} == {
        f"services/hostile/{name}" for name in ("planted.db", "planted.db-wal", "planted.db-shm")
    }
    assert not list(outside.parent.glob("outside.db-*"))
    assert kernel.service("hostile")["state"] == "ready"
