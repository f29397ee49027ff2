"""The tools that walk the graph of resource sets and find entries in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import apsw
import msgspec

from proto.errors import InvalidParams
from proto.ops.files.resources import (
    EXACT_FIELDS,
    METRIC_FIELDS,
    SUMS,
    TEXT_FIELDS,
    TIME_FIELDS,
    Children,
    EntryPage,
    ParentNode,
    Parents,
    ResourceChildren,
    ResourceFuzzyMatch,
    ResourceIs,
    ResourceMetricRange,
    ResourceParent,
    ResourceSearch,
    ResourceSum,
    ResourceTimeRange,
    SetNode,
    SumPart,
    SumResult,
)
from proto.ops.files.shared import FileEntry
from services.files import paths
from services.files.core import Core
from services.files.query import filters
from services.files.query.entries import (
    BY_PATH,
    MAX_BYTES,
    SELECTED,
    Order,
    Select,
    entry_of,
    fitting,
    instant,
    known,
    page,
)
from services.files.query.matching import COLUMNS, Condition, between, text_matches
from services.files.sets import sets, sums
from services.files.store import schema
from services.runtime.handlers import Context, handles

T = TypeVar("T")

ENTRIES_OF_A_SET = 100
"""Answered with a set."""


class SetSearch:
    """The operations of `proto.ops.files.resources`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @handles(ResourceChildren)
    async def children(self, params: ResourceChildren, ctx: Context) -> Children:
        def query(db: apsw.Connection) -> Children:
            start = sets.find(db, params.name)
            below = sets.around(db, start, down=True, depth=params.depth)
            names = sets.names(db, [id_ for id_, _ in below])
            nodes = []
            for id_, depth in below:
                entry_count, child_count = sets.counts(db, id_)
                nodes.append(
                    SetNode(
                        name=names[id_],
                        entry_count=entry_count,
                        child_count=child_count,
                        depth=depth,
                        entries=first_entries(db, id_) if params.include_entries else None,
                    )
                )
            own = first_entries(db, start) if params.include_entries else None
            shown, summary = _as_many_as_fit(nodes, len(msgspec.json.encode(own)))
            return Children(resource_set=params.name, children=shown, entries=own, summary=summary)

        return await self._core.database.read(query)

    @handles(ResourceParent)
    async def parent(self, params: ResourceParent, ctx: Context) -> Parents:
        def query(db: apsw.Connection) -> Parents:
            above = sets.around(db, sets.find(db, params.name), down=False, depth=params.depth)
            names = sets.names(db, [id_ for id_, _ in above])
            shown, summary = _as_many_as_fit([ParentNode(name=names[id_], depth=depth) for id_, depth in above])
            return Parents(resource_set=params.name, parents=shown, summary=summary)

        return await self._core.database.read(query)

    @handles(ResourceSum)
    async def total(self, params: ResourceSum, ctx: Context) -> SumResult:
        metric = known(params.metric, SUMS, "metric")

        def query(db: apsw.Connection) -> SumResult:
            return sum_of(db, params.name, metric, include_children=params.include_children, depth=params.depth)

        return await self._core.database.read(query)

    async def _find(
        self,
        params: ResourceTimeRange | ResourceMetricRange | ResourceIs | ResourceFuzzyMatch | ResourceSearch,
        conditions: Sequence[Condition],
        ordering: Order,
        added: tuple[int | None, int | None] = (None, None),
    ) -> EntryPage:
        """`added`: the range of when an entry came into the sets, both ends inclusive."""

        def query(db: apsw.Connection) -> EntryPage:
            select = Select(conditions, _sets(db, params.name, params.include_children))
            select.where_added(*added)
            return page(db, select, params.name, ordering, limit=params.limit, offset=params.offset)

        return await self._core.database.read(query)

    @handles(ResourceTimeRange)
    async def time_range(self, params: ResourceTimeRange, ctx: Context) -> EntryPage:
        known(params.field, TIME_FIELDS, "field")
        times = instant(params.min, "min"), instant(params.max, "max", end=True)
        ordering = Order(params.field, descending=True)
        if params.field == "added_at":
            return await self._find(params, (), ordering, times)
        return await self._find(params, between(params.field, *times), ordering)

    @handles(ResourceMetricRange)
    async def metric_range(self, params: ResourceMetricRange, ctx: Context) -> EntryPage:
        metric = known(params.metric, METRIC_FIELDS, "metric")
        return await self._find(params, between(metric, params.min, params.max), Order(metric, descending=True))

    @handles(ResourceIs)
    async def exact(self, params: ResourceIs, ctx: Context) -> EntryPage:
        return await self._find(params, [equals(params.field, params.value)], BY_PATH)

    @handles(ResourceFuzzyMatch)
    async def fuzzy(self, params: ResourceFuzzyMatch, ctx: Context) -> EntryPage:
        field = known(params.field, TEXT_FIELDS, "field")
        condition = text_matches(field, params.pattern, params.mode, case_sensitive=params.case_sensitive)
        return await self._find(params, [condition], BY_PATH)

    @handles(ResourceSearch)
    async def search(self, params: ResourceSearch, ctx: Context) -> EntryPage:
        return await self._find(params, filters.conditions(params), filters.ordering(params))


