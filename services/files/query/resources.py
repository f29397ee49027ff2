"""The tools that walk the graph of resource sets and find entries in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import apsw
import msgspec

from proto.errors import InvalidParams
from proto.ops.files.resources import (
    Children,
    ExactField,
    Metric,
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
    SetEntryPage,
    SetNode,
    SumPart,
    SumResult,
)
from proto.ops.files.shared import FileEntry
from services.files import paths
from services.files.core import Core
from services.files.query import sets
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
    instant,
    ordering,
    page,
)
from services.files.query.matching import COLUMNS, Condition, between, text_matches
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
            nodes = []
            for id_, depth in sets.around(db, start, down=True, depth=params.depth):
                entries, children = sets.counts(db, id_)
                first = first_entries(db, id_) if params.include_entries else None
                nodes.append(
                    SetNode(
                        name=sets.name(db, id_), entry_count=entries, child_count=children, depth=depth, entries=first
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
            shown, summary = _as_many_as_fit([ParentNode(name=sets.name(db, id_), depth=depth) for id_, depth in above])
            return Parents(resource_set=params.name, parents=shown, summary=summary)

        return await self._core.database.read(query)

    @handles(ResourceSum)
    async def total(self, params: ResourceSum, ctx: Context) -> SumResult:
        return await self._core.database.read(
            lambda db: sum_of(db, params.name, params.metric, params.depth if params.include_children else 0)
        )

    async def _find(
        self,
        params: ResourceTimeRange | ResourceMetricRange | ResourceIs | ResourceFuzzyMatch | ResourceSearch,
        criteria: Sequence[Condition],
        order: Order,
        added: tuple[int | None, int | None] = (None, None),
    ) -> SetEntryPage:
        """`added`: the range of when an entry came into the sets, both ends inclusive."""

        def query(db: apsw.Connection) -> SetEntryPage:
            start = sets.find(db, params.name)
            select = Select(criteria, sets.with_children(db, start) if params.include_children else [start])
            select.where_added(*added)
            found, _ = page(db, select, order, limit=params.limit, offset=params.offset)
            return SetEntryPage(resource_set=params.name, **found)

        return await self._core.database.read(query)

    @handles(ResourceTimeRange)
    async def time_range(self, params: ResourceTimeRange, ctx: Context) -> SetEntryPage:
        times = instant(params.min, "min"), instant(params.max, "max", end=True)
        ordering = Order(params.field, descending=True)
        if params.field == "added_at":
            return await self._find(params, (), ordering, times)
        return await self._find(params, between(params.field, *times), ordering)

    @handles(ResourceMetricRange)
    async def metric_range(self, params: ResourceMetricRange, ctx: Context) -> SetEntryPage:
        condition = between(params.metric, params.min, params.max)
        return await self._find(params, condition, Order(params.metric, descending=True))

    @handles(ResourceIs)
    async def exact(self, params: ResourceIs, ctx: Context) -> SetEntryPage:
        return await self._find(params, [equals(params.field, params.value)], BY_PATH)

    @handles(ResourceFuzzyMatch)
    async def fuzzy(self, params: ResourceFuzzyMatch, ctx: Context) -> SetEntryPage:
        condition = text_matches(params.field, params.pattern, params.mode, case_sensitive=params.case_sensitive)
        return await self._find(params, [condition], BY_PATH)

    @handles(ResourceSearch)
    async def search(self, params: ResourceSearch, ctx: Context) -> SetEntryPage:
        return await self._find(params, conditions(params), ordering(params))


def _as_many_as_fit(nodes: list[T], used: int = 0) -> tuple[list[T], str | None]:
    """Nodes of the graph, where `used` bytes of the answer are taken already; and in words what was left out."""
    shown, cut = fitting(nodes, used=used)
    return shown, (
        f"{len(nodes)} sets; these are the {len(shown)} nearest, as many as fit into {MAX_BYTES} bytes. Go on from one"
        " of them, with a smaller depth, or without entries."
        if cut
        else None
    )


def first_entries(db: apsw.Connection, set_id: int, limit: int = ENTRIES_OF_A_SET, offset: int = 0) -> list[FileEntry]:
    """The first entries of a set itself, by path."""
    select = Select((), [set_id])
    tail = f"{BY_PATH.sql()} LIMIT ? OFFSET ?"
    return fitting(map(entry_of, select.run(db, f"{SELECTED}, {select.added}", tail, (limit, offset))))[0]


def sum_of(db: apsw.Connection, name: str, metric: Metric, depth: int | None) -> SumResult:
    """A metric over a set and those so many levels below it, part by part; None is all levels."""
    start = sets.find(db, name)
    children = [id_ for id_, _ in sets.around(db, start, down=True, depth=1)] if depth != 0 else []
    levels = None if depth is None else depth - 1
    parts = [[start], *(sets.with_children(db, child, levels) for child in children)]
    values = sets.sums_by_part(db, parts, metric)
    breakdown = [
        SumPart(name=sets.name(db, id_), value=value) for id_, value in zip((start, *children), values, strict=True)
    ]
    own, _ = sets.counts(db, start)
    # A set that only holds others has no part of its own.
    shown = breakdown if own or not children else breakdown[1:]
    return SumResult(resource_set=name, metric=metric, value=sum(values), breakdown=shown)


def equals(field: ExactField, value: str | int) -> Condition:
    """A field with exactly this value. Raises InvalidParams where it never has it."""
    if field == "kind":
        if value not in schema.KINDS:
            there = ", ".join(schema.KINDS)
            raise InvalidParams(f"`value`: there is no {str(value)[:100]!r}; there are: {there}", field="value")
        return Condition("n.kind = ?", (schema.KINDS.index(value),))
    if field in ("mtime", "ctime"):
        return Condition(f"{COLUMNS[field]} = ?", (instant(value, "value"),))
    if field in ("size", "disk_size", "inode", "links"):
        try:
            return Condition(f"{COLUMNS[field]} = ?", (int(value),))
        except ValueError:
            raise InvalidParams(f"`value`: {str(value)[:100]!r} is no number, as {field} is", field="value") from None
    text = str(value)
    if field == "extension":
        return has_extension(text)
    if field == "parent":
        return Condition("n.folder = ?", (paths.as_folder(text),))
    if field == "path":
        return Condition("n.folder = ? AND n.name = ?", paths.split(text.rstrip("/") or "/"))
    return Condition(f"{COLUMNS[field]} = ?", (text,))
