"""Metadata filters as SQL.  A filtered search considers every item that the filter admits, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import apsw
import msgspec
import numpy as np

from proto.errors import InvalidParams
from proto.ops.retrieve import Filter, Value
from services.retrieve.index.vectors import ItemIds

_GREATEST = "\U0010ffff"


class Where(msgspec.Struct, frozen=True):
    """A query (`groups`) that selects the admitted `group_id`s, and its `arguments`."""

    groups: str
    arguments: tuple[str | int | float, ...]


def compile_filters(filters: Sequence[Filter]) -> Where | None:
    """Combine `filters` into one condition; None if there are no filters."""
    if not filters:
        return None
    queries: list[str] = []
    arguments: list[str | int | float] = []
    for each in filters:
        conditions = ["field = ?"]
        arguments.append(each.field)
        if each.any_of is not None:
            conditions.append(f"value IN ({', '.join('?' * len(each.any_of))})")
            arguments.extend(storable(value) for value in each.any_of)
        if each.prefix is not None:
            conditions.append("value >= ? AND value < ? AND typeof(value) = 'text'")
            arguments.extend((each.prefix, each.prefix + _GREATEST))
        # Numbers only: SQLite orders every text above every number.
        for sign, bound in ((">=", each.at_least), ("<=", each.at_most)):
            if bound is not None:
                conditions.append(f"value {sign} ? AND typeof(value) != 'text'")
                arguments.append(bound)
        queries.append(f"SELECT group_id FROM group_values WHERE {' AND '.join(conditions)}")
    return Where(" INTERSECT ".join(queries), tuple(arguments))


def allowed_items(db: apsw.Connection, where: Where) -> ItemIds:
    """Return the ids of the items that a filter admits, sorted."""
    return select_ids(db, f"SELECT item_id FROM items WHERE group_id IN ({where.groups})", where.arguments)


def select_ids(db: apsw.Connection, query: str, arguments: Sequence[apsw.SQLiteValue] = ()) -> ItemIds:
    """Return the column `item_id` of `query`, sorted; a million ids take a tenth of a second.

    SQLite concatenates the ids and numpy parses the result. That is four times faster than fetching rows, and releases
    the GIL meanwhile.
    """
    text = db.execute(f"SELECT group_concat(item_id) FROM ({query})", arguments).get
    return np.sort(np.fromstring(text or "", dtype=np.int64, sep=","))


def filterable(metadata: Mapping[str, Value]) -> Iterator[tuple[str, str | int | float]]:
    """Yield the `(field, value)` rows by which filters match a group's metadata."""
    for field, value in metadata.items():
        for single in value if isinstance(value, list) else (value,):
            if single is not None:
                yield field, storable(single)


def storable(value: str | int | float) -> str | int | float:
    """Convert `value` to what SQLite can store: 64-bit integers, and booleans as 0 and 1."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value


def check_metadata(metadata: Mapping[str, Value], field: str) -> None:
    """Raise InvalidParams if a number cannot be represented in JSON."""
    for name, value in metadata.items():
        if isinstance(value, float) and value - value != 0:
            raise InvalidParams(f"parameter `{field}.{name}`: {value} is not a finite number", field=f"{field}.{name}")
