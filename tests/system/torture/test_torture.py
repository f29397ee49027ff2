"""`linckia torture` finds nothing wrong in a good server, and each planted fault in a bad one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.mounts.process.guardian import descendants
from services.mounts.torture.kinds import STORMS
from tests.system.running import REPOSITORY

SERVER = REPOSITORY / "tests" / "system" / "torture" / "server.py"
ECHO = ("--call", 'echo {"text": "a"}')
WRITES = ("--write", 'add {"text": "$ID"}', "--read", "lines {}")
LIMIT_S = 140

FAULTS = {
    "prints": ("floods", "torn"),
    "doubles": ("floods", "doubled"),
    "foreign": ("floods", "foreign"),
    "forgets": ("floods", "hung"),
    "changes": ("floods", "changed"),
    "half_lines": ("torn", "hung"),
    "bad_text": ("rubbish", "died"),
    "stays": ("ends", "stays"),
    "orphan": ("ends,kills", "orphan"),
    "leaks": ("growth", "grew"),
    "opens": ("growth", "grew"),
    "late": ("kills", "write lost"),
    "twice": ("kills", "write doubled"),
    "half": ("kills", "write torn"),
}
"""Each fault, with storms that find it, and as what."""


def command(*options: str, server: tuple[str, ...]) -> list[str]:
    own = [sys.executable, "-P", "-m", "kernel.cli", "torture", "--json", "--seed", "1", "--seconds", "1"]
    return [*own, *ECHO, *options, "--", *server]


def planted(folder: Path, fault: str = "") -> tuple[str, ...]:
    return sys.executable, str(SERVER), str(folder / "lines"), *([fault] if fault else [])


def tortured(*options: str, server: tuple[str, ...], code: int) -> dict[str, Any]:
    done = subprocess.run(
        command(*options, server=server), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_good_server_has_no_fault(tmp_path: Path) -> None:
    report = tortured(*WRITES, server=planted(tmp_path), code=0)
    assert not report["faults"]
    assert set(report["storms"]) == {"before", *STORMS, "after"}
    assert all(each["answered"] for each in report["storms"].values())
    assert report["writes"]["acknowledged"] > 2
    assert not report["notes"]


@pytest.mark.sample(5)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    storms, kind = FAULTS[fault]
    writes = WRITES if kind.startswith("write") else ()
    more = ("--limit", "3") if kind in ("hung", "stays") else ()
    report = tortured("--only", storms, *writes, *more, server=planted(tmp_path, fault), code=1)
    assert {each["kind"] for each in report["faults"]} == {kind}, report["faults"]


@pytest.mark.parametrize("server", [("no-such-program",), (sys.executable, "-c", "import sys; sys.exit('no luck')")])
def test_a_server_that_cannot_be_used_is_no_finding(server: tuple[str, ...]) -> None:
    done = subprocess.run(command(server=server), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert "no-such-program: No such file" in done.stdout or "no luck" in done.stdout


def test_nothing_is_left_when_the_storm_is_killed_or_interrupted(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen(
            command("--verbose", server=planted(tmp_path, "orphan")),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        # The first storm begins once the server has been started.
        assert "…" in process.stderr.readline()
        below = descendants(process.pid)
        assert len(below) >= 3
        ends = [os.pidfd_open(pid) for pid in below]
        process.send_signal(number)
        process.wait()
        process.stderr.close()
        for end in ends:
            assert select.select([end], [], [], LIMIT_S)[0], "a process was left over"
            os.close(end)


def test_an_option_that_cannot_be_used_is_named_and_nothing_is_stormed(tmp_path: Path) -> None:
    for options, said in (
        (("--seconds", "nan"), "--seconds is nan"),
        (("--limit", "inf"), "--limit is inf"),
        (("--only", "kills", "--skip", "kills"), "leave no storm"),
        (("--call", "nosuch {}"), "--call: the server has no tool 'nosuch'"),
        (("--write", 'nosuch {"text": "$ID"}', "--read", "lines {}"), "--write: the server has no tool 'nosuch'"),
    ):
        done = subprocess.run(
            command(*options, server=planted(tmp_path)), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode, done.stdout) == (2, ""), done
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_death_is_found_though_a_child_holds_stdout_open(tmp_path: Path) -> None:
    bad = planted(tmp_path, "bad_text")
    held = f"import os, subprocess; subprocess.Popen(['sleep', '300']); os.execv({bad[0]!r}, {list(bad)!r})"
    report = tortured("--only", "rubbish", "--limit", "3", server=(sys.executable, "-c", held), code=1)
    assert {each["kind"] for each in report["faults"]} == {"died"}, report["faults"]
