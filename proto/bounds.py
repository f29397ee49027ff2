"""What JSON from outside may come to: counted in its bytes, before any object is made of it.

An empty list is three bytes to send and fifty to hold, and each level of nesting is a frame of whatever walks it later:
without bounds a few hundred kilobytes stall a process, and thirty megabytes take gigabytes. The counts are of
`bytes.translate` and `bytes.count`, half a millisecond a MiB, and one to five where there are many; an ordinary message
needs no more than the first.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from itertools import accumulate

MAX_DEPTH = 100
"""Levels of lists and objects, one in another: well below what Python's stack admits to what walks them."""

MAX_CONTAINERS = 16_384
"""Lists and objects of one message: 10,000 files are renamed at once."""

MAX_STRINGS = 131_072
"""Strings of one message, the keys of objects included: a set of files takes 100,000 paths at once."""

MAX_KEYS = 65_536
"""Members of all objects of one message; each costs twice what a string of a list does."""

MAX_VALUES = 320_000
"""Values of one message: texts to embed may be given as tokens, of which OpenAI takes 300,000 at once."""

_STEP_BYTES = 1024 * 1024
"""Counted at once: a flood goes beyond the bounds early."""

_STRUCTURE = b'"[]{},:'
_ALL_BUT_STRUCTURE = bytes(set(range(256)).difference(_STRUCTURE))
_ALL_BUT_NESTING = bytes(set(range(256)).difference(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


def exceeded(data: bytes, *, times: int = 1) -> str | None:
    """Which bound the JSON text goes beyond, in words that follow "it has"; None where it stays within all of them.

    What is no JSON is no matter here: the decoder says what is wrong with it.

    Args:
        times: of each count, for bodies that hold what many messages would.
    """
    counting = counted(data, times=times)
    while True:
        try:
            next(counting)
        except StopIteration as done:
            found: str | None = done.value
            return found


def counted(data: bytes, *, times: int = 1) -> Generator[None, None, str | None]:
    """The same in steps of some milliseconds, between which an event loop may do other things."""
    if len(data) <= times * MAX_STRINGS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        # Of each of them there are fewer than bytes.
        return None
    count = _Count(times)
    beyond = False
    for start in range(0, len(data), _STEP_BYTES):
        beyond = beyond or count.may_exceed(data[start : start + _STEP_BYTES])
        yield
    if not beyond:
        return None
    # Those were counts of what stands in strings as well: now without.
    start = 0
    while start < len(data):
        end = start + _STEP_BYTES
        while data[end - 1 : end] == b"\\":
            # No escape is cut in two.
            end += 1
        if (found := count.exceeds(data[start:end])) is not None:
            return found
        start = end
        yield
    return None


class _Count:
    """What was counted so far of a text that comes in pieces."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._any = [0, 0, 0, 0]
        self._quotes = self._keys = self._values = self._containers = self._depth = 0

    def may_exceed(self, piece: bytes) -> bool:
        """With what stands in strings.  To leave out all other bytes first costs a twentieth of counting in them."""
        piece = piece.translate(None, _ALL_BUT_STRUCTURE)
        here = (piece.count(b"[") + piece.count(b"{"), piece.count(b'"'), piece.count(b":"), piece.count(b","))
        self._any = [before + now for before, now in zip(self._any, here, strict=True)]
        limits = (MAX_DEPTH, 2 * MAX_STRINGS * self._times + 1, MAX_KEYS * self._times, MAX_VALUES * self._times)
        return any(count > limit for count, limit in zip(self._any, limits, strict=True))

    def exceeds(self, piece: bytes) -> str | None:
        """Without it."""
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        piece = piece.translate(None, _ALL_BUT_STRUCTURE)
        in_string = self._quotes % 2
        self._quotes += piece.count(b'"')
        if (strings := self._quotes // 2) > self._times * MAX_STRINGS:
            return f"{strings} strings, more than {self._times * MAX_STRINGS}"
        # Two quotes side by side may go: what follows stays within a string, or outside.
        piece = piece.replace(b'""', b"")
        piece = b"".join(piece.split(b'"')[in_string::2])
        self._keys += piece.count(b":")
        self._values += piece.count(b",")
        for name, count, limit in (("keys", self._keys, MAX_KEYS), ("values", self._values, MAX_VALUES)):
            if count > self._times * limit:
                return f"{count} {name}, more than {self._times * limit}"
        nesting = piece.translate(_STEPS, _ALL_BUT_NESTING)
        self._containers += nesting.count(1)
        if self._containers > self._times * MAX_CONTAINERS:
            return f"{self._containers} lists and objects, more than {self._times * MAX_CONTAINERS}"
        depths = array("l", accumulate(array("b", nesting), initial=self._depth))
        self._depth = depths[-1]
        return f"{max(depths)} levels, more than {MAX_DEPTH}" if max(depths) > MAX_DEPTH else None
