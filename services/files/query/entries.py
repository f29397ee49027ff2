"""Entries that meet conditions: clients' criteria, orders, pages, and lists too long for one answer."""

from __future__ import annotations

import functools
import itertools
import os
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import apsw
import msgspec

from proto.errors import InvalidParams
from services.files import paths
from services.files.index.tree import StoredEntry, find_scanned, find_shown
from services.files.operations.shared import EntryPage, FileEntry, Filter
from services.files.query.column_names import SET
from services.files.query.columns import Columns, is_large
from services.files.query.matching import COLUMNS, Compare, Condition, Contains, between, text_matches
from services.files.store import schema
from services.files.store.sql import Row, key
from services.shared import times
from services.shared.times import instant

T = TypeVar("T")

MAX_BYTES = 512_000
"""Largest list in an answer, as JSON."""

_ROOM = 4_000
"""How much of that is reserved for the fields around the list."""

ENOUGH = MAX_BYTES // 100
"""Most entries per page: more never fit, since even the smallest takes over 100 bytes as JSON."""

AT_ONCE = 250
"""Entries whose rows are read together."""

FEW = 10_000
"""Most matching entries whose ids are held in memory."""

SELECTED = "n.path, n.name, n.kind, n.size, n.disk, n.mtime, n.ctime"


_shown = functools.lru_cache(maxsize=4096)(times.rfc3339)
"""Entries of a page share many times: that of their change and of their status, and when they were added."""


def entry_of(row: Row) -> FileEntry:
    """Build an entry from a row of `SELECTED`, optionally followed by the time at which it was added to the set."""
    path, name, kind, size, disk, mtime, ctime, *added = row
    return FileEntry(
        path=path, name=name, kind=schema.KINDS[kind], size=size, disk_size=disk, mtime=_shown(mtime),
        ctime=_shown(ctime), added_at=_shown(added[0]) if added and added[0] is not None else None,
    )  # fmt: skip


def find_indexed(
    db: apsw.Connection, roots: paths.FileRoots, given: str, field: str = "path", *, follow: bool = False
) -> tuple[str, StoredEntry]:
    """Return the clean path and the entry. A path through a link is resolved, and with `follow` also a path to one.
    Raises InvalidParams if it is outside the roots or not indexed, Denied if it may not be accessed."""
    path = paths.spelled(roots.clean(given, field))
    roots.all.check(paths.to_os(path), field=field)
    found = find_shown(db, path)
    if found is not None and not (follow and found.kind == schema.SYMLINK):
        return path, found
    real = paths.to_text(os.path.realpath(paths.to_os(path)))
    roots.all.check(paths.to_os(real), field=field)
    other = find_shown(db, real)
    if other is not None:
        return real, other
    if found is None:
        roots.real(path, field)
        if find_scanned(db, real) is not None:
            why = "is inside a folder that is shown as one row; `files_index` it with no_ignore to list its content"
            raise InvalidParams(f"`{field}`: {paths.shown(path)} {why}", field=field)
        raise InvalidParams(f"`{field}`: {paths.shown(path)} is not indexed; call `files_index` first", field=field)
    return path, found


def node_uri(path: str) -> str:
    """Return the resource URI of the entry at a clean path."""
    return f"synthesis://nodes{urllib.parse.quote(path)}"


class Order(NamedTuple):
    """Order by a field that clients know; ties are broken by path, so that pages never overlap."""

    field: str
    descending: bool = False

    def sql(self, added: str = "NULL") -> str:
        """Return the `ORDER BY` clause; `added` is the expression for when an entry was added to the sets."""
        column = {"name": key("n.name"), "added_at": added}.get(self.field) or COLUMNS[self.field]
        return f"ORDER BY {column} {'DESC' if self.descending else 'ASC'}, n.path"


BY_PATH = Order("path")


# Criteria of `files_find` and of saved queries


def conditions(wanted: Filter) -> list[Condition]:
    """Return the conditions of a filter. Raises InvalidParams, which names the field."""
    found = []
    if wanted.kind is not None:
        found.append(is_kind(schema.KINDS.index(wanted.kind)))
    if wanted.extension is not None:
        found.append(has_extension(wanted.extension))
    for column, part in (("path", wanted.path_contains), ("name", wanted.name_contains)):
        if part is not None:
            found.append(text_matches(column, part, "contains", case_sensitive=False))
    found += between("size", wanted.min_size, wanted.max_size)
    found += between("mtime", instant(wanted.min_mtime, "min_mtime"), instant(wanted.max_mtime, "max_mtime", end=True))
    return found


