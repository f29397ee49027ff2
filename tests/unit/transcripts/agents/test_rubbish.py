"""Whatever stands in the place of a value, a layout reads the rest, and a source of sessions does not fail."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from services.transcripts.importing import LAYOUTS, detect
from services.transcripts.layouts import Layout
from services.transcripts.sources import Unfinished
from services.transcripts.sources.finding import sources
from tests.unit.transcripts.agents.test_sessions import each_agent
from tests.unit.transcripts.agents.written import AGENTS, TALK, Agent
from tests.unit.transcripts.rig import Json

RUBBISH: list[Any] = [None, 7, 1e300, "x", True, [], {}, [1, "a", None, [2]], {"a": 1, "type": 3}]


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside a value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield (key,)
        yield from ((key, *rest) for rest in places(each))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    changed = copy.deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = by
    return changed


def records_of(path: Path) -> list[Json]:
    found = []
    for source in sources(str(path)):
        with source.open() as file:
            found = [json.loads(line) for line in file]
    return found


@each_agent
def test_a_layout_reads_past_any_value_of_another_type(tmp_path: Path, agent: Agent) -> None:
    records = records_of(agent.write(tmp_path, TALK[:1]))
    whole, _ = detect(records[0])
    assert whole is not None
    for number, record in enumerate(records):
        for path in places(record):
            if path[0] == "source":
                continue
            for rubbish in RUBBISH:
                given = [*records[:number], replaced(record, path, rubbish), *records[number + 1 :]]
                layout: Layout = LAYOUTS[whole.name]()
                for each in given:
                    layout.read(each)
                layout.finish()
                # The state is stored between parts.
                msgspec.json.encode(layout)


FILES = [name for name in AGENTS if name not in ("qwen", "copilot", "goose, lines", "aider")]


@pytest.mark.parametrize("name", FILES)
def test_a_source_of_sessions_presents_the_rest_whatever_its_values_are(tmp_path: Path, name: str) -> None:
    path = AGENTS[name].write(tmp_path, TALK[:1])
    if path.suffix in (".db", ".vscdb"):
        for table, column in columns_of(path):
            for rubbish in (None, 7, "x", b"\xff\xfe", "[1]", '{"a": []}', '"x"', "[" * 500):
                db = apsw.Connection(str(path))
                with contextlib.suppress(apsw.ConstraintError, apsw.MismatchError):
                    db.execute(f"UPDATE {table} SET {column}=?", (rubbish,))
                db.close()
                read(path)
                AGENTS[name].write(tmp_path, TALK[:1])
        return
    for file in [each for each in tmp_path.rglob("*") if each.is_file()]:
        text = file.read_text()
        documents = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else [json.loads(text)]
        for number, document in enumerate(documents):
            for place in [*places(document), None]:
                for rubbish in RUBBISH:
                    changed = rubbish if place is None else replaced(document, place, rubbish)
                    written = [*documents[:number], changed, *documents[number + 1 :]]
                    file.write_text("\n".join(map(json.dumps, written)))
                    read(path)
        file.write_text(text)


def columns_of(path: Path) -> list[tuple[str, str]]:
    db = apsw.Connection(str(path))
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
    found = [(table, str(row[1])) for table in tables for row in db.execute(f"PRAGMA table_info({table})")]
    db.close()
    return found


def read(path: Path) -> None:
    # It is named, and waits.
    with contextlib.suppress(Unfinished, OSError):
        records_of(path)
