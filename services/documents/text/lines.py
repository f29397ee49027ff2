"""Find matching lines with RE2 in linear time, or with `regex` and a time limit for patterns that RE2 rejects."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import re2  # type: ignore[import-untyped]  # it ships no types
import regex

from proto.errors import InvalidParams
from services.documents.store.texts import Window
from services.shared import linear

MAX_LINE_CHARACTERS = 2000
RE2_MEMORY_BYTES = 64 * 1024 * 1024
DOCUMENT_LIMIT_S = 2.0
"""Time limit per document for `regex`, whose matching time can be exponential."""


@dataclass(frozen=True, slots=True)
class Line:
    """A matching line.  Columns count characters from 1."""

    number: int
    column: int
    text: str
    before: list[str]
    after: list[str]


class TookTooLong(Exception):
    """Matching did not finish within the time limit."""


Span = tuple[int, int, int]
"""Start and end of a line in a window's bytes, and the column of its first match, in characters from 1."""


class Matcher:
    """Finds matching lines."""

    def lines(self, window: Window, context: int, *, bare: bool) -> Iterator[Line]:
        """Yield the matching lines of a window in order, without text if `bare`.  Raises TookTooLong."""
        data, number, counted = window.data, window.line, window.start
        for start, end, column in self._spans(window):
            number += data.count(b"\n", counted, start)
            counted = start
            if bare:
                yield Line(number, 0, "", [], [])
            else:
                yield Line(number, column, shown(data[start:end]), *around(data, start, end, context))

    def _spans(self, window: Window) -> Iterator[Span]:
        raise NotImplementedError


def compiled(pattern: str, *, ignore_case: bool, word: bool, literal: bool) -> Matcher:
    """Compile a pattern.  Raises InvalidParams if neither library accepts it."""
    body = re2.escape(pattern) if literal else pattern
    if word:
        body = rf"\b(?:{body})\b"
    options = {"never_nl": True, "max_mem": RE2_MEMORY_BYTES, "case_sensitive": not ignore_case}
    try:
        # Compile it unchanged first, so that the error quotes the caller's pattern.
        linear.compiled(body, **options)
        return _Linear(linear.compiled(f"(?m)(?:{body})", **options))
    except linear.BadPattern as error:
        text = str(error)
    if not any(mark in pattern for mark in ("(?", "\\", "+")):
        raise InvalidParams(f"parameter `pattern` is not a valid regular expression: {text}", field="pattern")
    try:
        flags = regex.VERSION0 | (regex.IGNORECASE if ignore_case else 0)
        return _Backtracking(regex.compile(body, flags))
    except (regex.error, RecursionError, OverflowError):
        raise InvalidParams(f"parameter `pattern` is not a valid regular expression: {text}", field="pattern") from None


class _Linear(Matcher):
    def __init__(self, pattern: re2._Regexp) -> None:
        self._pattern = pattern

    def _spans(self, window: Window) -> Iterator[Span]:
        data, position, last = window.data, window.start, window.end
        search = self._pattern.search
        while position < last:
            match = search(data, position, last)
            if match is None or (match.start() >= last and data[last - 1 : last] == b"\n"):
                break
            at = match.start()
            start = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield start, end, len(data[start:at].decode("utf-8", "replace")) + 1
            position = end + 1


class _Backtracking(Matcher):
    def __init__(self, pattern: regex.Pattern[str]) -> None:
        self._pattern = pattern

    def _spans(self, window: Window) -> Iterator[Span]:
        give_up = time.monotonic() + DOCUMENT_LIMIT_S
        start = window.start
        while start < window.end:
            end = window.data.find(b"\n", start, window.end)
            end = window.end if end < 0 else end
            left = give_up - time.monotonic()
            if left <= 0:
                raise TookTooLong
            line = window.data[start:end].decode("utf-8", "replace")
            try:
                match = self._pattern.search(line, timeout=left, concurrent=True)
            except TimeoutError:
                raise TookTooLong from None
            if match is not None:
                yield start, end, match.start() + 1
            start = end + 1


def shown(line: bytes) -> str:
    return line[: 4 * MAX_LINE_CHARACTERS].decode("utf-8", "replace")[:MAX_LINE_CHARACTERS]


def around(data: bytes, start: int, end: int, context: int) -> tuple[list[str], list[str]]:
    """Return the lines before and after the line from `start` to `end`."""
    before: list[str] = []
    after: list[str] = []
    while len(before) < context and start > 0:
        first = data.rfind(b"\n", 0, start - 1) + 1
        before.insert(0, shown(data[first : start - 1]))
        start = first
    while len(after) < context and end + 1 < len(data):
        stop = data.find(b"\n", end + 1)
        stop = len(data) if stop < 0 else stop
        after.append(shown(data[end + 1 : stop]))
        end = stop
    return before, after