def is_kind(kind: int) -> Condition:
    """Match entries of a kind."""
    return Condition("n.kind = ?", (kind,), (Compare("kind", "=", kind),))


def has_extension(given: str) -> Condition:
    """Match an extension, given with or without its dot, case-insensitively; one that contains a dot (`tar.gz`) matches
    the end of the name."""
    wanted = given.removeprefix(".").lower()
    if "." in wanted:
        end = f".{wanted.casefold()}"
        return Condition("n.kind <> 1 AND substr(folded(n.name), -?) = ?", (len(end), end))
    tests = Compare("kind", "<>", schema.DIRECTORY), Compare("extension", "=", wanted)
    return Condition("n.kind <> 1 AND n.extension = ?", (wanted,), tests)


class Select:
    """Selects entries that meet conditions, from the whole index or from some sets."""

    def __init__(self, conditions: Iterable[Condition], sets: Sequence[int] | None = None) -> None:
        """`sets`: ids of resource sets, or None for the whole index."""
        self._conditions = list(conditions)
        self._of_set: list[Condition] = []
        self._bindings: list[object] = []
        self.sets = sets
        self.added = "NULL" if sets is None else "m.added"
        if sets is None:
            self._from = "node n"
        elif len(sets) == 1:
            self._from = "member m JOIN node n ON n.id = m.entry_id"
            self._of_set.append(Condition("m.set_id = ?", (sets[0],)))
        else:
            self._from = (
                "(SELECT entry_id, min(added) AS added FROM member WHERE set_id IN (SELECT value FROM json_each(?))"
                " GROUP BY entry_id) m JOIN node n ON n.id = m.entry_id"
            )
            self._bindings.append(_json(sets))

    def among(self, ids: Sequence[int]) -> Select:
        """Return the same selection from some entries only."""
        select = Select(self._conditions, self.sets)
        if self.sets is None:
            select._from = "json_each(?) c CROSS JOIN node n ON n.id = c.value"
        elif len(self.sets) == 1:
            select._from = f"json_each(?) c CROSS JOIN {self._from.replace('m JOIN', 'm ON m.entry_id = c.value JOIN')}"
        else:
            select._from = (
                "(SELECT entry_id, min(added) AS added FROM json_each(?) c CROSS JOIN member ON entry_id = c.value"
                " WHERE set_id IN (SELECT value FROM json_each(?)) GROUP BY entry_id) m"
                " JOIN node n ON n.id = m.entry_id"
            )
        select._bindings.insert(0, _json(ids))
        return select

    def tests(self) -> list[Compare | Contains] | None:
        """Return the conditions as tests of columns in memory; None if only SQLite can evaluate them."""
        if not all(condition.tests for condition in self._conditions):
            return None
        return [test for condition in self._conditions for test in condition.tests]

    def where(self, condition: Condition) -> None:
        """Add a condition."""
        self._conditions.append(condition)

    def run(self, db: apsw.Connection, columns: str, tail: str = "", bindings: Sequence[object] = ()) -> Iterator[Row]:
        """Iterate over the rows."""
        conditions = [*self._of_set, *self._conditions]
        where = " AND ".join(condition.sql for condition in conditions) or "1"
        given = [*self._bindings, *(value for condition in conditions for value in condition.bindings), *bindings]
        return iter(db.execute(f"SELECT {columns} FROM {self._from} WHERE {where} {tail}", given))

    def totals(self, db: apsw.Connection) -> tuple[int, int]:
        """Return the number of entries, and the total size of those that are not directories."""
        (count, size), *_ = self.run(db, "count(*), coalesce(sum(CASE n.kind WHEN 1 THEN 0 ELSE n.size END), 0)")
        return count, size

    def first(
        self, db: apsw.Connection, ordering: Order, *, limit: int, offset: int, few: int = FEW
    ) -> tuple[int, int, Iterator[Row]]:
        """Return the number of entries, the total size of those that are not directories, and the rows of a page.

        The rows consist of `SELECTED` and the time at which the entry was added to the sets. The page ends early if
        more entries would never fit into an answer.

        Args:
            few: with at most this many matches their ids are held, and the entries are not tested again for the page.
        """
        limit = min(limit, ENOUGH)
        # With few matches, each entry is tested only once: text conditions cost the most.
        ids = list(itertools.islice(self.run(db, f"n.id, {self.added}, n.kind, n.size"), few + 1))
        if len(ids) > few:
            tail = f"{ordering.sql(self.added)} LIMIT ? OFFSET ?"
            return *self.totals(db), self.run(db, f"{SELECTED}, {self.added}", tail, (limit, offset))
        found = "SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS added FROM json_each(?)"
        rows = db.execute(
            f"SELECT {SELECTED}, m.added FROM ({found}) m CROSS JOIN node n ON n.id = m.id {ordering.sql('m.added')}"
            " LIMIT ? OFFSET ?",
            (msgspec.json.encode([row[:2] for row in ids]).decode(), limit, offset),
        )
        return len(ids), sum(size for _, _, kind, size in ids if kind != schema.DIRECTORY), rows


