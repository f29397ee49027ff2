"""Patterns from outside (globs, ignore files, regular expressions) on texts from outside.

What an index is asked for in place of a pattern must be in every text that the pattern matches.
"""

from __future__ import annotations

import contextlib
import warnings

from proto.errors import InvalidParams
from services.documents.store import globs
from services.documents.text import lines
from services.documents.text.lines import TookTooLong
from services.files.query import matching
from services.shared import ignore_files, linear, literals
from services.shared.literals import Query
from services.yaml import schema
from tests.fuzz.coverage import parted, text

SEEDS = [
    b"**/*.py\0src/a/b.py",
    b"[!a-c]?[]x]*\0dxy",
    b"^(a+)+$\0aaaaaaaab",
    b"(?i)token=(\\w{3,}|[0-9a-f]+)\0Token=abc\nx",
    b"(?=x)\\1\0xx",
    b"/build/\n!keep\n*.o\n\\#x\n\0build/a.o",
    b"\\p{Greek}[[:alpha:]]\\x{41}\\Qa.b\\E\0\xce\xb1aAa.b",
    b"(?:abc|abd)x{2,3}\0abcxx",
]


def read(data: bytes) -> None:
    """A pattern and a text."""
    with warnings.catch_warnings():
        # Ignore warnings about sets that another Python version may read as nested.
        warnings.simplefilter("ignore", FutureWarning)
        _read(data)


def _read(data: bytes) -> None:
    first, second = parted(data, 2)
    pattern, subject = first.decode("utf-8", "replace"), second.decode("utf-8", "replace")
    globs.matcher([text(first)])(text(second))
    ignore_files.rules_from([text(first)], None, 0).ignores(text(second), is_folder=False)
    ignore_files._spec.cache_clear()
    globs.compiled.cache_clear()
    for mode in ("contains", "prefix", "suffix", "glob", "regex"):
        for any_case in (False, True):
            with contextlib.suppress(InvalidParams):
                matching.text_matches("path", pattern, mode, case_sensitive=any_case)
    _searched(pattern, subject)
    with contextlib.suppress(linear.BadPattern):
        schema._expression(pattern).search(subject)


def _searched(pattern: str, subject: str) -> None:
    try:
        found = linear.compiled(pattern).search(subject)
    except linear.BadPattern:
        _backtracking(pattern, subject)
        return
    if found is not None:
        for ignore_case in (False, True):
            assert _has(subject, literals.trigrams_of(pattern, ignore_case=ignore_case)), "its trigrams"
        assert all(part in subject for part in literals.parts_of(pattern)), "its parts"
    for options in ((False, False, False), (True, True, False), (False, True, True)):
        with contextlib.suppress(InvalidParams):
            lines.compiled(pattern, ignore_case=options[0], word=options[1], literal=options[2])


def _backtracking(pattern: str, subject: str) -> None:
    with contextlib.suppress(InvalidParams, TookTooLong):
        lines.compiled(pattern, ignore_case=False, word=False, literal=False)
    literals.trigrams_of(pattern)


def _has(subject: str, query: Query) -> bool:
    if query.op == "any":
        return True
    parts = (*(trigram in subject for trigram in query.trigrams), *(_has(subject, part) for part in query.parts))
    return any(parts) if query.op == "or" else all(parts)
