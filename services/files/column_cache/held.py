"""The copy of the index in memory: its entries as columns, and the resource sets that were asked for lately.

It has the state of one reader at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import apsw
import msgspec
import numpy as np

from services.files.column_cache import ranking
from services.files.column_cache.columns import Columns, Numbers
from services.files.column_cache.names import Mask, Rows
from services.files.query.matching import HELD, Condition
from services.files.store import schema
from services.files.store.dirty_rows import Written
from services.files.store.rows import fetch_value

SETS_KEPT = 4

MOST_ASKED = 100_000
"""Entries that SQL is asked about one by one; of more it looks at all there are."""

_AT_ONCE = 10_000
_TESTS: dict[str, Callable[[bytes, bytes], bool]] = {
    "contains": bytes.__contains__, "prefix": bytes.startswith, "suffix": bytes.endswith,
}  # fmt: skip


class Members(NamedTuple):
    """Of a resource set: the rows of its entries, and when each came into it."""

    rows: Rows
    added: Numbers


class Held:
    """The copy."""

    def __init__(self, db: apsw.Connection, go_on: Callable[[], None]) -> None:
        """Read all of it; see `Columns`."""
        self.columns = Columns(db, go_on)
        self._sets: OrderedDict[int, Members] = OrderedDict()
        self._db = db
        self.let_go: Callable[[], None] = lambda: None
        """Whoever goes on without the copy, for long perhaps, lets the next have it; not to be used after that."""

    def step(self, db: apsw.Connection, written: Written) -> None:
        """Go on to the state of another reader, at which these rows were written since."""
        self._db = db
        for set_id in written.sets:
            self._sets.pop(set_id, None)
        self.columns.apply(db, written.entries, written.folders)

    def members(self, set_id: int) -> Members:
        """A set's own; of one that was not asked for lately they are read, a third of a second a million."""
        found = self._sets.get(set_id)
        if found is None:
            count: int = fetch_value(self._db, "SELECT count(*) FROM member WHERE set_id = ?", (set_id,))
            rows = self._db.execute("SELECT entry_id, added FROM member WHERE set_id = ? ORDER BY entry_id", (set_id,))
            both: Numbers = np.fromiter(rows, np.dtype((np.int64, 2)), count)
            at = self.columns.rows_of(both[:, 0])
            there = np.isin(both[:, 0], self.columns.ids[at], assume_unique=True)
            found = self._sets[set_id] = Members(at, both[there, 1].copy())
            while len(self._sets) > SETS_KEPT:
                self._sets.popitem(last=False)
        self._sets.move_to_end(set_id)
        return found

    def all_of(self, sets: Sequence[int] | None) -> Mask:
        """The entries of these sets, or all there are."""
        there = self.columns.there()
        if sets is None:
            return there
        found = np.zeros(self.columns.count, np.bool_)
        for set_id in sets:
            found[self.members(set_id).rows] = True
        found &= there
        return found

    def added(self, sets: Sequence[int]) -> Numbers:
        """By row, when an entry first came into any of these sets; where it is in none, after all times."""
        found = np.full(self.columns.count, np.iinfo(np.int64).max)
        for set_id in sets:
            rows, added = self.members(set_id)
            found[rows] = np.minimum(found[rows], added)
        return found

    # Conditions

    def text(self, field: str, pattern: str, mode: str, *, any_case: bool) -> Mask:
        """The entries of which a text `contains`, has as its `prefix` or as its `suffix` a pattern; in any case of
        ASCII letters where that is asked."""
        columns = self.columns
        wanted = pattern.encode().lower() if any_case else pattern.encode()
        if b"\0" in wanted:
            # No path has one.
            return np.zeros(columns.count, np.bool_)
        if field == "path":
            return columns.path_matches(wanted, mode, any_case=any_case)
        if field == "name":
            search = {"contains": columns.names.contain, "prefix": columns.names.begin, "suffix": columns.names.end}
            return search[mode](wanted, any_case=any_case)
        test = _TESTS[mode]
        if field == "parent":
            return columns.where_folder(lambda folder: test(folder.rstrip(b"/") or folder, wanted), lower=any_case)
        where = columns.where_kind if field == "kind" else columns.where_extension
        return where(lambda text: test(text.encode().lower() if any_case else text.encode(), wanted))

    def not_plain(self, field: str) -> Mask:
        """The entries of which a text is not ASCII alone."""
        columns = self.columns
        if field == "kind":
            return np.zeros(columns.count, np.bool_)
        if field == "extension":
            return columns.where_extension(lambda text: not text.isascii())
        found = np.zeros(columns.count, np.bool_) if field == "parent" else ~columns.names.plain
        if field != "name":
            found |= columns.where_folder(lambda folder: not folder.isascii())
        return found

    def beyond_ascii(self, field: str, folded: str, mode: str) -> Mask:
        """The entries of which a text may match a pattern without regard to case, of which not all is ASCII."""
        found = self.not_plain(field)
        if folded.isascii():
            found |= self.text(field, folded, mode, any_case=True)
        return found

    # Answers

    def select(self, conditions: Iterable[Condition], sets: Sequence[int] | None) -> Rows | None:
        """The rows of all entries of these sets, or of all there are, that meet the conditions; None where SQL would
        have to be asked about too many of them."""
        mask, left = self.all_of(sets), []
        for condition in conditions:
            if condition.rows is not None:
                mask &= condition.rows(self)
            if condition.rows is None or not condition.exact:
                left.append(condition)
        rows = np.flatnonzero(mask)
        if not left:
            return rows
        return None if len(rows) > MOST_ASKED else self._asked(rows, left)

    def _asked(self, rows: Rows, conditions: Sequence[Condition]) -> Rows:
        where = " AND ".join(condition.sql for condition in conditions)
        bindings = [value for condition in conditions for value in condition.bindings]
        query = f"SELECT n.id FROM json_each(?) j CROSS JOIN node n ON n.id = j.value WHERE {where}"
        ids = self.columns.ids[rows].tolist()
        met: list[int] = []
        for first in range(0, len(ids), _AT_ONCE):
            some = msgspec.json.encode(ids[first : first + _AT_ONCE]).decode()
            met += (id_ for (id_,) in self._db.execute(query, (some, *bindings)))
        return rows[np.isin(self.columns.ids[rows], np.array(met, np.int64))]

    def totals(self, rows: Rows) -> tuple[int, int]:
        """How many these are, and how many bytes those have that are not directories."""
        plain = rows[self.columns.kind[rows] != schema.DIRECTORY]
        return len(rows), int(self.columns.numbers("size")[plain].sum())

    def sums(self, parts: Sequence[Sequence[int]], metric: str) -> list[int]:
        """As `sums.by_part`."""
        columns = self.columns
        so_far = np.zeros(columns.count, np.bool_)
        values: list[int] = []
        for sets in parts:
            so_far |= self.all_of(sets)
            if metric == "size":
                # What lies in a directory that counts is part of its size.
                counted = so_far & ~columns.inside(np.flatnonzero(so_far & (columns.kind == schema.DIRECTORY)))
                total = int(columns.numbers("size")[counted].sum())
            else:
                kind = {"files": schema.FILE, "directories": schema.DIRECTORY}.get(metric)
                total = int(np.count_nonzero(so_far if kind is None else so_far & (columns.kind == kind)))
            values.append(total - sum(values))
        return values

    def largest(self, folder: str, kind: str, field: str, count: int, *, depth: int | None) -> tuple[int, list[int]]:
        """How many entries of a kind are below a directory (path with slash), and the ids of the largest.

        Args:
            depth: levels below the directory; None is all.
        """
        columns = self.columns
        mask = columns.below(folder) & columns.where_kind(kind.__eq__)
        if depth is not None:
            mask &= columns.between("depth", None, folder.count("/") + depth - 1)
        rows = np.flatnonzero(mask)
        numbers = columns.numbers(HELD[field])[rows]
        found = ranking.first_by_number(columns, rows, numbers, count, descending=True)
        return len(rows), columns.ids[found].tolist()

    def by_extension_and_age(self, folder: str, edges: Sequence[int]) -> list[tuple[str, int, int, int]]:
        """The files below a directory (path with slash): extension, which of the falling times in `edges` is the first
        that they are not older than, how many there are, and of how many bytes."""
        columns = self.columns
        rows = np.flatnonzero(columns.below(folder) & columns.where_kind("file".__eq__))
        ages = len(edges) - np.searchsorted(np.array(edges[::-1], np.int64), columns.numbers("mtime")[rows], "right")
        groups = columns.extension_codes()[rows].astype(np.int64) * (len(edges) + 1) + ages
        counts = np.bincount(groups)
        # Halves, since sums of doubles are exact up to 2**53 alone.
        sizes = columns.numbers("size")[rows]
        low, high = np.bincount(groups, sizes & 0xFFFFFFFF), np.bincount(groups, sizes >> 32)
        names = list(columns.extensions)
        return [
            (names[group // (len(edges) + 1)], group % (len(edges) + 1), int(counts[group]),
             int(low[group]) + (int(high[group]) << 32))
            for group in np.flatnonzero(counts).tolist()
        ]  # fmt: skip

    def first(
        self, rows: Rows, field: str, count: int, *, descending: bool, sets: Sequence[int] | None
    ) -> list[int] | None:
        """The ids of the first of these rows by a field, alike ones by path; None where there is no such column."""
        columns = self.columns
        if field == "path":
            found = ranking.first_by_path(columns, rows, count)
        elif field == "name":
            found = ranking.first_by_name(columns, rows, count, descending=descending)
        else:
            if field != "added_at" and field not in HELD:
                return None
            numbers = self.added(sets or ()) if field == "added_at" else columns.numbers(HELD[field])
            found = ranking.first_by_number(columns, rows, numbers[rows], count, descending=descending)
        ids: list[int] = columns.ids[found].tolist()
        return ids
