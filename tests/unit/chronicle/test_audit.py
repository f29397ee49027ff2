"""The audit log's files: entries are appended, rotated, bounded, and read again."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kernel.chronicle.audit import Audit, AuditEntry, entries, files_of, now, path_of
from kernel.cli.__main__ import main
from kernel.cli.audit import in_words
from kernel.cli.care import doctor
from kernel.configure.config import AuditSettings
from proto.ops.kernel import AuditStatus
from tests.waiting import until


def entry(number: int = 0, **more: Any) -> AuditEntry:
    return AuditEntry(**{"at": now(), "who": "ci", "operation": "yaml_set", "target": f"file=/n/{number}", **more})


@contextlib.asynccontextmanager
async def writing(folder: Path, **settings: Any) -> AsyncIterator[Audit]:
    kept = AuditSettings(**settings)
    audit = Audit(folder, max_bytes=kept.max_bytes, files=kept.files)
    async with trio.open_nursery() as nursery:
        await nursery.start(audit.run)
        yield audit
        nursery.cancel_scope.cancel()


def record(folder: Path, *given: AuditEntry, **settings: int) -> None:
    async def write() -> None:
        async with writing(folder, **settings) as audit:
            for each in given:
                audit.record(each)

    trio.run(write)


def recorded(folder: Path) -> list[AuditEntry]:
    return [found for path in files_of(folder) for found in entries(path.read_bytes().splitlines())]


def test_records_are_on_disk_after_the_kernel_has_ended_and_readable_by_the_owner_only(tmp_path: Path) -> None:
    record(tmp_path, *map(entry, range(100)))
    record(tmp_path, entry(100))
    assert [found.target for found in recorded(tmp_path)] == [f"file=/n/{number}" for number in range(101)]
    assert stat.S_IMODE(path_of(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(path_of(tmp_path).parent.stat().st_mode) == 0o700


def test_files_are_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    for number in range(60):
        record(tmp_path, entry(number, message="x" * 1000), max_bytes=4096, files=3)
    paths = files_of(tmp_path)
    assert [path.name for path in paths] == ["audit.2.jsonl", "audit.1.jsonl", "audit.jsonl"]
    assert all(path.stat().st_size <= 4096 for path in paths)
    numbers = [int(found.target.rpartition("/")[2]) for found in recorded(tmp_path)]
    assert numbers == list(range(numbers[0], 60))


def test_a_line_that_a_death_cut_costs_no_other(tmp_path: Path) -> None:
    record(tmp_path, entry(1))
    with path_of(tmp_path).open("ab") as file:
        file.write(b'{"at":"2026-')
    record(tmp_path, entry(2))
    assert [found.target for found in recorded(tmp_path)] == ["file=/n/1", "file=/n/2"]


async def test_a_full_disk_is_reported_and_nothing_waits_for_it(tmp_path: Path) -> None:
    """A limit on the size of files answers EFBIG where the disk would answer ENOSPC, also in the middle of a line."""
    async with writing(tmp_path) as audit:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            for number in range(50):
                audit.record(entry(number))
            await until(lambda: audit.state.problem)
            assert str(path_of(tmp_path)) in audit.state.problem
            assert path_of(tmp_path).stat().st_size == 1000
            for number in range(50, 60_000):
                audit.record(entry(number))
            assert audit.state.lost > 0
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await until(lambda: not audit.state.problem)
        audit.record(entry(-1))
    found = recorded(tmp_path)
    kept = [each.target for each in found if each.operation != "audit"]
    assert kept[-1] == "file=/n/-1"
    assert kept[:-1] == [f"file=/n/{number}" for number in range(len(kept) - 1)]
    assert sum(each.count for each in found if each.outcome == "lost") == 60_001 - len(kept)


async def test_a_flood_of_refusals_is_a_line_and_a_count_a_minute(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with writing(tmp_path) as audit:
        for _ in range(5000):
            audit.refused(entry(outcome="forbidden", peer="192.0.2.1"))
        for number in range(5000):
            audit.refused(entry(outcome="forbidden", peer=f"192.0.2.{number}"))
        await trio.sleep(61)
        audit.refused(entry(outcome="forbidden", peer="192.0.2.1"))
    found = recorded(tmp_path)
    assert len(found) < 300
    assert sum(each.count for each in found) == 10_001
    assert [each.count for each in found if each.peer == "192.0.2.1"] == [1, 5000, 1]


async def test_a_removed_file_is_created_again(tmp_path: Path) -> None:
    async with writing(tmp_path) as audit:
        audit.record(entry(1))
        await until(path_of(tmp_path).exists)
        os.unlink(path_of(tmp_path))
        audit.record(entry(2))
    assert [found.target for found in recorded(tmp_path)] == ["file=/n/2"]


def shown(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> list[str]:
    assert main(["audit", "--data", str(folder), *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_audit_log_is_read_and_filtered_across_rotated_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [entry(number, who="ci" if number % 2 else "me", message="y" * 500) for number in range(40)]
    for each in given:
        record(tmp_path, each, max_bytes=8192, files=8)
    record(tmp_path, entry(40, operation="yaml_edit", outcome="forbidden", message="may only read"))
    assert len(files_of(tmp_path)) > 2
    assert len(shown(capsys, tmp_path, "--since", "1h")) == 41
    assert len(shown(capsys, tmp_path, "--since", "2999-01-01")) == 0
    assert len(shown(capsys, tmp_path, "--who", "me")) == 20
    assert len(shown(capsys, tmp_path, "-n", "7")) == 7
    [line] = shown(capsys, tmp_path, "--failed")
    assert "ci yaml_edit file=/n/40 -> forbidden: may only read" in line
    [text] = shown(capsys, tmp_path, "--operation", "yaml_e*", "--json")
    assert json.loads(text)["outcome"] == "forbidden"


@pytest.mark.parametrize("options", [["--since", "soon"], ["-n", "-1"], ["--since", "1 fortnight"]])
def test_invalid_filters_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    record(tmp_path, entry())
    assert main(["audit", "--data", str(tmp_path), *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_names_in_the_log_cannot_control_the_terminal() -> None:
    assert "\x1b" not in in_words(entry(target="file=/n/\x1b[2J\x9b\n"))


@pytest.mark.parametrize(
    ("state", "verdict", "told"),
    [
        (None, "note", "changes are not recorded"),
        (AuditStatus(path="/d/a", problem="", waiting=0, lost=0), "ok", "/d/a"),
        (AuditStatus(path="/d/a", problem="/d/a: No space left", waiting=3, lost=0), "bad", "3 lines wait"),
        (AuditStatus(path="/d/a", problem="", waiting=0, lost=7), "note", "7 lines were lost"),
    ],
)
def test_doctor_reports_the_state_of_the_log(state: AuditStatus | None, verdict: str, told: str) -> None:
    finding = doctor.audit_finding(state)
    assert finding.verdict == verdict
    assert told in finding.found
