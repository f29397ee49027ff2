"""Lines of a text that match: in linear time by RE2, or by `regex` within a time limit for what RE2 cannot do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import re2  # type: ignore[import-untyped]  # it ships no types; used in this module alone
import regex

from proto.errors import InvalidParams
from services.documents.store.texts import Window

MAX_LINE_CHARACTERS = 2000
RE2_MEMORY_BYTES = 64 * 1024 * 1024
DOCUMENT_LIMIT_S = 2.0
"""For one document under `regex`, whose time can grow exponentially."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that matches; columns in characters from 1."""

    number: int
    column: int
    text: str
    before: list[str]
    after: list[str]


class TookTooLong(Exception):
    """The pattern did not come to an end on this text."""


class Matcher(Protocol):
    """Finds the lines that match."""

    def lines(self, window: Window, context: int, *, bare: bool) -> Iterator[Line]:
        """Those of a window, in order.  `bare` ones have no text.  Raises TookTooLong."""


def compiled(pattern: str, *, ignore_case: bool, word: bool, literal: bool) -> Matcher:
    """Raises InvalidParams: neither library understands the pattern."""
    body = re2.escape(pattern) if literal else pattern
    if word:
        body = rf"\b(?:{body})\b"
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    options.max_mem = RE2_MEMORY_BYTES
    options.case_sensitive = not ignore_case
    try:
        # Alone first, so that an error repeats what the caller wrote.
        re2.compile(body.encode(), options)
        return _Linear(re2.compile(f"(?m)(?:{body})".encode(), options))
    except re2.error as error:
        reason = error.args[0] if error.args else "it is no regular expression"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    except UnicodeEncodeError:
        raise InvalidParams("parameter `pattern` is not valid Unicode", field="pattern") from None
    if not any(mark in pattern for mark in ("(?", "\\", "+")):
        raise InvalidParams(f"parameter `pattern` is no regular expression: {text}", field="pattern")
    try:
        flags = regex.VERSION0 | (regex.IGNORECASE if ignore_case else 0)
        return _Backtracking(regex.compile(body, flags))
    except (regex.error, RecursionError, OverflowError):
        raise InvalidParams(f"parameter `pattern` is no regular expression: {text}", field="pattern") from None


class _Linear:
    def __init__(self, pattern: re2._Regexp) -> None:
        self._pattern = pattern

    def lines(self, window: Window, context: int, *, bare: bool) -> Iterator[Line]:
        data = window.data
        number, counted = window.line, window.numbered
        search = self._pattern.search
        for begin, last in window.spans:
            position = begin
            while position < last:
                match = search(data, position, last)
                if match is None or (match.start() >= last and data[last - 1 : last] == b"\n"):
                    break
                at = match.start()
                start = data.rfind(b"\n", 0, at) + 1
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                number += data.count(b"\n", counted, start)
                counted = start
                position = end + 1
                if bare:
                    yield Line(number, 0, "", [], [])
                else:
                    column = len(data[start:at].decode("utf-8", "replace")) + 1
                    yield Line(number, column, shown(data[start:end]), *around(data, start, end, context))


class _Backtracking:
    def __init__(self, pattern: regex.Pattern[str]) -> None:
        self._pattern = pattern

    def lines(self, window: Window, context: int, *, bare: bool) -> Iterator[Line]:
        give_up = time.monotonic() + DOCUMENT_LIMIT_S
        data = window.data
        number, counted = window.line, window.numbered
        for begin, last in window.spans:
            start = begin
            while start < last:
                end = data.find(b"\n", start, last)
                end = last if end < 0 else end
                left = give_up - time.monotonic()
                if left <= 0:
                    raise TookTooLong
                line = data[start:end].decode("utf-8", "replace")
                try:
                    match = self._pattern.search(line, timeout=left, concurrent=True)
                except TimeoutError:
                    raise TookTooLong from None
                if match is not None:
                    number += data.count(b"\n", counted, start)
                    counted = start
                    if bare:
                        yield Line(number, 0, "", [], [])
                    else:
                        column = match.start() + 1
                        yield Line(number, column, shown(data[start:end]), *around(data, start, end, context))
                start = end + 1


def shown(line: bytes) -> str:
    """A line as an answer has it."""
    if len(line) > 4 * MAX_LINE_CHARACTERS:
        line = line[: 4 * MAX_LINE_CHARACTERS]
    text = line.decode("utf-8", "replace")
    return text if len(text) <= MAX_LINE_CHARACTERS else text[:MAX_LINE_CHARACTERS]


def around(data: bytes, start: int, end: int, context: int) -> tuple[list[str], list[str]]:
    """The lines before and after the one at `start`."""
    before: list[str] = []
    after: list[str] = []
    last = start
    for _ in range(context):
        if last <= 0:
            break
        first = data.rfind(b"\n", 0, last - 1) + 1
        before.insert(0, shown(data[first : last - 1]))
        last = first
    first = end + 1
    for _ in range(context):
        if first >= len(data):
            break
        stop = data.find(b"\n", first)
        stop = len(data) if stop < 0 else stop
        after.append(shown(data[first:stop]))
        first = stop + 1
    return before, after
