"""What the sources of plans find: entries of the index, batch after batch in the order of their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import apsw
import msgspec

from linckia.proto.errors import InvalidParams
from linckia.proto.ops.files.plans import Condition, PlanSource
from linckia.services.files import paths
from linckia.services.files.index.tree import below, find, find_shown
from linckia.services.files.query import conditions, entries, matching, sets
from linckia.services.files.query.entries import Select
from linckia.services.files.query.queries import selection
from linckia.services.files.store import schema


class Entry(NamedTuple):
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
    """Some entries of a source, by id, and those among them that meet the conditions."""

    ids: list[int]
    matched: list[Entry]


_COLUMNS = "n.id, n.path, n.name, n.folder, n.kind, n.extension, n.size, n.mtime, n.ctime"


def is_filesystem(source: PlanSource) -> bool:
    return source.type.startswith("filesystem.")


def check(source: PlanSource, field: str) -> None:
    """Raises InvalidParams, which names the field, where it does not say what it looks at."""
    config = source.config
    if is_filesystem(source):
        if config.path is None:
            raise _missing(f"{field}.config.path", f"a {source.type} source needs one")
        paths.clean(config.path, f"{field}.config.path")
    elif source.type == "query":
        if config.query is None and not config.name:
            raise _missing(f"{field}.config.query", "a query source needs the name of a saved query, or a query")
        if config.query is not None and not isinstance(config.query, str):
            entries.conditions(config.query)
    elif config.resource_set is None and not config.name:
        raise _missing(f"{field}.config.resource_set", "a resource-set source needs the name of one")


def _missing(field: str, why: str) -> InvalidParams:
    return InvalidParams(f"`{field}`: {why}", field=field)


def select(db: apsw.Connection, source: PlanSource, more: Sequence[matching.Condition] = ()) -> Select:
    """Its entries, of which more may be asked. Raises InvalidParams where what it names is not there."""
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
    # With their plus they are no reason to walk by folders: entries are wanted in the order of their ids.
    found = (
        [matching.Condition("+n.folder >= ? AND +n.folder < ?", below(folder))]
        if source.config.recursive
        else [matching.Condition("+n.folder = ?", (folder,))]
    )
    if not source.config.include_directories:
        found.append(matching.Condition("n.kind <> 1"))
    return found


def after(db: apsw.Connection, source: PlanSource, wanted: Condition | None, last: int, limit: int) -> Batch:
    """The next entries of a source, from the one with the id `last`."""
    rows = select(db, source, [matching.Condition("n.id > ?", (last,))]).run(
        db, "n.id", "ORDER BY n.id LIMIT ?", (limit,)
    )
    ids = [id_ for (id_,) in rows]
    return Batch(ids, _matched(db, wanted, ids))


def again(db: apsw.Connection, source: PlanSource, wanted: Condition | None, id_: int) -> Entry | None:
    """An entry as it is now; None where the source has it no more, or it no longer meets the conditions."""
    there = select(db, source, [matching.Condition("n.id = ?", (id_,))]).run(db, "n.id", "")
    return next(iter(_matched(db, wanted, [id_] if list(there) else [])), None)


def among(db: apsw.Connection, source: PlanSource, wanted: Condition | None, found: Sequence[str]) -> Batch:
    """Those entries of a source that have one of these clean paths."""
    stored = [each.id for each in (find_shown(db, path) for path in found) if each is not None]
    rows = select(db, source, [_one_of(stored)]).run(db, "n.id", "ORDER BY n.id")
    ids = [id_ for (id_,) in rows]
    return Batch(ids, _matched(db, wanted, ids))


def _matched(db: apsw.Connection, wanted: Condition | None, ids: Sequence[int]) -> list[Entry]:
    if not ids:
        return []
    meant = Select([_one_of(ids), conditions.where(wanted)])
    return [Entry(*row) for row in meant.run(db, _COLUMNS, "ORDER BY n.id")]


def _one_of(ids: Sequence[int]) -> matching.Condition:
    return matching.Condition("n.id IN (SELECT value FROM json_each(?))", (msgspec.json.encode(list(ids)).decode(),))


def all_ids(db: apsw.Connection, source: PlanSource) -> set[int]:
    """All that it finds."""
    return {id_ for (id_,) in select(db, source).run(db, "n.id")}
