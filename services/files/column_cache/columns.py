"""The scanned entries of the index as columns in memory, for what looks at very many of them: numbers as arrays, names
as bytes, the paths of directories by themselves. A million entries take about 100 MB.

An entry keeps its row for good; of what is gone the row is marked. `load` reads all of the tables, `apply` only what is
said to have changed, both from a database of which the state does not move meanwhile.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence

import apsw
import msgspec
import numpy as np
import numpy.typing as npt

from services.files.column_cache.names import Mask, Names, Rows
from services.files.store import schema
from services.files.store.rows import Row, fetch_all, fetch_value

Numbers = npt.NDArray[np.int64]

GONE = 255
"""`kind` of a row of which the entry is gone."""

_CHUNK = 20_000
_SELECTED = "id, parent, kind, size, disk, mtime, ctime, extension, name"
_NUMBERS = ("size", "disk", "mtime", "ctime")
_NAME_BYTES = 24
"""Room for a name at first."""


class Columns:
    """The entries of one state of the index."""

    def __init__(self, db: apsw.Connection, go_on: Callable[[], None] = lambda: None) -> None:
        """Read all; takes about a second and a half a million. `go_on` is called between pieces, and may raise."""
        self._load_folders(db)
        count: int = fetch_value(db, "SELECT count(*) FROM entry WHERE scanned > 0")
        self.count = 0
        self._kind = np.zeros(count, np.uint8)
        self._folder = np.zeros(count, np.int32)
        self._extension = np.zeros(count, np.int32)
        self._numbers = {name: np.zeros(count, np.int64) for name in _NUMBERS}
        self._ids = np.zeros(count, np.int64)
        self._first_later = 0
        """Rows from here on were added after the first reading, and are not in the order of their ids."""
        self._later: dict[int, int] = {}
        self.extensions: dict[str, int] = {"": 0}
        self.names = Names(count * _NAME_BYTES, count)
        rows = db.execute(f"SELECT {_SELECTED} FROM entry WHERE scanned > 0 ORDER BY id")
        for piece in _pieces(rows):
            go_on()
            self._add(piece)
        self._first_later = self.count

    # What there is, by row

    @property
    def kind(self) -> npt.NDArray[np.uint8]:
        """As `schema` counts kinds, or GONE."""
        return self._kind[: self.count]

    @property
    def folder(self) -> npt.NDArray[np.int32]:
        """Of each entry its directory, as a number of a row of its own kind: see `folders`."""
        return self._folder[: self.count]

    @property
    def ids(self) -> Numbers:
        """In the tables."""
        return self._ids[: self.count]

    def numbers(self, name: str) -> Numbers:
        """`size`, `disk`, `mtime`, `ctime` or `depth`."""
        if name == "depth":
            return self.folder_depths()[self.folder].astype(np.int64)
        return self._numbers[name][: self.count]

    @property
    def nbytes(self) -> int:
        """Of memory, but for the paths of directories."""
        numbers = sum(column.nbytes for column in (self._ids, *self._numbers.values()))
        return numbers + self._kind.nbytes + self._folder.nbytes + self._extension.nbytes + self.names.nbytes

    def path(self, row: int) -> bytes:
        """The path of an entry."""
        return self.folders[int(self._folder[row])] + self.names.of(row)

    def extension_codes(self) -> npt.NDArray[np.int32]:
        """By row, the number that `extensions` has."""
        return self._extension[: self.count]

    def rows_of(self, ids: Numbers) -> Rows:
        """The rows of entries; of what is not there, none."""
        first = self._ids[: self._first_later]
        if not len(first):
            at, there = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
        else:
            at = np.minimum(np.searchsorted(first, ids), len(first) - 1)
            there = first[at] == ids
        if self._later:
            later = np.flatnonzero(ids >= min(self._later))
            for n, id_ in zip(later.tolist(), ids[later].tolist(), strict=True):
                row = self._later.get(id_)
                if row is not None:
                    at[n], there[n] = row, True
        rows = at[there]
        found: Rows = rows[self.kind[rows] != GONE]
        return found

    # Keeping in step

    def apply(self, db: apsw.Connection, entries: Collection[int], folders: Collection[int]) -> None:
        """Take over what there is now under these ids."""
        if folders:
            self._apply_folders(db, folders)
        if not entries:
            return
        wanted = msgspec.json.encode(list(entries)).decode()
        found: dict[int, Row] = {
            row[0]: row
            for row in db.execute(
                f"SELECT {_SELECTED} FROM entry WHERE scanned > 0 AND id IN (SELECT value FROM json_each(?))", (wanted,)
            )
        }
        known = self._known(entries)
        for id_, row in known.items():
            now = found.pop(id_, None)
            if now is None:
                self._kind[row] = GONE
                # The id may be given again, to an entry that no set has.
                self._later.pop(id_, None)
            else:
                self._replace(row, now)
        if found:
            piece = [found[id_] for id_ in sorted(found)]
            at = self.count
            self._add(piece)
            self._later.update(zip((row[0] for row in piece), range(at, self.count), strict=True))

    def _known(self, ids: Collection[int]) -> dict[int, int]:
        rows = self.rows_of(np.fromiter(ids, np.int64, len(ids)))
        return dict(zip(self.ids[rows].tolist(), rows.tolist(), strict=True))

    def _replace(self, row: int, now: Row) -> None:
        _, parent, kind, *numbers, extension, name = now
        self._kind[row] = kind
        self._folder[row] = self._folder_row.get(parent, 0)
        for column, value in zip(_NUMBERS, numbers, strict=True):
            self._numbers[column][row] = value
        self._extension[row] = self.extensions.setdefault(extension, len(self.extensions))
        if self.names.of(row) != name.encode():
            self.names.replace(row, name)

    def _add(self, piece: Sequence[Row]) -> None:
        ids, parents, kinds, *numbers, extensions, names = zip(*piece, strict=True)
        first, end = self.count, self.count + len(piece)
        if end > len(self._ids):
            room = end + end // 8 + 64
            self._kind, self._folder = np.resize(self._kind, room), np.resize(self._folder, room)
            self._extension, self._ids = np.resize(self._extension, room), np.resize(self._ids, room)
            self._numbers = {name: np.resize(column, room) for name, column in self._numbers.items()}
        self._ids[first:end] = ids
        self._kind[first:end] = kinds
        self._folder[first:end] = [self._folder_row.get(parent, 0) for parent in parents]
        for name, values in zip(_NUMBERS, numbers, strict=True):
            self._numbers[name][first:end] = values
        codes = self.extensions
        self._extension[first:end] = [codes.setdefault(each, len(codes)) for each in extensions]
        self.names.add(names)
        self.count = end

    # Directories, by their own rows

    def _load_folders(self, db: apsw.Connection) -> None:
        self.folders: list[bytes] = []
        """Their paths, with slash; of one that is gone, what no path is."""
        self._folder_row: dict[int, int] = {}
        for id_, path in db.execute("SELECT id, path FROM folder"):
            self._folder_row[id_] = len(self.folders)
            self.folders.append(path.encode())
        self._forget_order()

    def _apply_folders(self, db: apsw.Connection, ids: Collection[int]) -> None:
        wanted = msgspec.json.encode(list(ids)).decode()
        found: dict[int, str] = dict(
            fetch_all(db, "SELECT id, path FROM folder WHERE id IN (SELECT value FROM json_each(?))", (wanted,))
        )
        for id_ in ids:
            row, path = self._folder_row.get(id_), found.get(id_)
            if path is None:
                if row is not None:
                    self.folders[row] = b"\0"
                    del self._folder_row[id_]
            elif row is None:
                self._folder_row[id_] = len(self.folders)
                self.folders.append(path.encode())
            elif self.folders[row] == path.encode():
                continue
            else:
                self.folders[row] = path.encode()
            self._forget_order()

    def _forget_order(self) -> None:
        self._sorted: list[bytes] | None = None
        self._lower: list[bytes] | None = None
        self._ranks = self._ends = self._depths = np.zeros(0, np.int32)

    def _order(self) -> list[bytes]:
        if self._sorted is None:
            order = sorted(range(len(self.folders)), key=self.folders.__getitem__)
            self._sorted = [self.folders[row] for row in order]
            self._ranks = np.zeros(len(order), np.int32)
            self._ranks[order] = np.arange(len(order), dtype=np.int32)
            ends = np.zeros(len(order), np.int32)
            above: list[int] = []
            for rank, path in enumerate(self._sorted):
                while above and not path.startswith(self._sorted[above[-1]]):
                    ends[above.pop()] = rank
                above.append(rank)
            for rank in above:
                ends[rank] = len(order)
            self._ends = ends
            self._depths = np.array([path.count(b"/") or 1 for path in self.folders], np.int32)
        return self._sorted

    def sorted_folders(self) -> list[bytes]:
        """The paths of all directories, in order."""
        return self._order()

    def folder_ranks(self) -> npt.NDArray[np.int32]:
        """By directory, its place in that order."""
        self._order()
        return self._ranks

    def folder_depths(self) -> npt.NDArray[np.int32]:
        """By directory, how many slashes the path of what is in it has."""
        self._order()
        return self._depths

    def below(self, folder: str) -> Mask:
        """The entries in a directory (path with slash), and in all below it."""
        order = self._order()
        first = bisect_left(order, folder.encode())
        if first == len(order) or order[first] != folder.encode():
            return np.zeros(self.count, np.bool_)
        ranks = self._ranks[self.folder]
        found: Mask = (ranks >= first) & (ranks < self._ends[first])
        return found

    def inside(self, directories: Rows) -> Mask:
        """The entries in any of the directories of these rows, or below."""
        self._order()
        own = [self._folder_row.get(id_) for id_ in self.ids[directories].tolist()]
        ranks = self._ranks[[row for row in own if row is not None]]
        begins = np.zeros(len(self.folders) + 1, np.int32)
        np.add.at(begins, ranks, 1)
        np.add.at(begins, self._ends[ranks], -1)
        covered = np.cumsum(begins[:-1]) > 0
        found: Mask = covered[self._ranks][self.folder]
        return found

    # Conditions

    def there(self) -> Mask:
        """All that is not gone."""
        there: Mask = self.kind != GONE
        return there

    def where_folder(self, test: Callable[[bytes], bool], *, lower: bool = False) -> Mask:
        """The entries of the directories of which the path, with slash and as it is or in lower case, passes."""
        if lower and self._lower is None:
            self._lower = [path.lower() for path in self.folders]
        passed = np.fromiter(map(test, (self._lower if lower else None) or self.folders), np.bool_, len(self.folders))
        found: Mask = passed[self.folder]
        return found

    def where_extension(self, test: Callable[[str], bool]) -> Mask:
        """The entries of which the extension passes."""
        passed = np.fromiter(map(test, self.extensions), np.bool_, len(self.extensions))
        found: Mask = passed[self.extension_codes()]
        return found

    def where_kind(self, test: Callable[[str], bool]) -> Mask:
        """The entries of which the kind, in a word, passes."""
        passed = np.array([test(kind) for kind in schema.KINDS] + [False] * (256 - len(schema.KINDS)))
        found: Mask = passed[self.kind]
        return found

    def between(self, name: str, least: int | None, most: int | None) -> Mask:
        """The entries with a number in a range; both ends inclusive, None is open."""
        numbers = self.numbers(name)
        found = np.ones(self.count, np.bool_)
        if least is not None:
            found &= numbers >= least
        if most is not None:
            found &= numbers <= most
        return found

    def path_matches(self, pattern: bytes, mode: str, *, any_case: bool) -> Mask:
        """`contains`, `prefix`, `suffix` or `is`: of the path, which is that of the directory and the name.

        `pattern` is in lower case where any case is meant.
        """
        above, slash, last = pattern.rpartition(b"/")
        above += slash
        names = self.names
        if mode == "contains":
            found = self.where_folder(lambda folder: pattern in folder, lower=any_case)
            if not above:
                found |= names.contain(pattern, any_case=any_case)
            elif last:
                ends = self.where_folder(lambda folder: folder.endswith(above), lower=any_case)
                found |= ends & names.begin(last, any_case=any_case)
        elif mode == "prefix":
            found = self.where_folder(lambda folder: folder.startswith(pattern), lower=any_case)
            if last:
                found |= self.where_folder(above.__eq__, lower=any_case) & names.begin(last, any_case=any_case)
        elif mode == "suffix" and not above:
            found = names.end(last, any_case=any_case)
        elif not last:
            found = np.zeros(self.count, np.bool_)
        else:
            ends = self.where_folder(
                above.__eq__ if mode == "is" else lambda folder: folder.endswith(above), lower=any_case
            )
            found = ends & names.equal(last, any_case=any_case)
        # The root of all is the one name with a slash in it.
        root = np.flatnonzero(self.folder == self._folder_row.get(0, -1))
        found[root] = pattern == b"/"
        return found


def _pieces(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while piece := list(itertools.islice(rows, _CHUNK)):
        yield piece
