"""Root given up: each check runs in a process of its own, which does not get it back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.configure import users
from proto.wire.launch import FilesOfOthers, User
from services.runtime import privileges

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")

USER = users.user_of(Path("/nowhere"), "echo")

needs_numbers = pytest.mark.skipif(
    not users._is_mapped(users.FIRST_ID), reason="this user namespace has no numbers to spare"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def after_giving_up(folder: Path, body: str, user: User | None, files: FilesOfOthers = "") -> None:
    """Run `body` in a process that was confined as a service is; `others` is a file of another user."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    roots = folder / "root"
    roots.mkdir(exist_ok=True)
    other = roots / "other"
    other.write_text("theirs")
    other.chmod(0o600)
    os.chown(other, 4711, 4711)
    given = f"{files}=({str(roots)!r},), " if files else ""
    confinement = f"Confinement({given}user={user!r}, files_of_others={files!r})"
    code = f"""
import os, signal
from pathlib import Path
from proto.wire.launch import Confinement, User
from services.runtime.sandbox import confine
data, other = Path({str(data)!r}), Path({str(other)!r})
said = confine({confinement}, data)

def refused(action):
    try:
        action()
    except PermissionError:
        return True
    return False

{textwrap.dedent(body)}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@needs_numbers
def test_a_user_of_its_own_can_touch_nothing_but_its_folder(folder: Path) -> None:
    kept = folder / "data" / "deep" / "kept"
    kept.parent.mkdir(parents=True)
    kept.write_text("from before")
    kept.chmod(0o600)
    after_giving_up(
        folder,
        f"""
        assert os.getresuid() == ({USER.uid},) * 3 and os.getresgid() == ({USER.gid},) * 3
        assert os.getgroups() == [] and "user {USER.uid}" in said
        assert (data / "deep" / "kept").read_text() == "from before"
        (data / "deep" / "kept").write_text("and after")
        (data / "new").mkdir()
        # Landlock does not stop these.
        assert refused(lambda: os.chmod(other, 0o777))
        assert refused(lambda: os.utime(other))
        assert refused(lambda: os.chmod("/etc/passwd", 0o666))
        assert refused(lambda: os.kill(os.getppid(), signal.SIGCONT))
        assert refused(lambda: os.setuid(0))
        assert os.listdir("/proc/self/fd")
        """,
        USER,
    )
    assert kept.stat().st_uid == USER.uid
    after_giving_up(folder, '(data / "deep" / "kept").write_text("root again")', None)
    assert (kept.stat().st_uid, kept.read_text()) == (0, "root again")


def test_root_without_privileges_can_use_only_its_own_folder(folder: Path) -> None:
    after_giving_up(
        folder,
        """
        (data / "new").write_text("x")
        assert refused(lambda: os.chmod(other, 0o777))
        assert refused(lambda: os.chown(data / "new", 1, 1))
        assert refused(lambda: os.setuid(1))
        assert "no privileges of root" in said
        """,
        None,
    )


def test_a_service_that_writes_to_the_roots_keeps_access_to_files_and_nothing_else(folder: Path) -> None:
    after_giving_up(
        folder,
        """
        assert other.read_text() == "theirs"
        other.write_text("changed")
        with other.open() as file:
            os.fchmod(file.fileno(), 0o640)
        assert refused(lambda: os.setuid(1))
        assert "files only" in said
        """,
        None,
        "write",
    )


@needs_numbers
def test_a_service_that_reads_the_roots_has_its_own_user_without_write_access(folder: Path) -> None:
    after_giving_up(
        folder,
        f"""
        assert os.getresuid() == ({USER.uid},) * 3
        (data / "new").write_text("x")
        assert other.read_text() == "theirs"
        assert refused(lambda: other.write_text("changed"))
        assert refused(lambda: os.chmod(other, 0o666))
        assert refused(lambda: os.fchmod(os.open(other, os.O_RDONLY), 0o666))
        assert refused(lambda: os.utime("/etc/passwd"))
        assert refused(lambda: os.setuid(0))
        assert "read files of others" in said
        """,
        USER,
        "read",
    )


def test_a_file_with_another_name_elsewhere_is_not_given_away(folder: Path) -> None:
    data, outside = folder / "data", folder / "outside"
    data.mkdir()
    outside.write_text("x")
    os.link(outside, data / "link")
    (data / "symlink").symlink_to(outside)
    (data / "own").write_text("x")
    assert privileges.own(data, USER)
    assert outside.stat().st_uid == 0
    assert (data / "own").stat().st_uid == data.stat().st_uid == USER.uid


def test_an_interrupted_change_of_owner_is_done_again(folder: Path) -> None:
    (folder / "first").write_text("x")
    os.chown(folder / "first", USER.uid, USER.gid)
    (folder / "second").write_text("x")
    assert privileges.own(folder, USER)
    assert (folder / "second").stat().st_uid == USER.uid
