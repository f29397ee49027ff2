"""How often a client may call: so many calls in a time, and so many at once."""

from __future__ import annotations

import functools
import re
from typing import Annotated

import msgspec
from msgspec import Meta

PATTERN = r"^([1-9][0-9]{0,8})/(s|min|h)(?: burst ([1-9][0-9]{0,8}))?$"
_WRITTEN = re.compile(PATTERN)
_PER_MINUTE = {"s": 60.0, "min": 1.0, "h": 1 / 60}

BURST_MINUTES = 1 / 6
"""What may come at once, where that is not said: as much as in ten seconds."""


class Rate(msgspec.Struct, frozen=True):
    """`per_minute` calls in the long run, of which `burst` may come at once."""

    per_minute: Annotated[float, Meta(gt=0)]
    burst: Annotated[int, Meta(ge=1)]


@functools.lru_cache
def parse_rate(text: str) -> Rate:
    """`600/min`, `10/s`, `5000/h`, each with ` burst 50` or not.  Raises ValueError: says how to write it."""
    written = _WRITTEN.fullmatch(text.strip())
    if written is None:
        raise ValueError(f"{text!r} is no rate; write 600/min, 10/s or 5000/h, and what may come at once: 9/s burst 50")
    per_minute = int(written[1]) * _PER_MINUTE[written[2]]
    return Rate(per_minute, int(written[3]) if written[3] else max(1, round(per_minute * BURST_MINUTES)))