def _json(ids: Sequence[int]) -> str:
    return msgspec.json.encode(ids).decode()


Found = tuple[int, int, Iterator[Row]]
"""What `Select.first` returns."""


def first_of(
    columns: Columns, db: apsw.Connection, select: Select, order: Order, *, limit: int, offset: int
) -> Found | None:
    """Like `Select.first`, from the columns in memory; None if there are too few entries, the columns cannot decide, or
    are not loaded."""
    tests = select.tests()
    if tests is None or order.field == "added_at" or not _is_large(db, select.sets):
        return None
    texts = [test for test in tests if isinstance(test, Contains)]
    others = [test for test in tests if isinstance(test, Compare)]
    needed = {"shown", *columns_of(others), *(f"{SET}{id_}" for id_ in select.sets or ())}
    needed |= {"name", "folder", "above"} if texts else {"kind", "size", order.sql()}
    view = columns.view(db, needed)
    if view is None:
        return None
    mask = view.matching(others, select.sets)
    if texts:
        ids = view.candidates(mask, texts)
        if ids is None:
            return None
        return select.among([*ids, *view.changed]).first(db, order, limit=limit, offset=offset)
    totals = view.totals(mask)
    limit = min(limit, ENOUGH)
    if totals is None or offset + limit > FEW:
        return None
    count, size = totals
    ids = view.first(mask, order.sql(), offset + limit)
    if not view.changed:
        return count, size, _in_order(db, select, ids[offset:])
    changed = list(select.among(view.changed).run(db, "n.id, n.kind, n.size"))
    tail = f"{order.sql(select.added)} LIMIT ? OFFSET ?"
    rows = select.among([*ids, *(row[0] for row in changed)]).run(
        db, f"{SELECTED}, {select.added}", tail, (limit, offset)
    )
    return count + len(changed), size + sum(row[2] for row in changed if row[1] != schema.DIRECTORY), rows


def columns_of(tests: Iterable[Compare]) -> Iterator[str]:
    """Yield the names of the columns that tests need."""
    for test in tests:
        yield from ("above", "kind") if test.column == "under" else (test.column,)


def _is_large(db: apsw.Connection, sets: Sequence[int] | None) -> bool:
    if sets is None:
        return is_large(db, "entry")
    return is_large(db, "member WHERE set_id IN (SELECT value FROM json_each(?))", (_json(sets),))


def _in_order(db: apsw.Connection, select: Select, ids: Sequence[int]) -> Iterator[Row]:
    """Yield the rows of entries, a few at a time, since most answers end before the last."""
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        rows = {id_: row for id_, *row in select.among(some).run(db, f"n.id, {SELECTED}, {select.added}")}
        yield from (tuple(rows[id_]) for id_ in some)


def page(
    columns: Columns, db: apsw.Connection, select: Select, order: Order, *, limit: int, offset: int
) -> tuple[EntryPage, int]:
    """Return a page of the matching entries, and the total size of all matching files."""
    found = first_of(columns, db, select, order, limit=limit, offset=offset)
    total, size, rows = found or select.first(db, order, limit=limit, offset=offset)
    entries, cut = fitting(map(entry_of, rows))
    end = offset + len(entries)
    summary = (
        f"{total} entries match, {size} bytes in files; truncated to {len(entries)} to fit into {MAX_BYTES} bytes."
        f" Continue with offset={end}, set a limit, or narrow the search."
    )
    shown = EntryPage(
        entries=entries, total_count=total, returned_count=len(entries), offset=offset, limit=limit,
        has_more=end < total, summary=summary if cut else None,
    )  # fmt: skip
    return shown, size


def fitting(items: Iterable[T], *, used: int = 0) -> tuple[list[T], bool]:
    """Return the first items that fit into an answer as JSON, of which `used` bytes are taken, and whether any were
    left out."""
    kept: list[T] = []
    room = MAX_BYTES - _ROOM - used
    for item in items:
        room -= len(msgspec.json.encode(item)) + 1
        if room < 0:
            return kept, True
        kept.append(item)
    return kept, False
