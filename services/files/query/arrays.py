"""The columns as numpy arrays: one element for each row of `entry`, in the order of the ids."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import apsw
import numpy as np
import numpy.typing as npt

from services.files.query.column_names import INSIDE, ORDER, SET
from services.files.query.matching import Compare, Contains
from services.files.query.path_order import by_path, numbers
from services.files.store import schema
from services.files.store.sql import Row, fetch_all, fetch_value, key

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

STEP = 100_000
"""Ids that are read at once: parsing their values holds the interpreter lock."""

MAX_FOUND = 500_000
"""Parts that occur more often select too little to be searched for."""

FEW_FOUND = 3_000
"""Places that are searched for one by one."""

SAMPLED = 16
"""The share of all texts that tells how often a part occurs."""

MAX_TESTED = 20_000
"""Most entries that SQLite tests one by one."""

MAX_EXACT = 2.0**53
"""Floating point numbers, by which numpy sums up groups, are exact to here."""

SIGNS = {"=": operator.eq, "<>": operator.ne, ">=": operator.ge, "<=": operator.le}

INTEGERS = {
    "id": ("id", np.int64),
    "parent": ("parent", np.int64),
    "kind": ("kind", np.int8),
    "size": ("size", np.int64),
    "disk": ("disk", np.int64),
    "mtime": ("mtime", np.int64),
    "ctime": ("ctime", np.int64),
    "inode": ("inode", np.int64),
    "links": ("links", np.int64),
    "shown": ("scanned > 0", np.bool_),
}
"""Columns by name: their SQL expressions and types."""


PATH_ORDER = f"{ORDER}n.path ASC, n.path"
NAME_ORDERS = tuple(f"{ORDER}{key('n.name')} {direction}, n.path" for direction in ("ASC", "DESC"))
NUMERIC_ORDER = re.compile(rf"{ORDER}n\.(\w+) (ASC|DESC), n\.path")


DIGITS = ("kind", "shown")
"""Columns of `INTEGERS` with one digit each."""


class Texts:
    """Texts of many rows, folded as `key` folds them, for finding parts of them."""

    def __init__(self, joined: list[str]) -> None:
        """`joined`: texts separated by NUL, which no name contains."""
        self._bytes = "\0".join(("", *(text.casefold() for text in joined), "")).encode()
        self._at = np.frombuffer(self._bytes, np.uint8)
        self._ends = np.flatnonzero(self._at == 0)
        self.count = len(self._ends) - 1

    def ordered(self, rows: Array, *, descending: bool) -> Array:
        """Return rows in the order of their texts; rows with equal texts stay in order."""
        rows, group = rows.copy(), np.zeros(len(rows), np.int64)
        open_, at = np.arange(len(rows)), 0
        while len(open_):
            # Eight bytes at a time, padded with NUL, of all rows whose texts are equal to here.
            ends = self._ends[rows[open_] + 1]
            words = np.zeros(len(open_), np.uint64)
            for byte in range(8):
                places = np.minimum(self._ends[rows[open_]] + 1 + at + byte, ends)
                words = words << np.uint64(8) | self._at[places]
            order = np.lexsort((words, group[open_])) if at else np.argsort(words, kind="stable")
            rows[open_], words, before = rows[open_][order], words[order], group[open_]
            begins = np.ones(len(open_) + 1, np.bool_)
            begins[1:-1] = (words[1:] != words[:-1]) | (before[1:] != before[:-1])
            group[open_] = open_[np.maximum.accumulate(np.where(begins[:-1], np.arange(len(open_)), 0))]
            open_ = open_[~(begins[:-1] & begins[1:]) & (words & np.uint64(255) != 0)]
            at += 8
        return rows[np.argsort(-group, kind="stable")] if descending else rows

    def expected(self, part: bytes) -> int:
        """Estimate how often a part occurs."""
        return self._bytes.count(part, 0, len(self._bytes) // SAMPLED) * SAMPLED

    def containing(self, part: bytes) -> Mask:
        """Return which rows contain a part."""
        places = self._places(part) if self.expected(part) < FEW_FOUND else None
        if places is None:
            # Comparing all texts byte by byte takes as long, however often the part occurs.
            last = len(self._at) - len(part) + 1
            found = self._at[:last] == part[0]
            if len(part) > 1:
                found &= self._at[1 : last + 1] == part[1]
            places = np.flatnonzero(found)
            for at in range(2, len(part)):
                places = places[self._at[places + at] == part[at]]
        mask = np.zeros(self.count, np.bool_)
        mask[np.searchsorted(self._ends, places) - 1] = True
        return mask

    def _places(self, part: bytes) -> Array | None:
        """Return where a rare part occurs; None if it is not rare."""
        found: list[int] = []
        at = self._bytes.find(part)
        while at >= 0 and len(found) < FEW_FOUND:
            found.append(at)
            at = self._bytes.find(part, at + len(part))
        return np.array(found, np.int64) if at < 0 else None

    def ending(self, part: bytes) -> Mask:
        """Return which rows end with a part."""
        ends = self._ends[1:]
        rows = np.flatnonzero(ends - self._ends[:-1] > len(part))
        for back, byte in enumerate(reversed(part), 1):
            rows = rows[self._at[ends[rows] - back] == byte]
        mask = np.zeros(self.count, np.bool_)
        mask[rows] = True
        return mask


class Arrays:
    """Loaded columns, all of one state of the index."""

    def __init__(self, known: Arrays | None = None) -> None:
        """`known`: columns of the same state."""
        self._columns: dict[str, Any] = {} if known is None else dict(known._columns)

    @property
    def names(self) -> frozenset[str]:
        """The names of all columns."""
        return frozenset(self._columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def has(self, names: Collection[str]) -> bool:
        """True if these columns are loaded."""
        return self._columns.keys() >= set(names)

    def view(self, changed: Collection[int]) -> View:
        """Return the columns without the entries that have changed."""
        return View(self, changed)

    def load(self, db: apsw.Connection, name: str) -> None:
        """Load a column, and those that it is derived from."""
        if name in self._columns:
            return
        if name != "id" and not name.startswith(INSIDE):
            self.load(db, "id")
        self._columns[name] = self._loaded(db, name)

    def _loaded(self, db: apsw.Connection, name: str) -> Any:
        if name in INTEGERS:
            sql, kind = INTEGERS[name]
            if name in DIGITS:
                texts = _texts(db, f"group_concat({sql}, '')")
                return (np.frombuffer("".join(texts).encode(), np.uint8) - ord("0")).astype(kind)
            return np.concatenate([numbers(text).astype(kind) for text in _texts(db, f"group_concat({sql})")])
        if name.startswith(INSIDE):
            _, folder, order = name.split(" ", 2)
            query = f"SELECT group_concat(id) FROM (SELECT n.id FROM node n WHERE n.parent = ? {order} LIMIT -1)"
            return numbers(fetch_value(db, query, (int(folder),)))
        ids: Array = self["id"]
        if name == "above":
            # The row of each entry's directory; that of `/` is its own.
            self.load(db, "parent")
            return _rows(ids, self._columns.pop("parent"), 0).astype(np.int32)
        if name == "extension":
            parts = (text.split("\0") for text in _texts(db, "group_concat(extension, char(0))"))
            codes: dict[str, int] = {}
            found = [
                np.fromiter((codes.setdefault(each, len(codes)) for each in part), np.int32, len(part))
                for part in parts
            ]
            return np.concatenate(found), codes
        if name == "name":
            return Texts(list(_texts(db, "group_concat(name, char(0))")))
        if name == "folder":
            query = "SELECT group_concat(id), group_concat(path, char(0)) FROM folder NOT INDEXED WHERE id > 0"
            folders, text = fetch_all(db, query)[0]
            return _rows(ids, numbers(folders), 0), Texts([text])
        if name.startswith(ORDER):
            ordered = self._from_path_order(db, name)
            if ordered is not None:
                return ordered
            # Without a limit, SQLite may leave out the order of a subquery.
            query = f"SELECT group_concat(id) FROM (SELECT n.id FROM node n {name} LIMIT -1)"
            return _rows(ids, numbers(fetch_value(db, query)), 0).astype(np.int32)
        query = "SELECT group_concat(entry_id) FROM member WHERE set_id = ?"
        members = numbers(fetch_value(db, query, (int(name.removeprefix(SET)),)))
        mask = np.zeros(len(ids), np.bool_)
        rows = _rows(ids, members, -1)
        mask[rows[rows >= 0]] = True
        return mask

    def _from_path_order(self, db: apsw.Connection, name: str) -> Array | None:
        """Return an order by path, or by names or numbers and then by path."""
        found = NUMERIC_ORDER.fullmatch(name)
        if name == PATH_ORDER:
            for other in ("above", "kind", "shown"):
                self.load(db, other)
            rows = by_path(db, self["id"], self["above"], self["kind"])
            return None if rows is None else rows[self["shown"][rows]]
        if name in NAME_ORDERS:
            self.load(db, PATH_ORDER)
            self.load(db, "name")
            texts: Texts = self["name"]
            return texts.ordered(self[PATH_ORDER], descending=name == NAME_ORDERS[1])
        if found is None or found[1] not in INTEGERS:
            return None
        for other in (PATH_ORDER, found[1]):
            self.load(db, other)
        rows = self[PATH_ORDER]
        values = self[found[1]][rows].astype(np.int64)
        ordered: Array = rows[np.argsort(-values if found[2] == "DESC" else values, kind="stable")]
        return ordered


class View:
    """The columns as one query sees them: without the entries in `changed`, which SQLite has to add."""

    def __init__(self, arrays: Arrays, changed: Collection[int]) -> None:
        self._arrays = arrays
        self.changed = sorted(changed)

    @functools.cached_property
    def _changed_rows(self) -> Array:
        rows = _rows(self._arrays["id"], np.array(self.changed, np.int64), -1)
        return rows[rows >= 0]

    def children(self, column: str, count: int) -> tuple[int, list[int]]:
        """Return the number of a directory's entries, and the ids of the first."""
        ids = self._arrays[column]
        if self.changed:
            ids = ids[~np.isin(ids, self.changed)]
        return len(ids), ids[:count].tolist()

    def matching(self, tests: Sequence[Compare], sets: Sequence[int] | None, *, shown: bool = True) -> Mask:
        """Return which rows meet all tests and are in one of the sets; `shown`: only those that clients see."""
        arrays = self._arrays
        mask: Mask = arrays["shown"].copy() if shown else np.ones(len(arrays["id"]), np.bool_)
        if sets is not None:
            mask &= np.logical_or.reduce([arrays[f"{SET}{id_}"] for id_ in sets])
        for column, sign, value in tests:
            if column == "under":
                mask &= self._under(int(value))
                continue
            values, wanted = arrays[column], value
            if column == "extension":
                values, codes = values
                wanted = codes.get(value, -1)
            mask &= SIGNS[sign](values, wanted)
        mask[self._changed_rows] = False
        return mask

    def _under(self, folder: int) -> Mask:
        inside = np.zeros(len(self._arrays["id"]), np.bool_)
        inside[_rows(self._arrays["id"], np.array([folder], np.int64), 0)] = True
        covered: Mask = _closed(inside, self._arrays["above"], self._arrays["kind"])[self._arrays["above"]]
        # `/`, the first row, is below nothing.
        covered[0] = False
        return covered

    def totals(self, mask: Mask) -> tuple[int, int] | None:
        """Return the number of rows, and the total size of those that are not directories; None if that is too
        large."""
        sizes = self._arrays["size"][mask & (self._arrays["kind"] != schema.DIRECTORY)]
        if sizes.sum(dtype=np.float64) > MAX_EXACT:
            return None
        return int(np.count_nonzero(mask)), int(sizes.sum())

    def first(self, mask: Mask, order: str, count: int) -> list[int]:
        """Return the ids of the first rows in an order."""
        rows = self._arrays[order]
        ids: list[int] = self._arrays["id"][rows[mask[rows]][:count]].tolist()
        return ids

    def candidates(self, mask: Mask, texts: Sequence[Contains]) -> list[int] | None:
        """Return the ids of rows that may contain all parts of all texts; None if there are too many."""
        names: Texts = self._arrays["name"]
        pieces: list[tuple[int, bytes, str, str]] = []
        for text in texts:
            for part, mode in text.parts:
                folded = part.casefold()
                # No name contains a slash.
                piece = folded.rpartition("/")[2] if mode == "suffix" else max(folded.split("/"), key=len)
                data = piece.encode("utf-8", "surrogatepass")
                if data:
                    pieces.append((0 if mode == "suffix" else names.expected(data), data, text.field, mode))
        for expected, data, field, mode in sorted(pieces):
            if expected > MAX_FOUND or np.count_nonzero(mask) < FEW_FOUND:
                break
            mask = mask & self._containing(data, field, mode)
        if np.count_nonzero(mask) > MAX_TESTED:
            return None
        ids: list[int] = self._arrays["id"][mask].tolist()
        return ids

    def _containing(self, piece: bytes, field: str, mode: str) -> Mask:
        names: Texts = self._arrays["name"]
        if mode == "suffix":
            return names.ending(piece)
        found = names.containing(piece)
        if field == "name":
            return found
        rows, folders = self._arrays["folder"]
        inside = np.zeros(len(found), np.bool_)
        inside[rows] = folders.containing(piece)
        covered: Mask = found | inside[self._arrays["above"]]
        return covered

    def by_extension_and_age(self, folder: int, ages: Sequence[int]) -> list[Row] | None:
        """Count the files below a directory, and sum their sizes, by extension and by the first of `ages` (descending)
        that is not later than their change; None if the sums are too large."""
        mask = self.matching([Compare("kind", "=", schema.FILE), Compare("under", "=", folder)], None, shown=False)
        sizes, mtimes = self._arrays["size"][mask], self._arrays["mtime"][mask]
        codes, extensions = self._arrays["extension"]
        if sizes.sum(dtype=np.float64) > MAX_EXACT:
            return None
        groups = codes[mask] * (len(ages) + 1)
        for age in ages:
            groups += mtimes < age
        counts = np.bincount(groups)
        sums = np.bincount(groups, sizes)
        names = list(extensions)
        return [
            (names[group // (len(ages) + 1)], group % (len(ages) + 1), int(counts[group]), int(sums[group]))
            for group in np.flatnonzero(counts).tolist()
        ]

    def sums(self, parts: Sequence[Sequence[int]], metric: str, changed: Sequence[Row]) -> list[int] | None:
        """Return what each part, a list of set ids, adds to those before it; see `sets.sums_by_part`.

        Args:
            changed: the changed entries: id, parent, kind, size, and the first part that each is in, or -1.
        """
        arrays = self._arrays
        of = np.full(len(arrays["id"]), -1, np.int16)
        for part in range(len(parts) - 1, -1, -1):
            of[np.logical_or.reduce([arrays[f"{SET}{id_}"] for id_ in parts[part]])] = part
        of[~arrays["shown"]] = -1
        kinds, sizes, above = arrays["kind"], arrays["size"], arrays["above"]
        if self.changed:
            kept = np.ones(len(of), np.bool_)
            kept[self._changed_rows] = False
            fresh = np.array(changed, np.int64).reshape(-1, 5)
            ids = np.concatenate([arrays["id"][kept], fresh[:, 0]])
            by_id = np.argsort(ids, kind="stable")
            parents = np.concatenate([arrays["id"][above[kept]], fresh[:, 1]])[by_id]
            kinds, sizes, of = (
                np.concatenate([old[kept], fresh[:, at].astype(old.dtype)])[by_id]
                for at, old in ((2, kinds), (3, sizes), (4, of))
            )
            above = _rows(ids[by_id], parents, 0)
        if metric != "size":
            kind = {"files": schema.FILE, "directories": schema.DIRECTORY}.get(metric)
            counted = of[(of >= 0) & (kinds == kind)] if kind is not None else of[of >= 0]
            return np.bincount(counted, minlength=len(parts)).tolist()  # type: ignore[no-any-return]  # a list of int
        totals = [0]
        for part in range(len(parts)):
            inside = (of >= 0) & (of <= part)
            covered = _closed(inside & (kinds == schema.DIRECTORY), above, kinds)[above]
            covered[0] = False
            outermost = sizes[inside & ~covered]
            if outermost.sum(dtype=np.float64) > MAX_EXACT:
                return None
            totals.append(int(outermost.sum()))
        return [after - before for before, after in itertools.pairwise(totals)]


def _closed(inside: Mask, above: Array, kinds: Array) -> Mask:
    """Return which rows are in `inside`, or directories below one that is."""
    folders = np.flatnonzero(kinds == schema.DIRECTORY)
    number = np.zeros(len(above), np.int32)
    number[folders] = np.arange(len(folders), dtype=np.int32)
    up = number[above[folders]]
    found = inside[folders]
    while True:
        # Each round looks twice as far up.
        farther = up[up]
        found = found | found[up]
        if np.array_equal(farther, up):
            break
        up = farther
    closed = inside.copy()
    closed[folders] = found
    return closed


def _texts(db: apsw.Connection, column: str) -> Iterator[str]:
    """Yield a column of all entries, a range of ids at a time. SQLite joins the values without the interpreter lock."""
    last = fetch_value(db, "SELECT max(id) FROM entry")
    for start in range(0, last + 1, STEP):
        query = f"SELECT {column} FROM entry NOT INDEXED WHERE id > ? AND id <= ?"
        text = fetch_value(db, query, (start, start + STEP))
        if text is not None:
            yield text


def _rows(ids: Array, wanted: Array, missing: int) -> Array:
    """Return the rows of ids; `missing` for one that there is not."""
    # Without gaps between the ids, no search is needed.
    found = wanted - ids[0] if ids[-1] - ids[0] == len(ids) - 1 else np.searchsorted(ids, wanted)
    rows = np.clip(found, 0, len(ids) - 1)
    return np.where(ids[rows] == wanted, rows, missing)
