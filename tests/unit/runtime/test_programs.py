"""What programs of a confined service can touch; each check runs in a process of its own, and in its children."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from services.runtime import sandbox

pytestmark = [
    pytest.mark.skipif(not sandbox.landlock_version(), reason="this kernel has no landlock"),
    pytest.mark.skipif(not sandbox.has_seccomp(), reason="no seccomp for this processor"),
]


def confined(tmp_path: Path, body: str, *, network: bool = True) -> None:
    """Run `body` in a program that a confined process starts. `hidden` is hidden, and `root` writable."""
    for name in ("data", "root", "outside", "hidden"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "file").write_text(name)
    program = f"""
import errno, os, signal, socket, subprocess, sys, tempfile, threading
from pathlib import Path
base = Path({str(tmp_path)!r})
data, root, outside, hidden = (base / n for n in ("data", "root", "outside", "hidden"))

def refused(action):
    try:
        action()
    except OSError as error:
        return error.errno in (errno.EPERM, errno.EACCES, errno.EROFS)
    return False

{textwrap.dedent(body)}
"""
    code = f"""
import subprocess, sys
from pathlib import Path
from proto.wire.launch import Confinement
from services.runtime.sandbox import confine
base = Path({str(tmp_path)!r})
limits = Confinement(
    write=(str(base / "root"),), programs=True, hidden=(str(base / "hidden"),), network={network}, open_files=4096
)
confine(limits, base / "data")
sys.exit(subprocess.run([sys.executable, "-c", {program!r}]).returncode)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_everything_but_hidden_folders_can_be_read_and_only_roots_written(tmp_path: Path) -> None:
    confined(
        tmp_path,
        """
        assert (outside / "file").read_text() == "outside"
        assert refused(lambda: (hidden / "file").read_text())
        assert refused(lambda: list(hidden.iterdir()))
        assert refused(lambda: (outside / "file").write_text("x"))
        assert refused(lambda: (hidden / "new").write_text("x"))
        os.symlink(hidden / "file", root / "link")
        assert refused(lambda: (root / "link").read_text())
        for folder in (root, data):
            (folder / "script").write_text("#!/bin/sh\\necho ran")
            (folder / "script").chmod(0o700)
            assert subprocess.check_output([str(folder / "script")]) == b"ran\\n"
        with tempfile.TemporaryFile() as file:
            file.write(b"x")
        assert Path("/etc/hosts").read_text() and list(Path("/usr/bin").iterdir())
        Path("/dev/null").write_text("x")
        """,
    )


def test_programs_may_have_processes_threads_and_pipes_and_signal_them(tmp_path: Path) -> None:
    confined(
        tmp_path,
        """
        assert subprocess.check_output("echo a | cat; sleep 0", shell=True) == b"a\\n"
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        thread = threading.Thread(target=os.getpid)
        thread.start()
        thread.join()
        socket.socketpair()[0].close()
        assert os.WEXITSTATUS(os.system("exit 3")) == 3
        """,
    )


def test_programs_make_no_namespaces_and_reach_no_sockets_of_the_file_system(tmp_path: Path) -> None:
    confined(
        tmp_path,
        """
        assert refused(lambda: socket.socket(socket.AF_UNIX))
        assert subprocess.run(["unshare", "-U", "true"], capture_output=True).returncode != 0
        """,
    )


@pytest.mark.parametrize("network", [True, False])
def test_programs_reach_other_machines_only_with_a_network(tmp_path: Path, network: bool) -> None:
    confined(
        tmp_path,
        f"""
        def connect():
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname()).close()
        assert refused(connect) is {not network}
        assert refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()) is {not network}
        """,
        network=network,
    )


@pytest.mark.parametrize(
    ("hidden", "visible"),
    [((), ["/"]), (("/a/b",), ["/a/c", "/a/d", "/e"]), (("/a/b", "/a/d"), ["/a/c", "/e"]), (("/a",), ["/e"])],
)
def test_around_returns_the_fewest_folders_without_the_hidden_ones(
    tmp_path: Path, hidden: tuple[str, ...], visible: list[str]
) -> None:
    for each in ("a/b", "a/c", "a/d", "e/f"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    found = {path for path in sandbox.around([str(tmp_path) + path for path in hidden])}
    below = sorted(path.removeprefix(str(tmp_path)) for path in found if path.startswith(f"{tmp_path}/"))
    assert below == (visible if hidden else [])
    assert hidden or found == {"/"}
