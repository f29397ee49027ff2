"""What JSON from outside may come to: counted in its bytes, before any object is made of it.

An empty list is three bytes to send and fifty to hold, and each level of nesting is a frame of whatever walks it later:
without bounds a few hundred kilobytes stall a process, and thirty megabytes take gigabytes. The counts are of
`bytes.count` and `bytes.translate`, one to five milliseconds a MiB; an ordinary message needs no more than the first.
"""

from __future__ import annotations

from array import array
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

_FIRST_BYTES = 1024 * 1024
"""What is counted before the rest: a flood goes beyond the bounds early."""

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
    containers = data.count(b"[") + data.count(b"{")
    if containers <= MAX_DEPTH and len(data) <= times * MAX_STRINGS:
        # Of each of them there are fewer than bytes.
        return None
    if len(data) > _FIRST_BYTES and (found := exceeded(data[:_FIRST_BYTES], times=times)) is not None:
        return found
    strings, keys, values = data.count(b'"') // 2, data.count(b":"), data.count(b",")
    within = strings <= times * MAX_STRINGS and keys <= times * MAX_KEYS and values <= times * MAX_VALUES
    if containers <= MAX_DEPTH and within:
        return None
    # These are counts of what stands in strings as well: leave that out, escapes first.
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        strings = data.count(b'"') // 2
    if strings > times * MAX_STRINGS:
        return f"{strings} strings, more than {times * MAX_STRINGS}"
    # Two quotes side by side may go: what follows stays within a string, or outside.
    data = data.translate(None, _ALL_BUT_STRUCTURE).replace(b'""', b"")
    data = b"".join(data.split(b'"')[::2])
    if (keys := data.count(b":")) > times * MAX_KEYS:
        return f"{keys} keys, more than {times * MAX_KEYS}"
    if (values := data.count(b",")) > times * MAX_VALUES:
        return f"{values} values, more than {times * MAX_VALUES}"
    nesting = data.translate(_STEPS, _ALL_BUT_NESTING)
    if (containers := nesting.count(1)) > times * MAX_CONTAINERS:
        return f"{containers} lists and objects, more than {times * MAX_CONTAINERS}"
    depth = max(accumulate(array("b", nesting)), default=0)
    return f"{depth} levels, more than {MAX_DEPTH}" if depth > MAX_DEPTH else None
