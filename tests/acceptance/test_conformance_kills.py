"""The official conformance suite while the front is killed repeatedly: scenarios that were cut off pass when they are
repeated.

CONFORMANCE_KILLS=1 scripts/test tests/acceptance/test_conformance_kills.py
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import NODE, run
from tests.acceptance.test_conformance import SCENARIOS, SUITE, required
from tests.system.running import RunningKernel, running

EVERY_S = 3.0
"""Time between a front's readiness and its kill."""

AGAIN = 4
"""Times that a scenario whose connection was cut is run again."""

pytestmark = pytest.mark.skipif(
    not os.environ.get("CONFORMANCE_KILLS"), reason="takes minutes; CONFORMANCE_KILLS=1 runs it"
)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    options = ("--http", "127.0.0.1:0", "--with", "tests.conformance")
    with running(tmp_path_factory.mktemp("data"), options=options, services=["front", "echo"]) as kernel:
        yield kernel


class Killing:
    """Kills the front `EVERY_S` after it was ready, in a thread, until it is left."""

    def __init__(self, kernel: RunningKernel) -> None:
        self.kills = 0
        self._kernel = kernel
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.wait(EVERY_S):
            self._kernel.wait_ready("front")
            self._kernel.kill("front")
            self.kills += 1

    def __enter__(self) -> Killing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._kernel.wait_ready("front")


@pytest.mark.parametrize("revision", SCENARIOS)
def test_every_scenario_passes_while_fronts_are_killed(
    kernel: RunningKernel, npx: str, revision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = [npx, "-y", "-p", f"node@{NODE}", "-p", SUITE, "conformance", "server", "--url"]
    suite.append(f"{kernel.status()['http_url']}")
    with Killing(kernel) as killing:
        done = run([*suite, "--requirements", revision], cwd=tmp_path)
        scored = done.stdout[done.stdout.find("=== SUMMARY ===") :].partition("Not scored")[0]
        outcomes = {
            line[1]: int(line[2]) for line in re.finditer(r"^. (\S+): [1-9]\d* passed, (\d+) failed", scored, re.M)
        }
        # One that never came to a check was cut as well.
        wanted = required(npx, revision)
        cut = {name: 0 for name in wanted if outcomes.get(name, 1)}
        for name in list(cut):
            cut[name] = _times_until_passed([*suite, "--scenario", name, "--spec-version", revision], tmp_path)
    deaths = kernel.service("front")["deaths"]
    assert set(deaths) == {"signal"}, deaths
    assert kernel.service("conformance")["generation"] == 1
    with capsys.disabled():
        print(f"\n{revision}: {len(wanted)} scenarios, {killing.kills} fronts killed, run again: {cut or 'none'}")


def _times_until_passed(command: list[str], folder: Path) -> int:
    for times in range(1, AGAIN + 1):
        again = run(command, cwd=folder)
        if again.returncode == 0:
            return times
    raise AssertionError(f"{command[-3]} failed {AGAIN} times more:\n{again.stdout}")
