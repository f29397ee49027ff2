"""The official conformance suite against a real kernel: every scored scenario passes, and really checked something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.conftest import NODE, Front, run

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"

SCENARIOS = {"2025-11-25": 30, "2026-07-28": 37}
"""Scored server scenarios by revision; a suite that runs fewer has tested less than it says."""


def required(npx: str, revision: str) -> list[str]:
    """The names of the server scenarios that a revision is scored by."""
    listed = run([npx, "-y", "-p", f"node@{NODE}", "-p", SUITE, "conformance", "list", "--requirements", revision])
    server = listed.stdout.partition("Client scenarios")[0]
    wanted = re.findall(r"^  - (\S+)$", server, re.MULTILINE)
    assert len(wanted) == SCENARIOS[revision]
    return wanted


@pytest.mark.parametrize("revision", SCENARIOS)
def test_every_scored_scenario_passes(front: Front, npx: str, revision: str, tmp_path: Path) -> None:
    command = [npx, "-y", "-p", f"node@{NODE}", "-p", SUITE, "conformance", "server", "--url", front.url]
    done = run([*command, "--requirements", revision], cwd=tmp_path)
    summary = done.stdout[done.stdout.find("=== SUMMARY ===") :]
    scored = summary.partition("Not scored")[0]
    for scenario in required(npx, revision):
        line = re.search(rf"^. {re.escape(scenario)}: (\d+) passed, (\d+) failed", scored, re.MULTILINE)
        assert line is not None, f"{scenario} did not run:\n{summary}"
        assert int(line[1]) > 0, f"{scenario} checked nothing"
        assert int(line[2]) == 0, f"{scenario} failed:\n{summary}"
    assert done.returncode == 0, summary


def test_the_suite_crossed_the_kernel_and_its_service_never_died(front: Front) -> None:
    service = front.kernel.service("conformance")
    assert service["state"] == "ready"
    assert service["generation"] == 1
