"""Programs change nothing outside their folders, neither contents nor what landlock does not guard; as any user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.runtime import read_only, sandbox

pytestmark = [
    pytest.mark.skipif(not sandbox.landlock_version(), reason="this kernel has no landlock"),
    pytest.mark.skipif(not sandbox.has_seccomp(), reason="no seccomp for this processor"),
]

needs_mounts = pytest.mark.skipif(bool(read_only._tried(())), reason="mount namespaces are not allowed")

USER = 4711

CODE = """
import ctypes, errno, fcntl, os, platform, struct, subprocess, sys, sysconfig
from pathlib import Path
from proto.wire.launch import Confinement
from services.runtime import read_only, sandbox
base = Path(sys.argv[1])
outside, root, data = (base / name for name in ("outside", "root", "data"))
sysconfig.get_paths()
user = {user}
if user:
    os.setgroups(())
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(4, 1)
kernel = os.getpid()

def changes(path):
    '''All ways to change what landlock does not guard, by name and by descriptor.'''
    def on_descriptor(change):
        with open(path) as file:
            change(file.fileno())
    libc = ctypes.CDLL(None, use_errno=True)
    def syscall(number, *arguments):
        if libc.syscall(number, *arguments) < 0:
            raise OSError(ctypes.get_errno(), number)
    name = os.fsencode(path)
    yield "chmod", lambda: os.chmod(path, 0o666)
    yield "fchmod", lambda: on_descriptor(lambda fd: os.chmod(fd, 0o666))
    yield "fchmodat2", lambda: syscall(452, -100, name, 0o666, 0)
    yield "chmod by /proc", lambda: on_descriptor(lambda fd: os.chmod(f"/proc/self/fd/{{fd}}", 0o666))
    yield "chown", lambda: os.chown(path, os.getuid(), os.getgid())
    yield "fchown", lambda: on_descriptor(lambda fd: os.chown(fd, os.getuid(), os.getgid()))
    yield "lchown", lambda: os.lchown(path, os.getuid(), os.getgid())
    yield "utime", lambda: os.utime(path, (1, 1))
    yield "futimens", lambda: on_descriptor(lambda fd: os.utime(fd, (1, 1)))
    yield "setxattr", lambda: os.setxattr(path, "user.a", b"x")
    yield "fsetxattr", lambda: on_descriptor(lambda fd: os.setxattr(fd, "user.a", b"x"))
    yield "removexattr", lambda: os.removexattr(path, "user.kept")
    yield "flags", lambda: on_descriptor(lambda fd: fcntl.ioctl(fd, 0x40086602, struct.pack("l", 0x40)))

def refused(change):
    try:
        change()
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.EROFS):
            return True
        # Not every file system has flags.
        if error.errno != errno.EOPNOTSUPP:
            raise
    return False

if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
{before}
said = sandbox.confine(Confinement(
    write=(str(root),), programs=True, open_files=4096, files_of_others="write"
), data)
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
{body}
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter, which pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(params=[0, USER], ids=["root", "ordinary user"])
def user(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    if os.geteuid() and not found:
        pytest.skip("root is needed")
    return 0 if os.geteuid() else found


def confined(folder: Path, user: int, body: str, before: str = "") -> None:
    for name in ("data", "root", "outside"):
        (folder / name).mkdir()
        file = folder / name / "file"
        file.write_text(name)
        file.chmod(0o600)
        os.setxattr(file, "user.kept", b"x")
        if user:
            os.chown(folder / name, user, user)
            os.chown(file, user, user)
    outside = folder / "outside" / "file"
    state = outside.stat()
    code = CODE.format(user=user, body=textwrap.dedent(body), before=textwrap.dedent(before))
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (outside.read_text(), os.listxattr(outside)) == ("outside", ["user.kept"])
    now = outside.stat()
    assert (now.st_mode, now.st_uid, now.st_gid) == (state.st_mode, state.st_uid, state.st_gid)
    assert now.st_mtime_ns == state.st_mtime_ns


OUTSIDE = """
open_to_all = [name for name, change in changes(outside / "file") if not refused(change)]
assert not open_to_all, open_to_all
assert refused(lambda: (outside / "file").write_text("x"))
assert (outside / "file").read_text() == "outside"
"""


@needs_mounts
def test_everything_inside_the_folder_can_be_changed_and_nothing_outside(folder: Path, user: int) -> None:
    body = """
assert "read-only mounts" in said, said
for each in (root, data):
    for name, change in changes(each / "file"):
        assert not refused(change) or "fchmodat2" in name, name
    (each / "file").write_text("changed")
Path("/dev/null").write_text("x")
# The view of a process outside is not read-only.
assert refused(lambda: os.chmod(f"/proc/{kernel}/root{outside}/file", 0o666))
assert refused(lambda: os.chmod(f"/proc/{kernel}/cwd/{outside}/file", 0o666))
# Nor can it be made writable again.
libc = ctypes.CDLL(None, use_errno=True)
writable = struct.pack("=QQQQ", 0, 1, 0, 0)
assert libc.syscall(442, -100, b"/", ctypes.c_uint(0x8000), writable, 32) < 0
assert libc.mount(None, b"/", None, 0x20 | 0x1000, None) < 0
assert "CapEff:\\t0000000000000000" in Path("/proc/self/status").read_text() or not user
assert subprocess.run(["sh", "-c", "sleep 100 & kill $!; wait $!"]).returncode == 128 + 15
"""
    confined(folder, user, OUTSIDE + body)


def test_without_mounts_no_program_changes_modes_owners_and_times(folder: Path, user: int) -> None:
    body = """
assert "no changes of modes, owners and times (not here)" in said, said
(root / "file").write_text("changed")
assert refused(lambda: os.chmod(root / "file", 0o666))
"""
    before = "sandbox.read_only.make_others_read_only = lambda writable: 'not here'"
    confined(folder, user, OUTSIDE + body, before)


@needs_mounts
def test_folders_within_folders_and_missing_ones_can_be_given(folder: Path, user: int) -> None:
    before = """
os.mkdir(root / "inner")
Confinement = lambda write, make=Confinement, **rest: make(write=(*write, *map(str, more)), **rest)
more = (root / "inner", base / "missing")
"""
    confined(folder, user, OUTSIDE + "(root / 'inner' / 'new').write_text('x')\n(root / 'new').touch()", before)
