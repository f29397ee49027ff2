"""Finds the line of a text that is most like one that was looked for in vain."""

from __future__ import annotations

import time
from difflib import SequenceMatcher

LIMIT_S = 0.1
"""How long to look; then the best line so far is returned."""

_SEARCHED = 1 << 20
_COMPARED = 200
"""Characters of the text that are searched, and of each line that are compared."""

_LEAST = 0.6
_SHOWN = 120


def nearest_line(text: str, wanted: str, *, limit_s: float = LIMIT_S) -> str:
    """Return `; line 12 is nearest: '…'`, or "" if no line is similar.

    If several lines are wanted, the first of them that is no line of the text is compared.
    """
    lines = [line.strip() for line in text[:_SEARCHED].split("\n")]
    present = set(lines)
    asked = [line.strip() for line in wanted[:_SEARCHED].split("\n") if line.strip()]
    line = next((each for each in asked if each not in present), asked[0] if asked else "")
    number = _nearest(lines, line[:_COMPARED], time.monotonic() + limit_s) if line else 0
    if not number:
        return ""
    found = lines[number - 1]
    shown = found if len(found) <= _SHOWN else f"{found[:_SHOWN]}…"
    which = "" if len(asked) == 1 else f" to its line {line[:40]!r}"
    return f"; line {number} is nearest{which}: {shown!r}"


def _nearest(lines: list[str], line: str, until: float) -> int:
    """Return the number of the most similar line, from 1; 0 if none is similar."""
    matcher = SequenceMatcher(autojunk=False)
    # It caches what it knows of the second sequence.
    matcher.set_seq2(line)
    best, number = _LEAST, 0
    for n, each in enumerate(lines, 1):
        if time.monotonic() > until:
            break
        matcher.set_seq1(each[:_COMPARED])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (ratio := matcher.ratio()) > best:
            best, number = ratio, n
            if ratio == 1:
                break
    return number
