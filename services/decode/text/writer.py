"""The text of a document as it comes, within its limits of length and time."""

from __future__ import annotations

import time

from proto.ops.decode import MAX_TEXT_CHARACTERS


class Enough(Exception):
    """The text is as long, or has taken as long, as it may; the words are for the user."""


class Writer:
    """What a reader writes into, in `limit_s` at most; what was written before Enough is the text."""

    def __init__(self, limit_s: float) -> None:
        self.place = ""
        """Where the reader is, in the user's words: `page 3 of 10`."""
        self._until = time.monotonic() + limit_s
        self._parts: list[str] = []
        self._left = MAX_TEXT_CHARACTERS

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def write(self, text: str) -> None:
        """Raises Enough."""
        self._parts.append(text[: self._left])
        self._left -= len(self._parts[-1])
        if self._left <= 0:
            raise Enough(self._cut())
        self.check()

    def block(self, text: str) -> None:
        """A paragraph, a heading or a row, if there is anything in it.  Raises Enough."""
        if text := text.strip():
            self.write(f"{text}\n\n")

    def check(self) -> None:
        """Raises Enough where the time is up."""
        if time.monotonic() > self._until:
            raise Enough(self._cut())

    def _cut(self) -> str:
        return f"its text is cut {f'after {self.place}' if self.place else 'before its end'}"
