"""Whether a file name says anything about the content."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\dA-Za-z_]+")
_HEXADECIMAL = re.compile(r"(?=[0-9a-f]*\d)[0-9a-f]{6,}", re.IGNORECASE)
_LEAST = 3
"""Letters of a word that says something; shorter ones are mostly counters (`d0017`, `fn12`)."""

_GENERAL = frozenset(
    (
        "attachment", "clip", "code", "copy", "data", "doc", "docs", "document", "download", "draft", "dsc", "dump",
        "entry", "example", "export", "file", "final", "func", "function", "image", "img", "import", "index", "init",
        "input", "item", "latest", "main", "new", "note", "notes", "old", "output", "page", "part", "pic", "photo",
        "picture", "readme", "record", "sample", "scan", "screenshot", "section", "snippet", "source", "src", "temp",
        "test", "text", "the", "tmp", "txt", "unnamed", "untitled", "upload", "version",
    )
)  # fmt: skip


def tells(name: str) -> bool:
    """Return True if a file name without its extension has a word that is neither general nor a number or digest."""
    stem = name.rsplit(".", 1)[0] if "." in name[1:] else name
    words = _WORD.findall(_HEXADECIMAL.sub(" ", stem))
    return any((len(word) >= _LEAST or not word.isascii()) and word.lower() not in _GENERAL for word in words)
