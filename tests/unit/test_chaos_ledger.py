"""The ledger of `scripts/chaos` notices what is lost, wrong or late: a system with one defect is put under its load."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.clients import CallOutcome
from tests.chaos.load import Worker, compare_turns, make_folder
from tests.chaos.record import Fault, Record, Window, report
from tests.chaos.soak import slope

STEPS = 12
REFUSED = CallOutcome("unavailable", executed="no")
UNSURE = CallOutcome("maybe_executed", executed="maybe")


class Defective:
    """A client of a system in memory, which does what the load asks for, but for one defect from the sixth call on."""

    name = "defective"

    def __init__(self, root: Path, defect: str) -> None:
        self._root = root
        self._defect = defect
        self._calls = 0
        self._documents: dict[str, str] = {}
        self.kept: list[str] = []

    async def call(self, tool: str, arguments: Mapping[str, Any], *, repeatable: bool = True) -> CallOutcome:
        self._calls += 1
        defect = self._defect if self._calls > 5 else ""
        reads = tool in ("noyalib_get", "query", "query_by_tags")
        if defect == "hangs":
            return CallOutcome("hung", executed="maybe")
        if defect == "forgets" and not reads:
            # What a client is told is right, and nothing is kept.
            return self._told(tool, arguments)
        if defect in ("refuses what it does", "is unsure of what it does") and not reads:
            self._do(tool, arguments)
            return REFUSED if defect.startswith("refuses") else UNSURE
        if defect == "is unsure of what it does not do" and not reads:
            return UNSURE
        if defect == "answers wrongly" and reads:
            return CallOutcome("ok", {"text": "another", "content": "another"})
        self._do(tool, arguments)
        return self._told(tool, arguments)

    def _do(self, tool: str, arguments: Mapping[str, Any]) -> None:
        match tool:
            case "noyalib_set":
                Path(arguments["file"]).write_text(f"# kept\nvalue: {arguments['value']}\n")
            case "inject_tags":
                with Path(arguments["file_path"]).open("a") as file:
                    file.write(" ".join(arguments["tags"]))
            case "execute":
                text = arguments["operations"][0]["params"]["content"]
                self._documents[hashlib.sha256(text.encode()).hexdigest()] = text
            case "edit-file":
                Path(arguments["path"]).write_text(f"{arguments['edits'][0]['new']}\nkept\n")
            case "write_note":
                (self._root / arguments["path"]).write_text(arguments["content"])
            case "remember":
                self.kept.append(arguments["text"])
            case "resource-set-create":
                self.kept.append(arguments["name"])
            case "move-files":
                (move,) = arguments["moves"]
                if Path(move["from"]).exists():
                    Path(move["from"]).rename(move["to"])

    def _told(self, tool: str, arguments: Mapping[str, Any]) -> CallOutcome:
        match tool:
            case "noyalib_get":
                return CallOutcome("ok", {"text": Path(arguments["file"]).read_text().split("value: ")[1].strip()})
            case "execute":
                text = arguments["operations"][0]["params"]["content"]
                return CallOutcome("ok", hashlib.sha256(text.encode()).hexdigest())
            case "query":
                (step,) = arguments["steps"]
                if step["op"] == "query_by_tags":
                    (tag,) = step["params"]["tags"]
                    return CallOutcome(
                        "ok", [path.stem for path in self._root.glob("tagged-*") if tag in path.read_text()]
                    )
                found = self._documents.get(step["params"]["hash"])
                return REFUSED if found is None else CallOutcome("ok", {"content": found})
        return CallOutcome("ok", {"failed": 0})


async def under_load(root: Path, defect: str) -> Record:
    make_folder(root, 1)
    record = Record()
    client = Defective(root, defect)
    worker = Worker(0, client, root, record, random.Random(1))
    for step in (
        worker.set_value, worker.get_value, worker.add_document, worker.get_document, worker.tag, worker.make_set,
        worker.move, worker.edit_file, worker.write_note, worker.remember,
    ) * STEPS:  # fmt: skip
        worker.number += 1
        await step()
    asked = Defective(root, "") if defect == "hangs" else client
    await worker.compare(asked, client.kept, news_s=0)
    return record


async def test_a_system_without_a_defect_is_found_in_order(tmp_path: Path) -> None:
    record = await under_load(tmp_path, "")
    assert not record.failed, report(record, ())
    assert record.acknowledged == 8 * STEPS
    assert not record.maybe


@pytest.mark.parametrize(
    ("defect", "list_"),
    [("forgets", "lost"), ("answers wrongly", "wrong"), ("refuses what it does", "wrong"), ("hangs", "hung")],
)
async def test_a_defect_shows(tmp_path: Path, defect: str, list_: str) -> None:
    record = await under_load(tmp_path, defect)
    assert getattr(record, list_)
    assert record.failed
    assert f"{list_.upper()}: " in report(record, ())


@pytest.mark.parametrize("defect", ["is unsure of what it does", "is unsure of what it does not do"])
async def test_what_may_have_executed_is_no_loss_and_counted(tmp_path: Path, defect: str) -> None:
    record = await under_load(tmp_path, defect)
    assert not record.failed, report(record, ())
    had = defect == "is unsure of what it does"
    assert (record.maybe["done"] > STEPS) is had
    assert (record.maybe["not done"] > STEPS) is not had


def test_a_turn_that_is_gone_or_kept_twice_shows(tmp_path: Path) -> None:
    (tmp_path / "services/transcripts").mkdir(parents=True)
    database = sqlite3.connect(tmp_path / "services/transcripts/transcripts.db")
    with database:
        database.execute("CREATE TABLE node(content TEXT)")
        rows = [(json.dumps([{"text": text}]),) for text in ("one", "twice", "twice")]
        database.executemany("INSERT INTO node VALUES(?)", rows)
    database.close()
    record = Record()
    worker = Worker(0, Defective(tmp_path, ""), tmp_path, record, random.Random(1), turns=["one", "twice", "gone"])
    compare_turns(tmp_path, [worker], record)
    assert record.lost == ["turn 'gone'"]
    assert record.wrong == ["1 turns are stored twice"]


def test_availability_counts_repeatable_calls_and_in_a_full_disk_reads() -> None:
    record = Record()

    def took(kind: str, *, reads: bool, repeatable: bool = True, window: Window = Window.NONE) -> None:
        name = f"{reads} {repeatable}"
        record.took(name, CallOutcome(kind), reads=reads, repeatable=repeatable, window=window, since=0)

    for _ in range(3):
        took("ok", reads=True)
    took("unavailable", reads=False)
    took("maybe_executed", reads=False, repeatable=False)
    took("operation", reads=False, window=Window.FULL)
    took("ok", reads=True, window=Window.FULL)
    assert record.availability(Window.NONE) == 0.75
    assert record.availability(Window.FULL) == 1.0
    took("operation", reads=True, window=Window.FULL)
    assert record.availability(Window.FULL) == 0.5


def test_the_report_names_what_did_not_recover() -> None:
    record = Record(faults=[Fault("SIGKILL", ["yaml"], 1.0), Fault("SIGKILL", ["echo"], 2.0, 0.1)])
    assert "no answer after SIGKILL of yaml" in report(record, ())


def test_the_slope_is_that_of_least_squares() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 0), (1, 3), (2, 0)]) == pytest.approx(0)
    assert slope([(1, 5)]) == 0
