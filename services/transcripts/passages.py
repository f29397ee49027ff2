"""The text that a turn is found by: without what agents put around it, and cut so that a model reads all of it.

Agents wrap notes of their own into messages (reminders, the state of an editor, which command was typed). Left in,
they make turns alike that have nothing in common, and what was said is found less well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from services.runtime.linear import without_spans

TAGS = (
    "system-reminder", "system_reminder", "command-name", "command-message", "command-contents",
    "local-command-stdout", "local-command-stderr", "local-command-caveat", "user-prompt-submit-hook",
    "task-notification", "ide_opened_file", "ide_selection", "ide_diagnostics", "environment_context",
    "environment_details", "user_instructions", "INSTRUCTIONS", "permissions instructions", "collaboration_mode",
    "session_context", "turn_aborted", "user_info", "open_files", "open_and_recently_viewed_files", "additional_data",
)  # fmt: skip
"""Whose content is the agent's, not the person's nor the model's."""

BARE_TAGS = ("command-args", "user_query", "user_shell_command")
"""Whose content is the person's."""

PIECE_CHARS = 1000
"""About what the common small models read at once; more would be passed over."""

MAX_EMBEDDED = 48
"""Pieces of one turn that get a vector; of a log of megabytes the rest is found by words."""

WORDS_CHARS = 16_000
"""Of a piece that is found by words alone."""

MAX_PIECES = 1024
"""Of one turn; 17 million characters."""


_LINE_REST = re.compile(r"[ \t]*\n?")


class Stripper:
    """Takes the tags out; `more` names further ones."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        names = "|".join(map(re.escape, (*TAGS, *more)))
        self._opening = re.compile(rf"<({names})(?:\s[^<>]*)?>")
        self._bare = re.compile(rf"</?(?:{'|'.join(BARE_TAGS)})>")

    def __call__(self, text: str) -> str:
        """`text` as it was said; the same object where there is nothing to take out."""
        if "</" not in text:
            return text
        return self._bare.sub("", without_spans(self._opening, text, _LINE_REST))


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Pieces of `text` in order, each with whether it gets a vector."""
    text = text.strip()
    start = count = 0
    while start < len(text) and count < MAX_PIECES:
        embedded = count < MAX_EMBEDDED
        end = _end(text, start, PIECE_CHARS if embedded else WORDS_CHARS)
        if piece := text[start:end].strip():
            yield piece, embedded
            count += 1
        start = end


def _end(text: str, start: int, size: int) -> int:
    """Where a piece ends that starts at `start`: at the end of a paragraph, a line, a sentence or a word."""
    end = start + size
    if end >= len(text):
        return len(text)
    for mark in ("\n\n", "\n", ". ", " "):
        cut = text.rfind(mark, start + size // 2, end)
        if cut > 0:
            return cut + len(mark)
    return end
