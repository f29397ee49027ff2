"""A test that does not end fails at its limit and leaves no process, whatever it waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import guard
from tests.system.running import REPOSITORY, wait_until

HEAD = """
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import trio

from tests.system.running import running

PROGRAM = ["sleep", "1000"]
"""

BESIDE = """
def test_the_next_one_runs():
    pass
"""

HANGS = {
    "a test": """
def test_hangs(tmp_path):
    with running(tmp_path / "data", services=["echo"]):
        threading.Event().wait()
""",
    "a coroutine": """
async def test_hangs(tmp_path):
    with running(tmp_path / "data", services=["echo"]):
        await trio.sleep_forever()
""",
    "a thread of a coroutine": """
async def test_hangs(tmp_path):
    with running(tmp_path / "data", services=["echo"]) as kernel:
        await trio.to_thread.run_sync(kernel.process.wait)
""",
    "a coroutine that does not give way": """
async def test_hangs(tmp_path):
    with subprocess.Popen(PROGRAM) as process:
        while True:
            process.poll()
            time.sleep(0.01)
""",
    "a fixture": """
@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with running(tmp_path_factory.mktemp("data"), services=["echo"]) as kernel:
        threading.Event().wait()

def test_hangs(kernel):
    pass
""",
    "the end of a fixture": """
@pytest.fixture
def process():
    with subprocess.Popen(PROGRAM):
        yield
        threading.Event().wait()

def test_hangs(process):
    pass
""",
    "a process whose parent has gone": """
def test_hangs():
    subprocess.run(["sh", "-c", "setsid sleep 1000 & "])
    threading.Event().wait()
""",
}


def run(tmp_path: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test, with a limit of some seconds, and another one after it."""
    file = tmp_path / "test_inner.py"
    file.write_text(HEAD + test + BESIDE)
    plugins = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "pyproject.toml", "--rootdir", str(tmp_path))
    limits = ("--timeout", "4", "-o", "timeout_again=2")
    command = [sys.executable, "-m", "pytest", *plugins, *limits, *options, str(file)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)


def test_only_processes_of_the_run_are_found() -> None:
    run = os.environ[guard.RUN]
    with subprocess.Popen(["sleep", "1000"]) as ours, subprocess.Popen(["sleep", "1000"], env={}) as other:
        try:
            found = guard.started(run)
            assert ours.pid in found
            assert not {other.pid, os.getpid(), os.getppid(), 1} & set(found)
            assert guard.started("another/") == []
        finally:
            ours.kill()
            other.kill()
    with pytest.raises(ValueError, match="is no run"):
        guard.started("")


@pytest.mark.parametrize("what", HANGS)
def test_a_test_that_hangs_fails_and_leaves_no_process(tmp_path: Path, what: str) -> None:
    since_s = guard.uptime()
    done = run(tmp_path, HANGS[what])
    assert "not finished within 4 s; processes that were killed: [" in done.stdout
    outcome = {"a fixture": "1 passed, 1 error", "the end of a fixture": "2 passed, 1 error"}
    assert outcome.get(what, "1 failed, 1 passed") in done.stdout, done.stdout
    if what == "a coroutine":
        # The report says where it waited.
        assert "await trio.sleep_forever()" in done.stdout.partition("processes that were killed")[2]
    assert guard.started(os.environ[guard.RUN], since_s) == []


def test_a_shared_kernel_outlives_a_test_that_hangs(tmp_path: Path) -> None:
    test = """
@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with running(tmp_path_factory.mktemp("data"), services=["echo"]) as kernel:
        yield kernel

@pytest.mark.timeout(100)
def test_waits(kernel):
    pass

def test_hangs(kernel):
    threading.Event().wait()

def test_is_served(kernel):
    assert kernel.call("mcp_echo", {"message": "here"}) == {"message": "here"}
"""
    done = run(tmp_path, test)
    assert "1 failed, 3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_a_process_that_is_stuck_is_killed_with_those_that_it_started(tmp_path: Path, options: tuple[str, ...]) -> None:
    test = """
def test_hangs(tmp_path):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    with subprocess.Popen(PROGRAM):
        threading.Event().wait()
"""
    since_s = guard.uptime()
    done = run(tmp_path, test, "-o", "timeout_grace=2", *options)
    assert "in test_hangs" in done.stderr
    assert done.returncode != 0
    if options:
        # Another process runs the other tests.
        assert "1 failed, 1 passed" in done.stdout, done.stdout
    # The guard ends after the process that it guards.
    wait_until(lambda: not guard.started(os.environ[guard.RUN], since_s))


def test_a_process_in_which_every_test_hangs_is_replaced(tmp_path: Path) -> None:
    test = """
import os

@pytest.mark.parametrize("number", range(5))
def test_hangs(number):
    if os.environ["PYTEST_XDIST_WORKER"] == "gw0":
        threading.Event().wait()
"""
    done = run(tmp_path, test, "-n", "1")
    assert "3 failed, 3 passed" in done.stdout, done.stdout


def test_a_test_that_limits_its_process_fails(tmp_path: Path) -> None:
    test = """
import resource

def test_limits():
    resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
"""
    done = run(tmp_path, test)
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "the test has left other limits to this process: {'RLIMIT_DATA'" in done.stdout