def _as_many_as_fit(nodes: list[T], used: int = 0) -> tuple[list[T], str | None]:
    """Nodes of the graph, where `used` bytes of the answer are taken already; and in words what was left out."""
    shown, cut = fitting(nodes, used=used)
    return shown, (
        f"{len(nodes)} sets; these are the {len(shown)} nearest, as many as fit into {MAX_BYTES} bytes. Go on from one"
        " of them, with a smaller depth, or without entries."
        if cut
        else None
    )


def _sets(db: apsw.Connection, name: str, include_children: bool) -> Sequence[int]:
    start = sets.find(db, name)
    return sets.with_children(db, start) if include_children else [start]


def first_entries(db: apsw.Connection, set_id: int, limit: int = ENTRIES_OF_A_SET, offset: int = 0) -> list[FileEntry]:
    """The first entries of a set itself, by path."""
    select = Select((), [set_id])
    tail = f"{BY_PATH.sql()} LIMIT ? OFFSET ?"
    return fitting(map(entry_of, select.run(db, f"{SELECTED}, {select.added}", tail, (limit, offset))))[0]


def sum_of(
    db: apsw.Connection, name: str, metric: str, *, include_children: bool, depth: int | None
) -> SumResult:  # fmt: skip
    """A metric over a set and those below it, part by part."""
    start = sets.find(db, name)
    parts: list[Sequence[int]] = [[start]]
    labels = [name]
    if include_children and depth != 0:
        children = [id_ for id_, _ in sets.around(db, start, down=True, depth=1)]
        labels += sets.names(db, children).values()
        parts += (sets.with_children(db, child, None if depth is None else depth - 1) for child in children)
    values = sums.by_part(db, parts, metric)
    own, _ = sets.counts(db, start)
    # A set that only holds others has no part of its own.
    first = 0 if own or len(parts) == 1 else 1
    breakdown = [SumPart(name=label, value=value) for label, value in zip(labels, values, strict=True)][first:]
    return SumResult(resource_set=name, metric=metric, value=sum(values), breakdown=breakdown)


def equals(field: str, value: str | int) -> Condition:
    """A field with exactly this value. Raises InvalidParams where there is no such field, or it never has it."""
    known(field, EXACT_FIELDS, "field")
    if field == "kind":
        return filters.is_kind(schema.KINDS[schema.KINDS.index(known(str(value), schema.KINDS, "value"))])
    if field in ("mtime", "ctime"):
        return Condition(f"{COLUMNS[field]} = ?", (instant(value, "value"),))
    if field in ("size", "disk_size", "inode", "links"):
        try:
            return Condition(f"{COLUMNS[field]} = ?", (int(value),))
        except ValueError:
            raise InvalidParams(f"`value`: {str(value)[:100]!r} is no number, as {field} is", field="value") from None
    text = str(value)
    if field == "extension":
        return filters.has_extension(text)
    if field == "parent":
        return Condition("n.folder = ?", (paths.as_folder(text),))
    if field == "path":
        return Condition("n.folder = ? AND n.name = ?", paths.split(text.rstrip("/") or "/"))
    return Condition(f"{COLUMNS[field]} = ?", (text,))
