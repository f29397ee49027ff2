"""The first of very many entries in an order, without sorting all of them.

Entries alike are by path. What cannot be among the first is put aside by numpy; only the rest is compared as text.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from services.files.column_cache.names import Rows

if TYPE_CHECKING:
    from services.files.column_cache.columns import Columns, Numbers

MANY = 32
"""Directories that are looked at one by one."""


def first_by_number(columns: Columns, rows: Rows, numbers: Numbers, count: int, *, descending: bool) -> list[int]:
    """The first rows by a number, given for each of `rows`."""
    # Never below -(2**63 - 1), so that its negative is one as well.
    keys = -numbers if descending else numbers
    tied: list[int] = []
    if len(rows) > count:
        last = np.partition(keys, count - 1)[count - 1]
        better = keys < last
        tied = first_by_path(columns, rows[keys == last], count - int(np.count_nonzero(better)))
        rows, keys = rows[better], keys[better]
    ranked = sorted(zip(keys.tolist(), map(columns.path, rows.tolist()), rows.tolist(), strict=True))
    return [*(row for _, _, row in ranked), *tied]


def first_by_path(columns: Columns, rows: Rows, count: int) -> list[int]:
    """The first rows by path."""
    if len(rows) > count:
        # All that is in a directory sorts after the path of the directory. So what is in the first directories gives a
        # path that the last of those wanted is not behind, and what is in directories behind that one is not wanted.
        order, ranks = columns.sorted_folders(), columns.folder_ranks()[columns.folder[rows]]
        enough = np.partition(ranks, count - 1)[count - 1]
        some = sorted(map(columns.path, _first_of_each(columns, rows[ranks <= enough], count).tolist()))
        rows = _first_of_each(columns, rows[ranks < bisect_left(order, some[count - 1])], count)
    ranked = sorted(zip(map(columns.path, rows.tolist()), rows.tolist(), strict=True))
    return [row for _, row in ranked[:count]]


def _first_of_each(columns: Columns, rows: Rows, count: int) -> Rows:
    """Of each directory that has many of these rows no more than may be among the first by path."""
    folders = columns.folder[rows]
    many = np.flatnonzero(np.bincount(folders) > 2 * count)
    if not 0 < len(many) <= MANY:
        return rows
    kept = [rows[~np.isin(folders, many)]]
    kept += [columns.names.first(rows[folders == folder], count) for folder in many]
    return np.concatenate(kept)


def first_by_name(columns: Columns, rows: Rows, count: int, *, descending: bool) -> list[int]:
    """The first rows by name without regard to case."""
    plain = columns.names.plain[rows]
    some = columns.names.first(rows[plain], count, descending=descending, any_case=True)
    ranked = [
        (columns.names.of(row).decode().casefold().encode(), columns.path(row), row)
        for row in np.concatenate([some, rows[~plain]]).tolist()
    ]
    ranked.sort(key=lambda each: each[1])
    ranked.sort(key=lambda each: each[0], reverse=descending)
    return [row for _, _, row in ranked[:count]]
