"""Limits on JSON from outside, counted in its bytes before any object is created.

An empty list takes three bytes to send and fifty in memory, and each level of nesting is a stack frame of code that
walks it later. Without limits, a few hundred kilobytes stall a process, and thirty megabytes take gigabytes of memory.
Counting with `bytes.translate` and `bytes.count` takes half a millisecond per MiB, and one to five if there is much
structure. An ordinary message needs only the first check.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from itertools import accumulate

MAX_DEPTH = 100
"""Maximum nesting of lists and objects: well below what Python's stack allows."""

MAX_CONTAINERS = 16_384
"""Maximum number of lists and objects in a message: 10,000 files can be renamed at once."""

MAX_STRINGS = 131_072
"""Maximum number of strings in a message, including object keys: a set of files takes 100,000 paths at once."""

MAX_KEYS = 65_536
"""Maximum number of members of all objects in a message; each costs twice as much as a string in a list."""

MAX_VALUES = 320_000
"""Maximum number of values in a message: texts to embed may be given as tokens, and OpenAI allows 300,000 at once."""

_STEP_BYTES = 1024 * 1024
"""Bytes counted at a time: a flood exceeds the limits early."""

_STRUCTURE = b'"[]{},:'
_ALL_BUT_STRUCTURE = bytes(set(range(256)).difference(_STRUCTURE))
_ALL_BUT_NESTING = bytes(set(range(256)).difference(b"[]{}"))
_STEPS = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")


def exceeded(data: bytes, *, times: int = 1) -> str | None:
    """Return which limit the JSON text exceeds, in words that follow "it has"; None if it exceeds none.

    Invalid JSON does not matter here, since the decoder reports it.

    Args:
        times: multiplies each limit, for bodies that contain what many messages would.
    """
    counting = counted(data, times=times)
    while True:
        try:
            next(counting)
        except StopIteration as done:
            found: str | None = done.value
            return found


def counted(data: bytes, *, times: int = 1) -> Generator[None, None, str | None]:
    """Like `exceeded`, in steps of some milliseconds, between which an event loop may run other tasks."""
    if len(data) <= times * MAX_STRINGS and data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        # No count can exceed the number of bytes.
        return None
    count = _Count(times)
    beyond = False
    for start in range(0, len(data), _STEP_BYTES):
        beyond = beyond or count.may_exceed(data[start : start + _STEP_BYTES])
        yield
    if not beyond:
        return None
    # These counts include characters within strings. Count again without them.
    start = 0
    while start < len(data):
        end = start + _STEP_BYTES
        while data[end - 1 : end] == b"\\":
            # Do not split an escape sequence.
            end += 1
        if (found := count.exceeds(data[start:end])) is not None:
            return found
        start = end
        yield
    return None


class _Count:
    """Counts for a text that arrives in pieces."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._any = [0, 0, 0, 0]
        self._quotes = self._keys = self._values = self._containers = self._depth = 0

    def may_exceed(self, piece: bytes) -> bool:
        """Count including strings. Removing all other bytes first takes a twentieth of the time of counting in them."""
        piece = piece.translate(None, _ALL_BUT_STRUCTURE)
        here = (piece.count(b"[") + piece.count(b"{"), piece.count(b'"'), piece.count(b":"), piece.count(b","))
        self._any = [before + now for before, now in zip(self._any, here, strict=True)]
        limits = (MAX_DEPTH, 2 * MAX_STRINGS * self._times + 1, MAX_KEYS * self._times, MAX_VALUES * self._times)
        return any(count > limit for count, limit in zip(self._any, limits, strict=True))

    def exceeds(self, piece: bytes) -> str | None:
        """Count without the contents of strings."""
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        piece = piece.translate(None, _ALL_BUT_STRUCTURE)
        in_string = self._quotes % 2
        self._quotes += piece.count(b'"')
        if (strings := self._quotes // 2) > self._times * MAX_STRINGS:
            return f"{strings} strings, more than {self._times * MAX_STRINGS}"
        # Two adjacent quotes can be removed: the text after them is inside or outside a string as before.
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
