"""What stands around a process: its log, its memory as Linux tells it, and who counts the killed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

from kernel.supervisor import processes
from kernel.supervisor.spawn import ServiceLog, environment

MIB = 2**20


def test_log_is_rotated_at_the_start_of_a_generation(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 5000)
    log = ServiceLog(tmp_path, "a", 4096)
    os.write(log.fd, b"new\n")
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"new\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 5000


async def test_log_that_grows_too_long_is_cut_while_its_process_writes_on(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path, "a", 4096)
    os.write(log.fd, b"x" * 4096)
    await log.tend()
    assert (tmp_path / "a.log").stat().st_size == 4096
    os.write(log.fd, b"y")
    await log.tend()
    os.write(log.fd, b"after\n")
    assert log.last_words() == "after"
    log.close()
    # No hole at the start: the descriptor appends.
    assert (tmp_path / "a.log").read_bytes() == b"after\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 4096 + b"y"


def test_last_words_are_the_generations_own(tmp_path: Path) -> None:
    first = ServiceLog(tmp_path, "a", 4096)
    os.write(first.fd, b"of the first\n")
    first.close()
    log = ServiceLog(tmp_path, "a", 4096)
    log.note("a generation 2 started")
    assert log.last_words() == ""
    os.write(log.fd, b"Traceback\n  ...\nOSError: no space left\n\n")
    assert log.last_words() == "OSError: no space left"
    os.write(log.fd, b"ExceptionGroup: two of them\n  +-+--- 1 ---\n    | OSError: no such disk\n    +--------\n")
    assert log.last_words() == "OSError: no such disk"
    os.write(log.fd, b"z" * 5000)
    assert log.last_words() == "z" * 300
    log.close()


def test_memory_counts_what_is_its_own_and_not_what_is_mapped_from_files(tmp_path: Path) -> None:
    before = processes.memory_bytes(os.getpid())
    assert before is not None
    path = tmp_path / "index"
    path.write_bytes(b"x" * 32 * MIB)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:: mmap.PAGESIZE].count(b"x") == 32 * MIB // mmap.PAGESIZE
        with_file = processes.memory_bytes(os.getpid())
    assert with_file is not None
    assert with_file - before < 8 * MIB
    with mmap.mmap(-1, 32 * MIB) as own:
        own.write(b"x" * 32 * MIB)
        with_own = processes.memory_bytes(os.getpid())
    assert with_own is not None
    assert with_own - before > 24 * MIB


def test_process_that_is_gone_has_no_memory() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert processes.memory_bytes(process.pid) is None
    assert processes.session_of(process.pid) is None


def test_session_is_found_behind_a_name_with_parentheses() -> None:
    script = "import ctypes,sys; ctypes.CDLL(None).prctl(15, b') 1 (2 3'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes.session_of(process.pid) == os.getsid(0)


def test_kills_for_want_of_memory_are_counted_by_somebody() -> None:
    assert processes.OomCounter().read() >= 0


def test_environment_of_a_child_has_our_code_and_not_our_settings() -> None:
    os.environ["LINCKIA_HTTP_TOKEN"] = "secret"
    try:
        child = environment({"OWN": "1"})
    finally:
        del os.environ["LINCKIA_HTTP_TOKEN"]
    assert "LINCKIA_HTTP_TOKEN" not in child
    assert child["OWN"] == "1"
    script = "import services.runtime.handlers, kernel"
    assert subprocess.run([sys.executable, "-P", "-c", script], env=child, cwd="/", check=False).returncode == 0
