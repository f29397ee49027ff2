"""The tools that walk the graph of resource sets and find entries in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import apsw
import msgspec
from msgspec import structs

from proto.errors import InvalidParams
from services.files import paths
from services.files.core import Family, reads
from services.files.operations import resources as ops
from services.files.operations.shared import FileEntry
from services.files.query import sets
from services.files.query.columns import Columns
from services.files.query.entries import (
    BY_PATH,
    MAX_BYTES,
    SELECTED,
    Order,
    Select,
    conditions,
    entry_of,
    fitting,
    has_extension,
    is_kind,
    page,
)
from services.files.query.matching import COLUMNS, Condition, between, compared, text_matches
from services.files.store import schema
from services.files.store.sql import fetch_one
from services.shared.times import instant

T = TypeVar("T")

ENTRIES_OF_A_SET = 100
"""Number of entries returned with a set."""


class SetSearchTools(Family):
    """The operations of `services.files.operations.resources`."""

    @reads(ops.ResourceChildren)
    def children(self, db: apsw.Connection, params: ops.ResourceChildren) -> ops.Children:
        start = sets.find(db, params.name)
        nodes = []
        for id_, depth in sets.around(db, start, down=True, depth=params.depth):
            entries, children = sets.counts(db, id_)
            first = first_entries(db, id_) if params.include_entries else None
            nodes.append(
                ops.SetNode(
                    name=sets.name(db, id_), entry_count=entries, child_count=children, depth=depth, entries=first
                )
            )
        own = first_entries(db, start) if params.include_entries else None
        shown, summary = _as_many_as_fit(nodes, len(msgspec.json.encode(own)))
        return ops.Children(resource_set=params.name, children=shown, entries=own, summary=summary)

    @reads(ops.ResourceParent)
    def parent(self, db: apsw.Connection, params: ops.ResourceParent) -> ops.Parents:
        above = sets.around(db, sets.find(db, params.name), down=False, depth=params.depth)
        shown, summary = _as_many_as_fit([ops.ParentNode(name=sets.name(db, id_), depth=depth) for id_, depth in above])
        return ops.Parents(resource_set=params.name, parents=shown, summary=summary)

    @reads(ops.ResourceSum)
    def total(self, db: apsw.Connection, params: ops.ResourceSum) -> ops.SumResult:
        return sum_of(
            self._core.columns, db, params.name, params.metric, params.depth if params.include_children else 0
        )

    @reads(ops.ResourceTimeRange)
    def time_range(self, db: apsw.Connection, params: ops.ResourceTimeRange) -> ops.SetEntryPage:
        times = instant(params.min, "min"), instant(params.max, "max", end=True)
        order = Order(params.field, descending=True)
        return _found(self._core.columns, db, params, between(params.field, *times), order)

    @reads(ops.ResourceMetricRange)
    def metric_range(self, db: apsw.Connection, params: ops.ResourceMetricRange) -> ops.SetEntryPage:
        condition = between(params.metric, params.min, params.max)
        return _found(self._core.columns, db, params, condition, Order(params.metric, descending=True))

    @reads(ops.ResourceIs)
    def exact(self, db: apsw.Connection, params: ops.ResourceIs) -> ops.SetEntryPage:
        return _found(self._core.columns, db, params, [equals(params.field, params.value)])

    @reads(ops.ResourceFuzzyMatch)
    def fuzzy(self, db: apsw.Connection, params: ops.ResourceFuzzyMatch) -> ops.SetEntryPage:
        condition = text_matches(params.field, params.pattern, params.mode, case_sensitive=params.case_sensitive)
        return _found(self._core.columns, db, params, [condition])

    @reads(ops.ResourceSearch)
    def search(self, db: apsw.Connection, params: ops.ResourceSearch) -> ops.SetEntryPage:
        return _found(self._core.columns, db, params, conditions(params), Order(params.sort_by, params.sort_desc))


def _found(
    columns: Columns,
    db: apsw.Connection,
    params: ops.Wanted | ops.ResourceSearch,
    criteria: Sequence[Condition],
    order: Order = BY_PATH,
) -> ops.SetEntryPage:
    """Return a page of the entries that meet the criteria."""
    start = sets.find(db, params.name)
    select = Select(criteria, sets.with_children(db, start) if params.include_children else [start])
    found, _ = page(columns, db, select, order, limit=params.limit, offset=params.offset)
    return ops.SetEntryPage(resource_set=params.name, **structs.asdict(found))


def _as_many_as_fit(nodes: list[T], used: int = 0) -> tuple[list[T], str | None]:
    """Return as many nodes as fit into an answer, of which `used` bytes are taken, and a summary if any were left
    out."""
    shown, cut = fitting(nodes, used=used)
    return shown, (
        f"{len(nodes)} sets; truncated to the {len(shown)} nearest to fit into {MAX_BYTES} bytes. Continue from one"
        " of them, or use a smaller depth or no entries."
        if cut
        else None
    )


def first_entries(db: apsw.Connection, set_id: int, limit: int = ENTRIES_OF_A_SET, offset: int = 0) -> list[FileEntry]:
    """Return the first entries of a set itself, ordered by path."""
    select = Select((), [set_id])
    tail = f"{BY_PATH.sql()} LIMIT ? OFFSET ?"
    return fitting(map(entry_of, select.run(db, f"{SELECTED}, {select.added}", tail, (limit, offset))))[0]


def sum_of(columns: Columns, db: apsw.Connection, name: str, metric: ops.Metric, depth: int | None) -> ops.SumResult:
    """Sum a metric over a set and `depth` levels below it (None: all), with the share of each part."""
    start = sets.find(db, name)
    children = [id_ for id_, _ in sets.around(db, start, down=True, depth=1)] if depth != 0 else []
    levels = None if depth is None else depth - 1
    parts = [[start], *(sets.with_children(db, child, levels) for child in children)]
    values = sets.sums_by_part(columns, db, parts, metric)
    breakdown = [
        ops.SumPart(name=sets.name(db, id_), value=value) for id_, value in zip((start, *children), values, strict=True)
    ]
    own = fetch_one(db, "SELECT 1 FROM member WHERE set_id = ? LIMIT 1", (start,)) is not None
    # A set that contains only other sets has no part of its own.
    shown = breakdown if own or not children else breakdown[1:]
    return ops.SumResult(resource_set=name, metric=metric, value=sum(values), breakdown=shown)


def equals(field: ops.ExactField, value: str | int) -> Condition:
    """Match a field with exactly this value. Raises InvalidParams if the field cannot have it."""
    if field == "kind":
        if value not in schema.KINDS:
            there = ", ".join(schema.KINDS)
            raise InvalidParams(f"`value`: unknown kind {str(value)[:100]!r}; there are: {there}", field="value")
        return is_kind(schema.KINDS.index(value))
    if field in ("mtime", "ctime"):
        at = instant(value, "value")
        return Condition(f"{COLUMNS[field]} = ?", (at,), compared(COLUMNS[field], "=", at))
    if field in ("size", "disk_size", "inode", "links"):
        try:
            return Condition(f"{COLUMNS[field]} = ?", (int(value),), compared(COLUMNS[field], "=", int(value)))
        except ValueError:
            raise InvalidParams(f"`value`: {str(value)[:100]!r} is not a number like {field}", field="value") from None
    text = str(value)
    if field == "extension":
        return has_extension(text)
    if field == "parent":
        return Condition("n.folder = ?", (paths.as_folder(text),))
    if field == "path":
        return Condition("n.folder = ? AND n.name = ?", paths.split(text.rstrip("/") or "/"))
    return Condition(f"{COLUMNS[field]} = ?", (text,))
