"""Searches files for a pattern: the part that every process involved in a search does.

Files are read in large blocks, and the pattern is matched against a whole block; lines are only split around matches.
The expression is RE2's, so the search is linear in the text. As in ripgrep, a file that contains a NUL is binary and
skipped, and only line feeds end lines, but for `$` a carriage return before one belongs to it, as with `rg --crlf`.
Texts in character sets other than UTF-8 are decoded.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs

from proto.errors import InvalidParams
from services.files import paths
from services.files.operations.text import GrepFile, GrepFiles, GrepLine, GrepPart, Piece
from services.runtime.roots import OutsideRoots, Roots
from services.shared import linear, literals
from services.shared.text.charsets import charset_of

FIRST_READ = 1 << 17
"""Bytes read at first: enough for most files."""
WINDOW = 1 << 24
MAX_LINE = 1 << 26
"""In bytes; a longer line is searched in parts."""
SHOWN = 500
"""Longest excerpt of a line, in bytes."""
_LEAD = 120
"""How much of the excerpt precedes the match, in bytes."""
MAX_PATTERN_BYTES = 64 * 1024 * 1024
TURN_S = 0.5
"""Time after which a process returns its results so far, so that no piece takes long."""
_SPECIAL = frozenset(r"\.^$*+?{}[]|()")
_RETURN = re.compile(r"\r|\\r|\\x0[dD]|\\x\{0*[dD]\}|\\015")
"""Patterns that ask for carriage returns."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


class Window(NamedTuple):
    """A block of text. Matches begin between `start` and `end`, exclusive; the rest is context. `line` is the number of
    the line at `start`."""

    data: bytes
    start: int
    end: int
    line: int


Spans = Callable[[bytes, int, int], Iterator[tuple[int, int, int]]]
"""Yields matching lines between two offsets: the line's start and end, and where its first match begins."""


class Pattern:
    """A compiled search pattern."""

    def __init__(self, pattern: str, *, literal: bool, ignore_case: bool) -> None:
        """Raises InvalidParams if it is not a regular expression."""
        is_plain = literal or not _SPECIAL.intersection(pattern)
        body = re2.escape(pattern) if is_plain else pattern
        options = {
            "never_nl": True, "never_capture": True, "max_mem": MAX_PATTERN_BYTES,
            "case_sensitive": not ignore_case,
        }  # fmt: skip
        try:
            # Compiled alone first, so that an error quotes what the caller wrote.
            linear.compiled(body, **options)
            self._expression = linear.compiled(f"(?m)(?:{body})", **options)
        except linear.BadPattern as error:
            raise InvalidParams(f"`pattern` is not a valid RE2 regular expression: {error}", field="pattern") from None
        needed = [] if ignore_case else [pattern] if is_plain else literals.parts_of(pattern)
        self.needed = max(needed, key=len, default="").encode()
        """Bytes that every matching text contains."""
        is_literal = is_plain and self.needed != b""
        self.by_line = not is_literal and not _RETURN.search(pattern)
        """Whether a carriage return before a line feed belongs to the end of the line, as `$` expects."""
        self.spans: Spans = self._plain if is_literal else self._by_expression
        # Linear too, and three times as fast as looping over the lines.
        self._lines = re.compile(re.escape(self.needed) + rb"[^\n]*") if is_literal else None

    def count(self, window: Window) -> int:
        """Return the number of matching lines in a window."""
        if self._lines is not None:
            return len(self._lines.findall(window.data, window.start, window.end))
        return sum(1 for _ in self.spans(window.data, window.start, window.end))

    def _plain(self, data: bytes, position: int, last: int) -> Iterator[tuple[int, int, int]]:
        needed = self.needed
        while (at := data.find(needed, position, last)) >= 0:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield data.rfind(b"\n", 0, at) + 1, end, at
            position = end + 1

    def _by_expression(self, data: bytes, position: int, last: int) -> Iterator[tuple[int, int, int]]:
        if self.needed:
            at = data.find(self.needed, position)
            if at < 0:
                return
            position = max(position, data.rfind(b"\n", 0, at) + 1)
        following = True
        while following and position < last:
            following = False
            for match in self._expression.finditer(data, position, last):
                at = match.start()
                # Another match in the line just returned. Continue with the next line, since there may be many of them.
                if following := at < position:
                    break
                # There is no line after the last line feed.
                if at >= last and data[last - 1] == 10:
                    return
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                yield data.rfind(b"\n", 0, at) + 1, end, at
                position = end + 1


