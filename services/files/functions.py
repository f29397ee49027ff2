"""The functions that SQL calls beside SQLite's own: matching by RE2 and comparison of text without regard to case."""

from __future__ import annotations

import functools
from typing import Any

import apsw
import re2  # type: ignore[import-untyped]  # ships no types; used here alone


def register(connection: apsw.Connection) -> None:
    """Make them known to a connection."""
    connection.create_scalar_function("matches", _matches, 2, deterministic=True)
    connection.create_scalar_function("folded", _folded, 1, deterministic=True)


def _matches(*arguments: Any) -> bool:
    pattern, text = arguments
    return compiled(pattern).search(text) is not None


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """An RE2 pattern. Raises re2.error."""
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def _folded(*arguments: Any) -> str:
    text: str = arguments[0]
    return text.casefold()
