"""The order of all entries by path, from the order of names within each directory that an index already has.

Everything below a directory is one run of paths. It follows the directory itself and those of its siblings whose names
sort before the directory's path with a slash, such as `a-b` after `a`.
"""

from __future__ import annotations

from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from services.files.store import schema
from services.files.store.sql import fetch_one, fetch_value

Array = npt.NDArray[Any]

_LATER = (
    "SELECT group_concat(id), group_concat(later) FROM (SELECT d.id, (SELECT count(*) FROM entry s WHERE s.parent ="
    " d.parent AND s.name > d.name AND s.name < d.name || '/') AS later FROM entry d NOT INDEXED WHERE d.kind = 1)"
    " WHERE later > 0"
)
"""How many siblings come between a directory and its content, if any do."""


def numbers(text: str | None) -> Array:
    """Return the numbers of a text from `group_concat`."""
    return np.fromstring(text, np.int64, sep=",") if text else np.zeros(0, np.int64)


def by_path(db: apsw.Connection, ids: Array, above: Array, kinds: Array) -> Array | None:
    """Return the row numbers of all entries in the order of their paths; None if they are no single tree.

    Args:
        above: the row of each entry's directory; row 0 is `/`.
    """
    query = "SELECT group_concat(id) FROM (SELECT id FROM entry INDEXED BY entry_name ORDER BY parent, name LIMIT -1)"
    run = np.searchsorted(ids, numbers(fetch_value(db, query)))[1:]
    count = len(ids)
    slot = np.zeros(count, np.int64)
    slot[run] = np.arange(1, count)
    folders = np.flatnonzero(kinds == schema.DIRECTORY)[1:]
    after = slot.copy()
    between = fetch_one(db, _LATER)
    if between is not None and between[0]:
        rows = np.searchsorted(ids, numbers(between[0]))
        after[rows] += numbers(between[1])
    levels = _levels(folders, above)
    size = np.bincount(above[1:], minlength=count)
    for level in reversed(levels):
        np.add.at(size, above[level], size[level])
    # Directories whose content has the same place: the last one's comes first.
    folders = folders[np.lexsort((-slot[folders], after[folders]))]
    sums = np.cumsum(size[folders]) - size[folders]
    places = after[folders]
    group = np.searchsorted(places, places)
    inside = np.bincount(places, size[folders], count).astype(np.int64)
    start = np.cumsum(inside + 1) - inside - 1
    # Where the entries of each directory begin among all slots.
    first = np.full(count, count)
    np.minimum.at(first, above[run], slot[run])
    content = np.zeros(count, np.int64)
    content[folders] = start[places] + 1 + sums - sums[group] if len(folders) else 0
    content[0] = 1
    begin = start[np.minimum(first, count - 1)]
    for level in levels:
        content[level] += content[above[level]] - begin[above[level]]
    position = content[above] + start[slot] - begin[above]
    position[0] = 0
    order = np.full(count, -1, np.int32)
    if position.min() < 0 or position.max() >= count:
        return None
    order[position] = np.arange(count, dtype=np.int32)
    return order if order.min() >= 0 else None


def _levels(folders: Array, above: Array) -> list[Array]:
    """Return the directories one level after another, without `/`."""
    levels = []
    at_level = np.zeros(len(above), np.bool_)
    at_level[0] = True
    left = folders
    while len(left):
        found = at_level[above[left]]
        if not found.any():
            break
        levels.append(left[found])
        at_level[left[found]] = True
        left = left[~found]
    return levels
