"""The index entries that a plan's sources select, in batches ordered by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import apsw
import msgspec

from proto.errors import InvalidParams
from services.files import paths
from services.files.index.tree import below, find, find_shown
from services.files.operations.plans import Condition, PlanSource
from services.files.query import conditions, entries, matching, sets
from services.files.query.entries import Select
from services.files.query.queries import selection
from services.files.store import schema


class PlanEntry(NamedTuple):
    """An entry as outcomes see it; times in nanoseconds."""

    id: int
    path: str
    name: str
    folder: str
    kind: int
    extension: str
    size: int
    mtime: int
    ctime: int


class Batch(NamedTuple):
    """Ids of some entries of a source, and those entries that meet the conditions."""

    ids: list[int]
    matched: list[PlanEntry]


_COLUMNS = "n.id, n.path, n.name, n.folder, n.kind, n.extension, n.size, n.mtime, n.ctime"


def is_filesystem(source: PlanSource) -> bool:
    return source.type.startswith("filesystem.")


def check(source: PlanSource, field: str) -> None:
    """Raises InvalidParams, which names the field, if the source does not say what to select."""
    config = source.config
    if is_filesystem(source):
        if config.path is None:
            raise _missing(f"{field}.config.path", f"required for a {source.type} source")
        paths.clean(config.path, f"{field}.config.path")
    elif source.type == "query":
        if config.query is None and not config.name:
            raise _missing(f"{field}.config.query", "a query source needs a query, or the name of a saved one")
        if config.query is not None and not isinstance(config.query, str):
            entries.conditions(config.query)
    elif config.resource_set is None and not config.name:
        raise _missing(f"{field}.config.resource_set", "a resource-set source needs the name of a resource set")


def _missing(field: str, why: str) -> InvalidParams:
    return InvalidParams(f"`{field}`: {why}", field=field)


def select(db: apsw.Connection, source: PlanSource, more: Sequence[matching.Condition] = ()) -> Select:
    """Select the source's entries that also meet `more`. Raises InvalidParams if it names something that does not
    exist."""
    config = source.config
    if source.type == "query":
        if config.query is None or isinstance(config.query, str):
            found, _ = selection(db, config.query or config.name, "query")
        else:
            found = Select(entries.conditions(config.query))
    elif source.type == "resource-set":
        start = sets.find(db, config.resource_set or config.name, "resource_set")
        found = Select((), sets.with_children(db, start) if config.include_children else [start])
    else:
        found = Select(_below(db, source))
    for condition in more:
        found.where(condition)
    return found


def _below(db: apsw.Connection, source: PlanSource) -> list[matching.Condition]:
    path = source.config.path or "/"
    stored = find(db, path)
    if stored is not None and stored.kind != schema.DIRECTORY:
        return [matching.Condition("n.id = ?", (stored.id,))]
    folder = paths.as_folder(path)
    # The plus signs keep SQLite from walking by folder: entries are needed in the order of their ids.
    found = (
        [matching.Condition("+n.folder >= ? AND +n.folder < ?", below(folder))]
        if source.config.recursive
        else [matching.Condition("+n.folder = ?", (folder,))]
    )
    if not source.config.include_directories:
        found.append(matching.Condition("n.kind <> 1"))
    return found


def next_batch(db: apsw.Connection, source: PlanSource, wanted: Condition | None, last: int, limit: int) -> Batch:
    """Return the next batch of a source: entries with ids above `last`."""
    rows = select(db, source, [matching.Condition("n.id > ?", (last,))]).run(
        db, "n.id", "ORDER BY n.id LIMIT ?", (limit,)
    )
    ids = [id_ for (id_,) in rows]
    return Batch(ids, _matched(db, wanted, ids))


def reread(db: apsw.Connection, source: PlanSource, wanted: Condition | None, id_: int) -> PlanEntry | None:
    """Read an entry again; None if the source no longer contains it, or it no longer meets the conditions."""
    there = select(db, source, [matching.Condition("n.id = ?", (id_,))]).run(db, "n.id", "")
    return next(iter(_matched(db, wanted, [id_] if list(there) else [])), None)


def batch_of(db: apsw.Connection, source: PlanSource, wanted: Condition | None, found: Sequence[str]) -> Batch:
    """Return the entries of a source whose clean path is in `found`."""
    stored = [each.id for each in (find_shown(db, path) for path in found) if each is not None]
    rows = select(db, source, [_one_of(stored)]).run(db, "n.id", "ORDER BY n.id")
    ids = [id_ for (id_,) in rows]
    return Batch(ids, _matched(db, wanted, ids))


def _matched(db: apsw.Connection, wanted: Condition | None, ids: Sequence[int]) -> list[PlanEntry]:
    if not ids:
        return []
    meant = Select([_one_of(ids), conditions.where(wanted)])
    return [PlanEntry(*row) for row in meant.run(db, _COLUMNS, "ORDER BY n.id")]


def _one_of(ids: Sequence[int]) -> matching.Condition:
    return matching.Condition("n.id IN (SELECT value FROM json_each(?))", (msgspec.json.encode(list(ids)).decode(),))


def all_ids(db: apsw.Connection, source: PlanSource) -> set[int]:
    """Return the ids of all entries of a source."""
    return {id_ for (id_,) in select(db, source).run(db, "n.id")}
