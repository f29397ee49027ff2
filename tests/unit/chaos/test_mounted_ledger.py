"""The ledgers of mounted servers notice lost, repeated, hung and wrong calls."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.chaos.clients import CallOutcome
from tests.chaos.comparison import compare_lines
from tests.chaos.load import Worker
from tests.chaos.mounted.load import Ledger, Made, Outage, check
from tests.chaos.mounted.servers import Server, small
from tests.chaos.record import Record

OK = CallOutcome("ok", "appended")
UNSURE = CallOutcome("maybe_executed", executed="maybe")
REFUSED = CallOutcome("unavailable", executed="no")


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return small(tmp_path, 1)[0]


def found(server: Server, tool: str, outcome: CallOutcome, *, reached: int = 0, killed: bool = True) -> list[str]:
    """Return the defects if a call with the mark `m-1` ends so."""
    call = next(each for each in server.calls if each.tool == tool)
    request = {"method": "tools/call", "params": {"name": tool, "arguments": call.arguments("m-1")}}
    server.log.write_text(f"{json.dumps(request)}\n" * reached)
    outages = [Outage(server.name, "SIGKILL", 10.0, 12.0)] if killed else []
    return check(Ledger([Made(server.name, call, "m-1", 11.0, 11.5, outcome)], outages), [server])


def test_permitted_outcomes_are_not_reported(server: Server) -> None:
    assert not found(server, "append", OK, reached=1, killed=False)
    assert not found(server, "append", UNSURE, reached=1)
    assert not found(server, "append", UNSURE)
    assert not found(server, "append", REFUSED)
    assert not found(server, "write", CallOutcome("ok", "written"), reached=2)
    assert not found(server, "echo", CallOutcome("ok", "m-1"))


@pytest.mark.parametrize(
    ("tool", "outcome", "reached"),
    [
        ("append", OK, 0), ("append", OK, 2), ("append", UNSURE, 2), ("append", REFUSED, 1),
        ("append", CallOutcome("hung", executed="maybe"), 1), ("echo", CallOutcome("lost", executed="maybe"), 1),
        ("echo", UNSURE, 1), ("write", REFUSED, 0), ("echo", CallOutcome("ok", "m-2"), 1),
    ],
)  # fmt: skip
def test_forbidden_outcomes_are_reported(server: Server, tool: str, outcome: CallOutcome, reached: int) -> None:
    assert found(server, tool, outcome, reached=reached)


def test_a_failure_of_a_server_that_nobody_killed_is_wrong(server: Server) -> None:
    assert found(server, "append", UNSURE, killed=False)


@pytest.mark.parametrize(
    ("said", "there", "lost", "wrong"),
    [
        (OK, 1, 0, 0), (OK, 0, 1, 0), (OK, 2, 0, 1), (UNSURE, 0, 0, 0), (UNSURE, 1, 0, 0), (UNSURE, 2, 0, 1),
        (REFUSED, 0, 0, 0), (REFUSED, 1, 0, 1),
    ],
)  # fmt: skip
def test_appended_lines_are_compared(tmp_path: Path, said: CallOutcome, there: int, lost: int, wrong: int) -> None:
    record = Record()
    worker = Worker(0, None, tmp_path, record, random.Random(0))  # type: ignore[arg-type]  # no call is made
    worker.lines["line 1 of 0"] = said
    (tmp_path / "appended-0.txt").write_text("line 1 of 0\n" * there)
    compare_lines(worker)
    assert (len(record.lost), len(record.wrong)) == (lost, wrong)
