"""`linckia import --from`: databases of other programs.

tapes (github.com/papercomputeco/tapes) kept conversations in a SQLite table of nodes until it switched to DuckDB in
April 2026. mcp-space-browser (github.com/prismon/mcp-space-browser) keeps sets, queries, sources and plans in SQLite.
Items without an equivalent here are reported and left out. The databases are only read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernel.cli.carry.files import batched, named, write
from proto.control.client import Client
from proto.control.commands import Failed
from proto.control.terminal import complain, say
from proto.json_types import JsonObject

TakeFiles = Callable[[Client, Path], tuple[str, int]]
"""Imports an export folder with sets, queries, sources and plans; returns a summary and the number left out."""


def take_original(client: Client, origin: str, file: Path, take_files: TakeFiles) -> int:
    """Import a database; exit code 1 if something is left out. Raises Failed, ControlError."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as db:
            db.row_factory = sqlite3.Row
            return _tapes(client, db, file) if origin == "tapes" else _space_browser(client, db, take_files)
    except sqlite3.Error as error:
        raise Failed(f"{file} cannot be read as a database of {origin}: {error}") from None


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row["name"] for row in db.execute(f"PRAGMA table_info({table})")}


# tapes

_USAGE = (
    "prompt_tokens", "completion_tokens", "total_tokens", "cache_creation_input_tokens", "cache_read_input_tokens",
    "total_duration_ns", "prompt_duration_ns",
)  # fmt: skip


def _tapes(client: Client, db: sqlite3.Connection, file: Path) -> int:
    there = _columns(db, "nodes")
    if not {"hash", "parent_hash", "content"} <= there:
        raise Failed(f"{file} has no tapes table `nodes`; DuckDB files of later versions cannot be read")
    total = db.execute("SELECT count(*) FROM nodes").fetchone()[0]
    position = unreadable = 0
    tail = problem = ""
    # Always from the beginning: stored turns are not stored twice, and new turns may be anywhere.
    for records in batched(_nodes(db, there), length=len):
        start, position = position, position + len(records)
        tail = hashlib.sha256((tail + records[-1]).encode()).hexdigest()
        given = {"source": str(file), "start": start, "position": position, "tail": tail, "records": records}
        answer = named(client, "transcript_import", {**given, "final": position >= total})
        unreadable += answer["unreadable"]
        problem = problem or answer["problem"]
    say(f"{position - unreadable} turns are stored")
    if unreadable:
        complain(f"{unreadable} turns are left out; the first: {problem}")
    return 1 if unreadable else 0


def _nodes(db: sqlite3.Connection, there: set[str]) -> Iterator[str]:
    """Yield records of turns, parents first. The first schema had the turn in `content`, later ones in `bucket`."""
    bucket = "bucket" if "bucket" in there else "content"
    more = [name for name in ("stop_reason", "project", *_USAGE) if name in there]
    rows = db.execute(
        "WITH RECURSIVE tree(hash, depth) AS (SELECT hash, 0 FROM nodes WHERE parent_hash IS NULL"
        " OR parent_hash NOT IN (SELECT hash FROM nodes) UNION ALL SELECT nodes.hash, depth + 1 FROM tree"
        " JOIN nodes ON nodes.parent_hash = tree.hash)"
        f" SELECT nodes.hash, parent_hash, created_at, {', '.join([bucket, *more])} FROM tree JOIN nodes USING (hash)"
        " ORDER BY depth, created_at, nodes.hash"
    )
    for row in rows:
        usage = {name: row[name] for name in _USAGE if name in there and row[name]}
        record = {"hash": row["hash"], "parent_hash": row["parent_hash"], "created_at": row["created_at"]}
        details = {name: row[name] for name in ("stop_reason", "project") if name in there and row[name]}
        yield json.dumps({**record, **details, "usage": usage or None, "bucket": _json(row[bucket])})


