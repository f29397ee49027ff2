"""Entries that meet conditions, as answers: criteria of clients, orders, pages, and lists too long to be sent whole."""

from __future__ import annotations

import itertools
import os
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import apsw
import msgspec

from linckia.proto.errors import InvalidParams
from linckia.proto.ops.files.shared import EntryPage, FileEntry, Filter
from linckia.services.files import paths
from linckia.services.files.index.tree import Stored, find_scanned, find_shown
from linckia.services.files.query.matching import COLUMNS, Condition, between, text_matches
from linckia.services.files.store import schema
from linckia.services.files.store.sql import Row, key
from linckia.services.runtime import times
from linckia.services.runtime.times import instant

T = TypeVar("T")

MAX_BYTES = 512_000
"""Of a list in an answer, as JSON."""

_ROOM = 4_000
"""Of that, for what stands around the list."""

ENOUGH = MAX_BYTES // 100
"""Entries of a page: more never fit, since the least of them takes more than that as JSON."""

FEW = 10_000
"""Entries that match, of which the ids are held."""

SELECTED = "n.path, n.name, n.kind, n.size, n.disk, n.mtime, n.ctime"


def entry_of(row: Row) -> FileEntry:
    """An entry of a row of `SELECTED`, with when it was added to the set as its last column where there is one."""
    path, name, kind, size, disk, mtime, ctime, *added = row
    return FileEntry(
        path=path, name=name, kind=schema.KINDS[kind], size=size, disk_size=disk, mtime=times.rfc3339(mtime),
        ctime=times.rfc3339(ctime), added_at=times.rfc3339_or_none(added[0] if added else None),
    )  # fmt: skip


def find_indexed(
    db: apsw.Connection, roots: paths.FileRoots, given: str, field: str = "path", *, follow: bool = False
) -> tuple[str, Stored]:
    """The clean path and the entry; a path through a link, or with `follow` to one, is that of what it leads to. Raises
    InvalidParams where it is outside the roots or not in the index, Denied where it may not be reached."""
    path = paths.spelled(paths.clean(given, field))
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
            why = "lies in a folder that stands as one row; `index` with no_ignore lists what is in it"
            raise InvalidParams(f"`{field}`: {paths.shown(path)} {why}", field=field)
        raise InvalidParams(f"`{field}`: {paths.shown(path)} is not in the index; `index` takes it in", field=field)
    return path, found


def node_uri(path: str) -> str:
    """The entry at a clean path as a resource."""
    return f"synthesis://nodes{urllib.parse.quote(path)}"


class Order(NamedTuple):
    """By a field that clients know; entries alike are by path, so that pages never overlap."""

    field: str
    descending: bool = False

    def sql(self, added: str = "NULL") -> str:
        """The `ORDER BY`, given the expression for when an entry came into the sets."""
        column = {"name": key("n.name"), "added_at": added}.get(self.field) or COLUMNS[self.field]
        return f"ORDER BY {column} {'DESC' if self.descending else 'ASC'}, n.path"


BY_PATH = Order("path")


# The criteria of `resource-search` and of saved queries


def conditions(wanted: Filter) -> list[Condition]:
    """All of them. Raises InvalidParams, which names the field."""
    found = []
    if wanted.kind is not None:
        found.append(Condition("n.kind = ?", (schema.KINDS.index(wanted.kind),)))
    if wanted.extension is not None:
        found.append(has_extension(wanted.extension))
    for column, part in (("path", wanted.path_contains), ("name", wanted.name_contains)):
        if part is not None:
            found.append(text_matches(column, part, "contains", case_sensitive=False))
    found += between("size", wanted.min_size, wanted.max_size)
    found += between("mtime", instant(wanted.min_mtime, "min_mtime"), instant(wanted.max_mtime, "max_mtime", end=True))
    return found


