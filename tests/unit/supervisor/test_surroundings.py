"""What stands around a process: its log, its memory as Linux tells it, and who counts the killed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import trio

from kernel.supervisor import processes
from kernel.supervisor.service_log import ServiceLog
from proto.host.environment import environment

MIB = 2**20


def test_log_is_appended_to_until_it_is_full(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 4090)
    log = ServiceLog(tmp_path, "a", 4096)
    os.write(log.fd, b"some\n")
    assert log.last_words() == "some"
    os.write(log.fd, b"new\n")
    assert log.last_words() == "new"
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"new\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"x" * 4090 + b"some\n"


async def test_a_flood_does_not_exceed_the_limit_of_a_log_and_its_last_lines_are_kept(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path, "a", 128 * 1024)
    flood = "import os\nfor _ in range(400): os.write(1, b'x' * 16384)\nos.write(1, b'the end\\n')\n"
    most = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        process = await trio.lowlevel.open_process([sys.executable, "-c", flood], stdout=log.fd)
        while process.poll() is None:
            await trio.sleep(0.005)
            most = max(most, sum(entry.stat().st_size for entry in os.scandir(tmp_path)))
        assert log.last_words().endswith("the end")
        nursery.cancel_scope.cancel()
    log.close()
    assert 128 * 1024 < most <= 2 * 128 * 1024


def test_a_log_whose_file_was_moved_is_created_again(tmp_path: Path) -> None:
    log = ServiceLog(tmp_path, "a", 4096)
    os.write(log.fd, b"old\n")
    log.renew()
    # Nobody has moved it.
    assert (tmp_path / "a.log").read_bytes() == b"old\n"
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    os.write(log.fd, b"its end\n")
    log.renew()
    assert log.last_words() == ""
    os.write(log.fd, b"new\n")
    assert log.last_words() == "new"
    log.close()
    assert (tmp_path / "a.log").read_bytes() == b"new\n"
    assert (tmp_path / "a.log.1").read_bytes() == b"old\nits end\n"


def test_last_words_are_known_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "a.log").symlink_to("/dev/full")
    log = ServiceLog(tmp_path, "a", 4096)
    os.write(log.fd, b"DiskFull: nothing was done\n")
    assert log.last_words() == "DiskFull: nothing was done"
    log.close()


def test_last_words_are_the_generations_own(tmp_path: Path) -> None:
    first = ServiceLog(tmp_path, "a", 4096)
    os.write(first.fd, b"of the first\n")
    first.close()
    log = ServiceLog(tmp_path, "a", 4096)
    log.note("a generation 2 started")
    assert log.last_words() == ""
    # A process may be quicker than the supervisor notes its start.
    os.write(log.fd, b"the port is taken\n")
    log.note("a generation 2 started")
    assert log.last_words() == "the port is taken"
    assert log.last_words() == ""
    os.write(log.fd, b"Traceback\n  ...\nOSError: no space left\n\n")
    assert log.last_words() == "OSError: no space left"
    os.write(log.fd, b"ExceptionGroup: two of them\n  +-+--- 1 ---\n    | OSError: no such disk\n    +--------\n")
    assert log.last_words() == "OSError: no such disk"
    os.write(log.fd, b"z" * 5000)
    assert log.last_words() == "z" * 300
    log.close()


def test_memory_counts_private_pages_and_not_mapped_files(tmp_path: Path) -> None:
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


def test_out_of_memory_kills_are_counted() -> None:
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