def _json(text: str | bytes | None) -> Any:
    """Decode a column; return None if it is not JSON."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return None


# mcp-space-browser


class _LeftOut(Exception):
    """The item has no equivalent here."""


_FILTER = {
    "minSize": "min_size", "maxSize": "max_size", "minDate": "min_mtime", "maxDate": "max_mtime",
    "nameContains": "name_contains", "pathContains": "path_contains", "sortBy": "sort_by",
    "descendingSort": "sort_desc",
}  # fmt: skip


def _space_browser(client: Client, db: sqlite3.Connection, take_files: TakeFiles) -> int:
    if not _columns(db, "resource_sets"):
        raise Failed("the database has no mcp-space-browser table `resource_sets`")
    left = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for table, read in (("queries", _query), ("sources", _source), ("plans", _plan)):
            made: list[JsonObject] = []
            for row in db.execute(f"SELECT * FROM {table} ORDER BY name") if _columns(db, table) else ():
                try:
                    made.append({"name": row["name"], **read(row)})
                except (_LeftOut, KeyError, TypeError, AttributeError) as error:
                    complain(f"{table}: {row['name']!r} is left out: {error}")
                    left += 1
            write(folder / f"{table}.jsonl", made)
        write(folder / "sets.jsonl", _sets(db))
        members = "SELECT name, entry_path FROM resource_set_entries JOIN resource_sets ON id = set_id ORDER BY 1, 2"
        write(folder / "entries.jsonl", ({"set": of, "path": path} for of, path in db.execute(members)))
        said, missing = take_files(client, folder)
    say(said)
    return 1 if left or missing else 0


def _sets(db: sqlite3.Connection) -> Iterator[JsonObject]:
    below = "SELECT name FROM resource_set_edges JOIN resource_sets ON id = child_id WHERE parent_id = ? ORDER BY name"
    for row in db.execute("SELECT id, name, description FROM resource_sets ORDER BY name"):
        children = [child["name"] for child in db.execute(below, (row["id"],))]
        yield {"name": row["name"], "description": row["description"] or "", "children": children}


def _query(row: sqlite3.Row) -> JsonObject:
    given = {key: value for key, value in _json(row["query_json"]).items() if value not in (None, "", [])}
    found: JsonObject = {}
    extensions = given.pop("extensions", [])
    if len(extensions) == 1:
        found["extension"] = extensions[0]
    others = [*given.keys() - _FILTER.keys(), *["several extensions"] * (len(extensions) > 1)]
    if row["query_type"] != "file_filter" or others:
        raise _LeftOut(f"{', '.join(others) or row['query_type']} has no equivalent")
    found |= {_FILTER[key]: value for key, value in given.items()}
    return {"description": row["description"] or "", "query": found}


def _source(row: sqlite3.Row) -> JsonObject:
    if row["type"] not in ("live", "manual"):
        raise _LeftOut(f"sources of type {row['type']} are not supported")
    config = _json(row["config_json"]) or {}
    given = {key: config[key] for key in ("watch_recursive", "debounce_ms") if key in config}
    return {"type": row["type"], "path": row["root_path"], "enabled": bool(row["enabled"]), **given}


def _plan(row: sqlite3.Row) -> JsonObject:
    if "trigger" in row.keys() and row["trigger"] not in (None, "", "manual"):  # noqa: SIM118  # a row, not a dict
        raise _LeftOut(f"plans with the trigger {row['trigger']} are not supported")
    plan = {"description": row["description"] or "", "mode": row["mode"], "status": row["status"]}
    conditions = _json(row["conditions_json"])
    return {
        **plan,
        "sources": [found for one in _json(row["sources_json"]) for found in _plan_sources(one)],
        "outcomes": [_outcome(one) for one in _json(row["outcomes_json"])],
        **({"conditions": conditions} if conditions else {}),
    }


def _plan_sources(one: JsonObject) -> list[JsonObject]:
    match one["type"]:
        case "filesystem":
            return [{"type": "filesystem.index", "config": {"path": path}} for path in one["paths"]]
        case "selection_set":
            return [{"type": "resource-set", "config": {"resource_set": one["source_ref"]}}]
        case "query":
            return [{"type": "query", "config": {"query": one["source_ref"]}}]
        case other:
            raise _LeftOut(f"sources of type {other} are not supported")


def _outcome(one: JsonObject) -> JsonObject:
    if one.get("conditions"):
        raise _LeftOut("conditions on outcomes are not supported")
    if one.get("outcomes"):
        outcomes = [_outcome(each) for each in one["outcomes"]]
        return {"type": "chained", "outcomes": outcomes, "stopOnError": bool(one.get("stopOnError"))}
    return one if "type" in one else {"type": "tool", "tool": one["tool"], "arguments": one.get("arguments") or {}}
