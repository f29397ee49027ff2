"""One real kernel for all acceptance tests, with the conformance fixtures, and the tools of other ecosystems."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.configure.catalog import ENTRIES
from proto.wire.front import SERVICE as FRONT
from tests.system.running import REPOSITORY, RunningKernel, running

NODE = "22"
"""The Node.js that the official tools want; npx brings it where the system's is older."""

COMMAND_TIMEOUT_S = 600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first run downloads the tools."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


class Front:
    """The kernel under test and the ways to it."""

    def __init__(self, kernel: RunningKernel, url: str) -> None:
        self.kernel = kernel
        self.url = url
        command = [sys.executable, "-P", "-m", "kernel.cli", "stdio", "--data", str(kernel.data_dir)]
        self.stdio = [*command, "--surface", "all"]


@pytest.fixture(scope="package")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    root = tmp_path_factory.mktemp("root")
    options = ("--http", "127.0.0.1:0", "--with", "tests.conformance")
    # All but those that load torch, whose operations only services call; no front dies here, so it needs no zygote.
    services = [entry.service for entry in ENTRIES if entry.spec.zygote != "torch" and entry.service != FRONT]
    with running(tmp_path_factory.mktemp("data"), [root], options=options, services=services) as kernel:
        url = kernel.status()["http_url"]
        assert url is not None
        yield Front(kernel, url)


@pytest.fixture(scope="session")
def npx() -> str:
    path = shutil.which("npx")
    if path is None or shutil.which("npm") is None:
        pytest.skip("npm and npx, which bring the official tools, are not installed")
    return path


def run(command: list[str], *, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output as text."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
