"""The ledger of `scripts/chaos` notices lost, wrong or late effects: a system with one defect is put under its load."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from services.knowledge.notes.tags import tagged
from tests.chaos.clients import CallOutcome
from tests.chaos.comparison import compare, compare_turns
from tests.chaos.load import Worker, make_folder
from tests.chaos.record import Fault, Record, Window, report
from tests.chaos.soak import slope

STEPS = 12
WRITES = 10
"""Steps of each round that write something; every second round starts a task as well."""
LATER = 4
"""Calls until a late effect: its client has looked by then."""

REFUSED = CallOutcome("unavailable", executed="no")
UNSURE = CallOutcome("maybe_executed", executed="maybe")
HUNG = CallOutcome("hung", executed="maybe")
NOT_FOUND = CallOutcome("operation", executed="no", text="Document not found: no document with this name or hash")
ANOTHER = CallOutcome("ok", {"text": "another", "state": "failed", "failure": {"executed": "maybe"}})

READS = ("yaml_get", "query", "files_read", "tasks_wait")

VALUES = ("worker-0.yaml", "text-0.txt", "note-written-0.md", "the plan", "deleted-0-", "the file of 0")
"""How the record names each thing that has one value."""

Change = dict[Path, str | None]
"""The new text of each changed file; None if the file is deleted."""


class Defective:
    """A client of a system that does what the load asks for, but for one defect from the sixth call on.

    All its state is in files, so each effect can be delayed and undone.
    """

    name = "defective"

    def __init__(self, root: Path, defect: str) -> None:
        self._root = root
        self._stored = root / ".stored"
        self._defect = defect
        self._calls = 0
        self._later: list[tuple[int, Change]] = []
        """Changes that happen by themselves, and the call before which they do."""

    @property
    def kept(self) -> list[str]:
        """The names of all resource sets, and all memories."""
        return [path.read_text() for path in (self._stored / "kept").glob("*")]

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, repeatable: bool = True, key: str = ""
    ) -> CallOutcome:
        self._calls += 1
        while self._later and self._later[0][0] <= self._calls:
            _apply(self._later.pop(0)[1])
        defect = self._defect if self._calls > 5 else ""
        if defect == "hangs":
            return HUNG
        if tool in READS:
            if defect == "never ends its tasks" and tool == "tasks_wait":
                return CallOutcome("ok", {"state": "working"})
            return ANOTHER if defect == "answers wrongly" else self._read(tool, arguments)
        change = self._change(tool, arguments)
        match defect:
            case "forgets":
                return _acknowledge(tool, arguments)
            case "reports done work as refused":
                _apply(change)
                return REFUSED
            case "reports done work as uncertain":
                _apply(change)
                return UNSURE
            case "reports undone work as uncertain":
                return UNSURE
            case "changes it later":
                self._later.append((self._calls + LATER, change))
                return UNSURE
            case "undoes it later":
                self._later.append((self._calls + LATER, {path: _text(path) for path in change}))
                _apply(change)
                return UNSURE
        _apply(change)
        return _acknowledge(tool, arguments)

    def _change(self, tool: str, arguments: Mapping[str, Any]) -> Change:
        match tool:
            case "yaml_set":
                return {Path(arguments["file"]): f"# kept\nvalue: {arguments['value']}\n"}
            case "tasks_start":
                return self._change(arguments["operation"], arguments["arguments"])
            case "notes_tag":
                path = Path(arguments["file_path"])
                return {path: tagged(path.read_bytes(), arguments["tags"]).data.decode()}
            case "execute":
                added = arguments["operations"][0]["params"]
                text = added["content"]
                return {self._stored / "name" / added["name"]: text, self._stored / "hash" / _sha256(text): text}
            case "files_edit":
                return {Path(arguments["path"]): f"{arguments['edits'][0]['new']}\nkept\n"}
            case "notes_write":
                return {self._root / arguments["path"]: arguments["content"]}
            case "remember" | "sets_create":
                text = arguments["text"] if tool == "remember" else arguments["name"]
                return {self._stored / "kept" / _sha256(text): text}
            case "files_move":
                (move,) = arguments["moves"]
                return {Path(move["to"]): _text(Path(move["from"])), Path(move["from"]): None}
            case "files_delete":
                return {Path(path): None for path in arguments["paths"]}
        raise AssertionError(tool)

    def _read(self, tool: str, arguments: Mapping[str, Any]) -> CallOutcome:
        match tool:
            case "yaml_get":
                return CallOutcome("ok", {"text": Path(arguments["file"]).read_text().split("value: ")[1].strip()})
            case "files_read":
                return CallOutcome("ok", {"text": Path(arguments["path"]).read_text()})
            case "tasks_wait":
                return CallOutcome("ok", {"state": "completed"})
        (step,) = arguments["steps"]
        if step["op"] == "notes_tagged":
            (tag,) = step["params"]["tags"]
            return CallOutcome("ok", [path.stem for path in self._root.glob("tagged-*") if tag in path.read_text()])
        (by,) = step["params"].keys() & {"name", "hash"}
        found = _text(self._stored / by / step["params"][by])
        return NOT_FOUND if found is None else CallOutcome("ok", {"content": found})


def _apply(change: Change) -> None:
    for path, text in change.items():
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _acknowledge(tool: str, arguments: Mapping[str, Any]) -> CallOutcome:
    if tool == "execute":
        return CallOutcome("ok", _sha256(arguments["operations"][0]["params"]["content"]))
    return CallOutcome("ok", {"id": "the task"} if tool == "tasks_start" else {"failed": 0})


async def under_load(root: Path, defect: str) -> Record:
    make_folder(root, 1)
    record = Record()
    client = Defective(root, defect)
    worker = Worker(0, client, root, record, random.Random(1))
    for step in (
        worker.set_value, worker.get_value, worker.add_document, worker.get_document, worker.tag, worker.make_set,
        worker.move, worker.edit_file, worker.write_note, worker.remember, worker.new_edition, worker.delete_file,
        worker.have_a_task,
    ) * STEPS:  # fmt: skip
        worker.number += 1
        await step()
    for _ in range(LATER):
        await worker.get_value()
    asked = Defective(root, "") if defect == "hangs" else client
    await compare(worker, asked, client.kept, news_s=0)
    return record


def missing(whats: tuple[str, ...], texts: list[str]) -> list[str]:
    """Return which of these things no text mentions."""
    return [what for what in whats if not any(what in text for text in texts)]


async def test_a_system_without_a_defect_is_found_in_order(tmp_path: Path) -> None:
    record = await under_load(tmp_path, "")
    assert not record.failed, report(record, ())
    assert record.acknowledged == WRITES * STEPS + STEPS // 2
    assert not record.maybe
    assert not record.looked


@pytest.mark.parametrize(
    ("defect", "list_", "whats"),
    [
        ("forgets", "lost", (*VALUES, "tasked-0.yaml", "document ", "tag-0-", "memory ", "resource set ")),
        ("answers wrongly", "wrong", ("the value of 0", "is not document ", "a task that did nothing")),
        ("reports done work as refused", "wrong", ("document ", "tag ", "memory ", "set ")),
        ("reports done work as refused", "lost", (*VALUES, "tasked-0.yaml")),
        ("never ends its tasks", "lost", ("the task of 0",)),
        ("hangs", "hung", ("yaml_set", "query", "files_delete", "tasks_start")),
    ],
)
async def test_each_defect_is_noticed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, defect: str, list_: str, whats: tuple[str, ...]
) -> None:
    record = await under_load(tmp_path, defect)
    assert not missing(whats, getattr(record, list_))
    assert record.failed
    assert f"{list_.upper()}: " in report(record, ())
    assert not record.late


@pytest.mark.parametrize("defect", ["changes it later", "undoes it later"])
async def test_an_effect_after_the_look_is_late(tmp_path: Path, defect: str) -> None:
    record = await under_load(tmp_path, defect)
    assert not missing((*VALUES, "the value of 0", "document ", "tag "), record.late)
    assert not record.lost + record.wrong + record.hung
    assert record.failed
    assert "LATE: " in report(record, ())


@pytest.mark.parametrize("defect", ["reports done work as uncertain", "reports undone work as uncertain"])
async def test_maybe_executed_calls_are_counted_and_not_losses(tmp_path: Path, defect: str) -> None:
    record = await under_load(tmp_path, defect)
    assert not record.failed, report(record, ())
    had = defect == "reports done work as uncertain"
    # After the calls without the defect, each write is uncertain; those of tasks are not counted.
    assert record.maybe["done" if had else "not done"] > (WRITES - 1) * STEPS
    assert not record.maybe["not done" if had else "done"]
    assert record.looked > (WRITES - 3) * STEPS


async def test_a_client_that_hangs_gives_up_its_looks_and_loses_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    record = await under_load(tmp_path, "hangs")
    assert not record.looked
    # Another client compares.
    assert not record.lost + record.wrong + record.late


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
