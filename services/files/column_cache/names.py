"""Very many names in one array of bytes, to be searched for literal parts all at once, by numpy instead of one by one.

A name lies between two NULs, which no name holds, as UTF-8. Upper and lower case of ASCII letters are alike where that
is asked, as for SQLite's LIKE. A search first looks for that byte of the pattern which is rarest in all names, and then
only there for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

S = TypeVar("S", bound=np.generic)

_PAD = 8
_COUNTED = 1 << 20
"""Bytes of which it is counted how often each is there."""
_SEVEN = 0x7F7F7F7F7F7F7F7F
_HIGH = np.uint64(0x8080808080808080)
_KEPT = np.array([0, *(2**64 - 2 ** (64 - 8 * n) for n in range(1, 9))], np.uint64)
"""By how many bytes of eight are of the name, those bits."""


class Names:
    """Names by row, from 0; they are added at the end, and may be replaced one by one."""

    def __init__(self, room_bytes: int, room_rows: int) -> None:
        """Room for so much at first."""
        self._bytes = np.zeros(room_bytes + 2 * _PAD, np.uint8)
        self._starts = np.zeros(room_rows + 1, np.int64)
        self._starts[0] = 1
        self._count = 0
        self._plain = np.zeros(room_rows, np.bool_)
        self._replaced: dict[int, bytes] = {}
        self._often: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return self._bytes.nbytes + self._starts.nbytes + self._plain.nbytes

    @property
    def replaced(self) -> int:
        """How many names are not where they were put first: each costs a step of Python in every search."""
        return len(self._replaced)

    @property
    def plain(self) -> Mask:
        """Those that are ASCII alone."""
        return self._plain[: self._count]

    def add(self, names: Sequence[str]) -> None:
        """More names, at the end."""
        joined = ("\0".join(names) + "\0").encode()
        first, count = int(self._starts[self._count]), len(names)
        self._bytes = _with_room(self._bytes, first + len(joined) + _PAD)
        self._starts = _with_room(self._starts, self._count + count + 1)
        self._plain = _with_room(self._plain, self._count + count)
        here = np.frombuffer(joined, np.uint8)
        self._bytes[first : first + len(joined)] = here
        ends = np.flatnonzero(here == 0) + first + 1
        self._starts[self._count + 1 : self._count + count + 1] = ends
        plain = self._plain[self._count : self._count + count]
        if joined.isascii():
            plain[:] = True
        else:
            plain[:] = [name.isascii() for name in names]
        self._count += count
        self._often = None

    def replace(self, row: int, name: str) -> None:
        """Another name for a row."""
        self._replaced[row] = name.encode()
        self._plain[row] = name.isascii()

    def of(self, row: int) -> bytes:
        """The name of a row."""
        there = self._replaced.get(row)
        return self._bytes[self._starts[row] : self._starts[row + 1] - 1].tobytes() if there is None else there

    # Searching; a pattern in any case is given in lower case

    def contain(self, pattern: bytes, *, any_case: bool) -> Mask:
        """Those that hold the pattern."""
        found = np.zeros(self._count, np.bool_)
        if self._count and pattern:
            at = self._positions(pattern, any_case)
            found[np.searchsorted(self._starts[1 : self._count + 1], at, "right")] = True
        return self._and_replaced(found, any_case, lambda name: pattern in name)

    def begin(self, pattern: bytes, *, any_case: bool) -> Mask:
        """Those that begin with the pattern."""
        found = self._with(self._starts[: self._count], pattern, any_case)
        return self._and_replaced(found, any_case, lambda name: name.startswith(pattern))

    def end(self, pattern: bytes, *, any_case: bool) -> Mask:
        """Those that end with the pattern."""
        found = self._with(self._starts[1 : self._count + 1] - (len(pattern) + 1), pattern, any_case)
        return self._and_replaced(found, any_case, lambda name: name.endswith(pattern))

    def equal(self, pattern: bytes, *, any_case: bool) -> Mask:
        """Those that are the pattern."""
        starts = self._starts[: self._count]
        found = self._with(starts, pattern, any_case)
        found &= self._starts[1 : self._count + 1] - starts == len(pattern) + 1
        return self._and_replaced(found, any_case, lambda name: name == pattern)

    def first(self, rows: Rows, count: int, *, descending: bool = False, any_case: bool = False) -> Rows:
        """Those of some rows that a sort by name has among its first `count`, and those that are like the last of
        these, in no order: eight bytes of all names after eight bytes. In any case of letters where that is asked, of
        rows that are plain, all of them."""
        kept: list[Rows] = []
        depth = 0
        while len(rows) > count:
            chunk = self._chunk(rows, depth, any_case)
            if descending:
                chunk = ~chunk
            last = np.partition(chunk, count - 1)[count - 1]
            better = rows[chunk < last]
            kept.append(better)
            rows, count = rows[chunk == last], count - len(better)
            depth += 1
            if not (self._lengths(rows) > 8 * depth).any():
                break
        return np.concatenate([*kept, rows])

    def _lengths(self, rows: Rows) -> npt.NDArray[np.int64]:
        lengths = self._starts[rows + 1] - self._starts[rows] - 1
        for n, row in self._replaced_among(rows):
            lengths[n] = len(self._replaced[row])
        return lengths

    def _chunk(self, rows: Rows, depth: int, any_case: bool) -> npt.NDArray[np.uint64]:
        """Eight bytes of each name, as numbers that sort like them."""
        at = self._starts[rows] + 8 * depth
        windows: npt.NDArray[np.uint64] = np.ndarray((len(self._bytes) - 7,), ">u8", self._bytes, strides=(1,))
        found = windows[np.minimum(at, len(windows) - 1)].astype(np.uint64)
        left = np.clip(self._starts[rows + 1] - 1 - at, 0, 8)
        found &= _KEPT[left]
        for n, row in self._replaced_among(rows):
            found[n] = int.from_bytes(self._replaced[row][8 * depth : 8 * depth + 8].ljust(8, b"\0"), "big")
        if not any_case:
            return found
        # A to Z get their bit of the small ones, eight letters at once (Mycroft's arithmetic within bytes).
        low = found & np.uint64(_SEVEN)
        upper = ((low + np.uint64(0x3F3F3F3F3F3F3F3F)) & ~(low + np.uint64(0x2525252525252525))) & _HIGH & ~found
        return found | (upper >> np.uint64(2))

    def _replaced_among(self, rows: Rows) -> Iterable[tuple[int, int]]:
        if not self._replaced:
            return ()
        others = np.fromiter(self._replaced, np.int64, len(self._replaced))
        return ((n, int(rows[n])) for n in np.flatnonzero(np.isin(rows, others)).tolist())

    def _and_replaced(self, found: Mask, any_case: bool, test: Callable[[bytes], bool]) -> Mask:
        for row, name in self._replaced.items():
            found[row] = test(name.lower() if any_case else name)
        return found

    def _with(self, starts: npt.NDArray[np.int64], pattern: bytes, any_case: bool) -> Mask:
        """Which of these places the pattern lies at, within its name."""
        rows: Rows | None = None
        found = np.zeros(self._count, np.bool_)
        for n, byte in enumerate(pattern):
            at = starts if rows is None else starts[rows]
            there = self._bytes[np.maximum(at + n, 0)]
            same = there == byte
            if any_case and (other := _other_case(byte)) != byte:
                same |= there == other
            rows = np.flatnonzero(same) if rows is None else rows[same]
        if rows is None:
            found[:] = True
        else:
            found[rows] = True
        # The NUL before a name is never in a pattern: one that begins too early has not been found. What begins before
        # all names would be.
        found[starts < 1] = False
        return found

    def _positions(self, pattern: bytes, any_case: bool) -> npt.NDArray[np.int64]:
        """All places where the pattern lies."""
        often = self._how_often()
        rarest = sorted(
            range(len(pattern)),
            key=lambda n: int(often[pattern[n]] + (often[_other_case(pattern[n])] if any_case else 0)),
        )
        # As far as where it would end with the last name.
        places: npt.NDArray[np.int64] | None = None
        last = int(self._starts[self._count]) - len(pattern)
        for n in rarest:
            byte = pattern[n]
            there = self._bytes[n : max(n, last + n)] if places is None else self._bytes[places + n]
            same = there == byte
            if any_case and (other := _other_case(byte)) != byte:
                same |= there == other
            places = np.flatnonzero(same) if places is None else places[same]
        return np.zeros(0, np.int64) if places is None else places

    def _how_often(self) -> npt.NDArray[np.int64]:
        if self._often is None:
            end = int(self._starts[self._count])
            self._often = np.bincount(self._bytes[: min(end, _COUNTED)], minlength=256)
        return self._often


def _other_case(byte: int) -> int:
    """An ASCII letter in its other case; any other byte is itself."""
    return byte ^ 0x20 if 65 <= byte & 0xDF <= 90 else byte


def _with_room(array: npt.NDArray[S], size: int) -> npt.NDArray[S]:
    """The array, or a copy that is longer."""
    if size <= len(array):
        return array
    longer = np.zeros(size + size // 8 + 64, array.dtype)
    longer[: len(array)] = array
    return longer