def has_extension(given: str) -> Condition:
    """With or without its dot, in either case; one with a dot inside (`tar.gz`) is the end of the name."""
    wanted = given.removeprefix(".").lower()
    if "." in wanted:
        end = f".{wanted.casefold()}"
        return Condition("n.kind <> 1 AND substr(folded(n.name), -?) = ?", (len(end), end))
    return Condition("n.kind <> 1 AND n.extension = ?", (wanted,))


class Select:
    """Entries that meet conditions, of the whole index or of some sets."""

    def __init__(self, conditions: Iterable[Condition], sets: Sequence[int] | None = None) -> None:
        """`sets`: ids of resource sets; None is the whole index."""
        self._conditions = list(conditions)
        self._of_set: list[Condition] = []
        self._bindings: list[object] = []
        self.sets = sets
        self.added = "NULL"
        if sets is None:
            self._from = "node n"
        elif len(sets) == 1:
            self._from = "member m JOIN node n ON n.id = m.entry_id"
            self._of_set.append(Condition("m.set_id = ?", (sets[0],)))
            self.added = "m.added"
        else:
            self._from = (
                "(SELECT entry_id, min(added) AS added FROM member WHERE set_id IN (SELECT value FROM json_each(?))"
                " GROUP BY entry_id) m JOIN node n ON n.id = m.entry_id"
            )
            self._bindings.append(msgspec.json.encode(list(sets)).decode())
            self.added = "m.added"

    def where(self, condition: Condition) -> None:
        """One more condition."""
        self._conditions.append(condition)

    def run(self, db: apsw.Connection, columns: str, tail: str = "", bindings: Sequence[object] = ()) -> Iterator[Row]:
        """The rows, one by one."""
        conditions = [*self._of_set, *self._conditions]
        where = " AND ".join(condition.sql for condition in conditions) or "1"
        given = [*self._bindings, *(value for condition in conditions for value in condition.bindings), *bindings]
        return iter(db.execute(f"SELECT {columns} FROM {self._from} WHERE {where} {tail}", given))

    def totals(self, db: apsw.Connection) -> tuple[int, int]:
        """How many there are, and how many bytes those have that are not directories."""
        (count, size), *_ = self.run(db, "count(*), coalesce(sum(CASE n.kind WHEN 1 THEN 0 ELSE n.size END), 0)")
        return count, size

    def first(
        self, db: apsw.Connection, ordering: Order, *, limit: int, offset: int, few: int = FEW
    ) -> tuple[int, int, Iterator[Row]]:
        """How many there are, how many bytes those have that are not directories, and the rows of a page, as
        `SELECTED` and when they came into the sets; the page ends early where more would never fit into an answer.

        Args:
            few: matches up to which their ids are held, and the entries are not tested again for the page.
        """
        limit = min(limit, ENOUGH)
        # Where few match, each entry is tested once only: conditions on text cost most.
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


def page(db: apsw.Connection, select: Select, order: Order, *, limit: int, offset: int) -> tuple[EntryPage, int]:
    """One page of the entries that match, and how many bytes there are in files."""
    total, size, rows = select.first(db, order, limit=limit, offset=offset)
    entries, cut = fitting(map(entry_of, rows))
    end = offset + len(entries)
    summary = (
        f"{total} entries match, {size} bytes in files; these are {len(entries)} of them, as many as fit into"
        f" {MAX_BYTES} bytes. Go on with offset={end}, set a limit, or narrow the search."
    )
    found = EntryPage(
        entries=entries, total_count=total, returned_count=len(entries), offset=offset, limit=limit,
        has_more=end < total, summary=summary if cut else None,
    )  # fmt: skip
    return found, size


def fitting(items: Iterable[T], *, used: int = 0) -> tuple[list[T], bool]:
    """As many items, from the first, as fit into an answer as JSON, of which `used` bytes are taken; and whether some
    were left out."""
    kept: list[T] = []
    room = MAX_BYTES - _ROOM - used
    for item in items:
        room -= len(msgspec.json.encode(item)) + 1
        if room < 0:
            return kept, True
        kept.append(item)
    return kept, False
