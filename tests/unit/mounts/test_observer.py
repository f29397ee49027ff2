"""The observer reports what a real command tries to do, and changes nothing about it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.runtime.sandbox import has_seccomp, landlock_version

pytestmark = pytest.mark.skipif(not (has_seccomp() and landlock_version()), reason="this system has no walls")

OBSERVER = [sys.executable, "-I", "-m", "services.mounts.observer"]


def observed(folder: Path, *command: str, code: int = 0) -> set[tuple[str, str]]:
    """Run a command; return its attempted accesses outside the system's folders."""
    (own := folder / "own").mkdir()
    ended = subprocess.run([*OBSERVER, str(own / "report"), *command], cwd=folder, timeout=60, check=False)
    assert ended.returncode == code
    lines = [json.loads(line) for line in (own / "report").read_text().splitlines()]
    assert lines[0] == {"kind": "begun", "path": ""}
    found = {(each["kind"], each["path"]) for each in lines}
    return {each for each in found if each[1].startswith((str(folder), "127.0.0.1"))}


def python(folder: Path, code: str) -> set[tuple[str, str]]:
    return observed(folder, sys.executable, "-I", "-c", code)


def test_files_that_are_read_written_made_and_moved_are_reported(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    code = (
        "cat there >/dev/null; echo x > new; mkdir folder; mv new folder/moved; rm folder/moved; echo y >> link; exit 3"
    )
    found = observed(tmp_path, "sh", "-c", code, code=3)
    at = str(tmp_path)
    assert found == {
        ("read", f"{at}/there"), ("write", f"{at}/new"), ("folder", f"{at}/folder"), ("write", f"{at}/folder/moved"),
        ("write", f"{at}/there"),
    }  # fmt: skip
    assert (tmp_path / "there").read_text() == "texty\n"


def test_relative_paths_start_from_the_folder_that_the_call_names(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    found = python(
        tmp_path,
        "import os; folder = os.open('a', os.O_RDONLY); os.mkdir('new', dir_fd=folder); os.chdir('a/b');"
        "os.open('../../file', os.O_CREAT | os.O_WRONLY)",
    )
    assert {("folder", f"{tmp_path}/a/new"), ("write", f"{tmp_path}/file")} <= found


def test_accesses_that_fail_anyway_are_left_out(tmp_path: Path) -> None:
    code = "rm -f none; mkdir . 2>/dev/null; cat none/x 2>/dev/null; echo x 2>/dev/null > none/x; true"
    assert observed(tmp_path, "sh", "-c", code) == set()


def test_connections_and_listening_are_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            f"import socket; socket.create_connection(('127.0.0.1', {port}));"
            "socket.create_server(('127.0.0.1', 0)); socket.socketpair()"
        )
        assert python(tmp_path, code) == {("connect", f"127.0.0.1:{port}"), ("listen", "127.0.0.1:0")}


def test_processes_and_threads_of_the_command_are_observed_as_well(tmp_path: Path) -> None:
    code = (
        "import subprocess, threading; subprocess.run(['sh', '-c', 'echo x > child']);"
        "t = threading.Thread(target=lambda: open('thread', 'w')); t.start(); t.join()"
    )
    assert python(tmp_path, code) == {("write", f"{tmp_path}/child"), ("write", f"{tmp_path}/thread")}


def test_if_observing_is_impossible_nothing_is_started_and_the_report_says_why(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    # The system admits one observer of a process.
    inner = [*OBSERVER, str(tmp_path / "inner" / "report"), "touch", str(tmp_path / "started")]
    observed(tmp_path, *inner, code=1)
    lines = [json.loads(line) for line in (tmp_path / "inner" / "report").read_text().splitlines()]
    assert [each["kind"] for each in lines] == ["problem"]
    assert "observes this one already" in lines[0]["path"]
    assert not (tmp_path / "started").exists()


def test_a_command_that_does_not_exist_ends_as_in_a_shell(tmp_path: Path) -> None:
    observed(tmp_path, "no-such-command", code=127)