@functools.lru_cache(maxsize=8)
def pattern_of(pattern: str, literal: bool, ignore_case: bool) -> Pattern:
    """Return the pattern, compiled once for all pieces of a search. Raises InvalidParams."""
    return Pattern(pattern, literal=literal, ignore_case=ignore_case)


def search(roots: Roots, how: GrepFiles, piece: Piece, most: int, go_on: Callable[[], None] | None = None) -> GrepPart:
    """Search the files of a piece until `most` lines (or files) are found or the turn is over.

    Args:
        go_on: called periodically; may raise.

    Raises:
        InvalidParams: the pattern is not a regular expression.
    """
    looking = _Looking(roots, how, most, go_on or (lambda: None))
    until = time.monotonic() + TURN_S
    for folder, names in piece:
        looking.folder(folder, names, until)
        if looking.is_over:
            break
    return GrepPart(
        files=looking.found, done=looking.done, searched=looking.searched, binary=looking.binary,
        unreadable=looking.unreadable,
    )  # fmt: skip


class _Looking:
    def __init__(self, roots: Roots, how: GrepFiles, most: int, go_on: Callable[[], None]) -> None:
        self._roots = roots
        self._go_on = go_on
        self._how = how
        self._left = most
        self._pattern = pattern_of(how.pattern, how.literal, how.ignore_case)
        # Files without this text are not searched further.
        self._needed = self._pattern.needed
        self.found: list[GrepFile] = []
        self.done = self.searched = self.binary = 0
        self.unreadable: list[str] = []
        self.is_over = False

    def folder(self, folder: str, names: list[str], until: float) -> None:
        try:
            at = self._roots.open_folder(paths.to_os(paths.of_folder(folder)))
        except (OSError, OutsideRoots) as error:
            self.unreadable.append(_describe_error(folder, error))
            self.done += len(names)
            return
        try:
            for name in names:
                try:
                    self._file(at, folder, name)
                except OSError as error:
                    # Files removed since the folder was listed are not reported.
                    if not isinstance(error, FileNotFoundError):
                        self.unreadable.append(_describe_error(folder + name, error))
                self.done += 1
                if self._left <= 0 or time.monotonic() > until:
                    self.is_over = True
                    return
                if self.done % 64 == 0:
                    self._go_on()
        finally:
            os.close(at)

    def _file(self, at: int, folder: str, name: str) -> None:
        descriptor = os.open(paths.to_os(name), _OPEN, dir_fd=at)
        try:
            data = os.read(descriptor, FIRST_READ)
            self.searched += 1
            if len(data) == FIRST_READ:
                self._windows(descriptor, data, folder + name)
                return
        finally:
            os.close(descriptor)
        if data[:1] >= b"\xef":
            data = decoded(data)
        if b"\0" in data:
            self.binary += 1
            return
        # Some 7-bit character sets use escapes, so ASCII bytes do not suffice to rule them out.
        is_plain = data.isascii() and b"\x1b" not in data
        if self._needed not in data and (is_plain or self._needed.isascii()):
            return
        if not is_plain:
            data = recoded(data, charset_of(data).codec)
        if self._needed in data:
            self._take(folder + name, [Window(data, 0, len(data), 1)])

    def _windows(self, descriptor: int, head: bytes, path: str) -> None:
        found, left = len(self.found), self._left
        with contextlib.suppress(_Binary):
            windows = _windows(descriptor, head, self._how.context)
            is_plain = head.isascii() or head[:2] in _UTF16 or b"\0" in head
            codec = "utf-8" if is_plain else charset_of(head, is_cut=True).codec
            self._take(path, self._checked(windows if codec == "utf-8" else _recoded(windows, codec)))
            return
        del self.found[found:]
        self._left = left
        self.binary += 1

    def _checked(self, windows: Iterator[Window]) -> Iterator[Window]:
        for window in windows:
            self._go_on()
            yield window

    def _take(self, path: str, windows: Iterator[Window] | list[Window]) -> None:
        how = self._how
        if self._pattern.by_line:
            windows = map(_without_returns, windows)
        if how.count or how.files_with_matches:
            count = 0
            for window in windows:
                if how.count:
                    count += self._pattern.count(window)
                elif any(True for _ in self._pattern.spans(window.data, window.start, window.end)):
                    count = 1
                    break
            if count:
                self.found.append(GrepFile(path=path, count=count if how.count else 0))
                self._left -= 1
            return
        lines: list[GrepLine] = []
        for window in windows:
            data, number, counted = window.data, window.line, window.start
            for start, end, at in self._pattern.spans(data, window.start, window.end):
                if len(lines) >= self._left:
                    # The rest is still read, since it may contain a NUL.
                    break
                number += data.count(b"\n", counted, start)
                counted = start
                text = shown(data[start:end], at - start)
                if how.context:
                    lines.append(GrepLine(number, text, *_around(data, start, end, how.context)))
                else:
                    lines.append(GrepLine(number, text))
        if lines:
            self.found.append(GrepFile(path=path, matches=lines))
            self._left -= len(lines)


class _Binary(Exception):
    pass


def _windows(descriptor: int, data: bytes, context: int) -> Iterator[Window]:
    """Yield the windows of a file that did not fit into the first read, `data`. Raises OSError or _Binary."""
    if data[:2] in _UTF16:
        rest = [data]
        while chunk := os.read(descriptor, WINDOW):
            rest.append(chunk)
        data = decoded(b"".join(rest))
        if b"\0" in data:
            raise _Binary
        yield Window(data, 0, len(data), 1)
        return
    data = data.removeprefix(_BOM)
    start, line = 0, 1
    while True:
        chunk = _filled(descriptor, WINDOW)
        if b"\0" in data or b"\0" in chunk:
            raise _Binary
        data += chunk
        if len(chunk) < WINDOW:
            yield Window(data, start, len(data), line)
            return
        end = _back(data, len(data), context + 1)
        if end <= start and len(data) - start <= MAX_LINE:
            # A single line that continues.
            continue
        if end <= start:
            yield Window(data, start, len(data), line)
            data, start = b"", 0
            continue
        yield Window(data, start, end, line)
        line += data.count(b"\n", start, end)
        kept = _back(data, end, context + 1)
        data, start = data[kept:], end - kept


def _recoded(windows: Iterator[Window], codec: str) -> Iterator[Window]:
    """Convert windows of a text in another character set to UTF-8. They are split between lines, or within a line that
    is too long to be read."""
    for window in windows:
        before, own, after = (
            recoded(part, codec)
            for part in (
                window.data[: window.start],
                window.data[window.start : window.end],
                window.data[window.end :],
            )
        )
        yield Window(before + own + after, len(before), len(before) + len(own), window.line)


def _without_returns(window: Window) -> Window:
    """Let lines that end in carriage return and line feed end in line feeds."""
    data, start, end, line = window
    if b"\r\n" not in data:
        return window
    before, own, after = (part.replace(b"\r\n", b"\n") for part in (data[:start], data[start:end], data[end:]))
    return Window(before + own + after, len(before), len(before) + len(own), line)


def recoded(data: bytes, codec: str) -> bytes:
    """Convert a text in another character set to UTF-8."""
    return data if codec == "utf-8" else data.decode(codec, "replace").encode("utf-8", "replace")


def _filled(descriptor: int, most: int) -> bytes:
    parts = []
    while most and (chunk := os.read(descriptor, most)):
        parts.append(chunk)
        most -= len(chunk)
    return b"".join(parts)


def _back(data: bytes, end: int, lines: int) -> int:
    """Return the offset after the line feed that is `lines` line feeds before `end`, or 0 if there are fewer."""
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1


def decoded(data: bytes) -> bytes:
    """Convert a text with a byte order mark to UTF-8 without one; other texts are returned unchanged."""
    if data[:2] in _UTF16:
        return data.decode("utf-16", "replace").encode("utf-8", "replace")
    return data.removeprefix(_BOM)


def shown(line: bytes, at: int) -> str:
    """Format a line for an answer: of a long line, an excerpt around the match at byte `at`."""
    line = line.removesuffix(b"\r")
    if len(line) <= SHOWN:
        return line.decode("utf-8", "replace")
    first = max(0, at - _LEAD)
    # A character cut in two is dropped.
    text = line[first : first + SHOWN].decode("utf-8", "ignore")
    return ("…" if first else "") + text + ("…" if first + SHOWN < len(line) else "")


def _around(data: bytes, start: int, end: int, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines before and after the one from `start` to `end`."""
    before: list[str] = []
    after: list[str] = []
    while len(before) < context and start > 0:
        first = data.rfind(b"\n", 0, start - 1) + 1
        before.insert(0, shown(data[first : start - 1], 0))
        start = first
    while len(after) < context and end + 1 < len(data):
        stop = data.find(b"\n", end + 1)
        stop = len(data) if stop < 0 else stop
        after.append(shown(data[end + 1 : stop], 0))
        end = stop
    return tuple(before), tuple(after)


def _describe_error(path: str, error: Exception) -> str:
    return f"{path[:1000]}: {error.strerror if isinstance(error, OSError) else error}"
