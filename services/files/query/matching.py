"""Conditions on entries as SQL: number ranges, literal text, linear-time regular expressions (RE2), and globs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import re2  # type: ignore[import-untyped]  # ships no types

from proto.errors import InvalidParams
from services.files.operations.plans import MediaType
from services.files.operations.resources import TextMode
from services.files.store.sql import key, searcher
from services.shared import literals
from services.shared.linear import BadPattern

COLUMNS = {
    "path": "n.path",
    "name": "n.name",
    "parent": "CASE n.folder WHEN '/' THEN '/' ELSE rtrim(n.folder, '/') END",
    "kind": "CASE n.kind WHEN 0 THEN 'file' WHEN 1 THEN 'directory' WHEN 2 THEN 'symlink' ELSE 'other' END",
    "extension": "n.extension",
    "size": "n.size",
    "disk_size": "n.disk",
    "links": "n.links",
    "inode": "n.inode",
    "mtime": "n.mtime",
    "ctime": "n.ctime",
    "added_at": "m.added",
    "depth": "(length(n.path) - length(replace(n.path, '/', '')))",
}
"""Columns of the view `node` (`n`) and of set members (`m`), by the name that clients use."""

_EXTENSIONS: dict[MediaType, str] = {
    "image": "avif bmp cr2 cr3 dng exr gif heic heif ico jfif jp2 jpe jpeg jpg jxl nef orf png psd raf raw rw2 svg tga"
    " tif tiff webp arw",
    "video": "3g2 3gp avi flv m2ts m4v mkv mov mp4 mpeg mpg mts mxf ogv ts vob webm wmv",
    "audio": "aac aif aiff alac amr ape au flac m4a m4b mid midi mp3 oga ogg opus wav wma wv",
    "document": "csv doc docx epub htm html json key log md mobi numbers odp ods odt org pages pdf ppt pptx ps rst rtf"
    " tex toml tsv txt xls xlsx xml yaml yml",
}

EXTENSIONS = {kind: frozenset(text.split()) for kind, text in _EXTENSIONS.items()}
"""Extensions by media type."""


class Compare(NamedTuple):
    """A test that the columns in memory can decide (`arrays`); `column` is a name that they know."""

    column: str
    sign: str
    value: int | str


class Contains(NamedTuple):
    """Parts that every matching name or path contains in some case, each with its mode. SQLite tests what has them."""

    field: str
    parts: tuple[tuple[str, str], ...]


class Condition(NamedTuple):
    """An SQL expression and its bindings."""

    sql: str
    bindings: tuple[str | int | None, ...] = ()
    tests: tuple[Compare | Contains, ...] = ()
    """The same condition for the columns in memory; empty if only SQLite can evaluate it."""


NUMBERS = frozenset({"size", "disk", "links", "inode", "mtime", "ctime"})
"""Columns with numbers that are also in memory."""


def between(field: str, least: int | None, most: int | None) -> list[Condition]:
    """Match numbers in a range, both ends inclusive; None means unbounded."""
    column = COLUMNS[field]
    ends = ((">=", least), ("<=", most))
    return [
        Condition(f"{column} {sign} ?", (end,), compared(column, sign, end)) for sign, end in ends if end is not None
    ]


def compared(column: str, sign: str, value: int | str | None) -> tuple[Compare, ...]:
    """Return the tests of a comparison with a number; `column` is an SQL expression."""
    name = column.removeprefix("n.")
    return (Compare(name, sign, value),) if name in NUMBERS and isinstance(value, int) else ()


def text_matches(field: str, pattern: str, mode: TextMode, *, case_sensitive: bool) -> Condition:
    """Match a text column of `COLUMNS`. Raises InvalidParams if the pattern is invalid."""
    if mode == "regex":
        found = _regex(COLUMNS[field], pattern if case_sensitive else f"(?i){pattern}", pattern)
        parts = [(part, "contains") for part in literals.parts_of(pattern)]
        narrowed = _narrowed(found, field, parts, any_case=not case_sensitive)
        return narrowed._replace(tests=_tests(field, parts, any_case=not case_sensitive))
    if mode == "glob":
        parts = literals.parts_of_glob(pattern)
        return _glob(field, pattern, case_sensitive)._replace(tests=_tests(field, parts, any_case=not case_sensitive))
    if not pattern:
        return Condition("1")
    found = _literal(COLUMNS[field], pattern, mode, case_sensitive)
    return found._replace(tests=_tests(field, [(pattern, mode)], any_case=False))


def _tests(field: str, parts: Sequence[tuple[str, str]], *, any_case: bool) -> tuple[Contains, ...]:
    """`any_case`: RE2 ignores the case, by rules of its own for other letters than those of ASCII."""
    usable = tuple((part, mode) for part, mode in parts if part and (part.isascii() or not any_case))
    return (Contains(field, usable),) if usable and field in ("name", "path") else ()


def _narrowed(condition: Condition, field: str, parts: Sequence[tuple[str, str]], *, any_case: bool) -> Condition:
    """Precede a condition with tests for literal parts that every matching text contains, each as its mode says.

    Testing the parts in SQL avoids calls of `matches`, which cost ten times as much.
    """
    usable = [(part, mode) for part, mode in parts if part and (part.isascii() or not any_case)]
    if not usable:
        return condition
    column = COLUMNS[field]
    tests: list[str] = []
    bindings: list[str | int | None] = []
    for part, mode in usable:
        test = _literal(column, part, mode, not any_case)
        # These are the only ASCII letters with non-ASCII case variants: the Kelvin sign and the long s.
        loose = any_case and any(letter in part.lower() for letter in "ks")
        tests.append(f"({test.sql} OR octet_length({column}) > length({column}))" if loose else test.sql)
        bindings += test.bindings
    return Condition(
        f"CASE WHEN {' AND '.join(tests)} THEN {condition.sql} ELSE 0 END", (*bindings, *condition.bindings)
    )


def _literal(column: str, pattern: str, mode: str, case_sensitive: bool) -> Condition:
    if not case_sensitive and pattern.isascii():
        # LIKE ignores the case of ASCII letters.
        escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        like = f"{'' if mode == 'prefix' else '%'}{escaped}{'' if mode == 'suffix' else '%'}"
        return Condition(f"{column} LIKE ? ESCAPE '\\'", (like,))
    if not case_sensitive:
        column, pattern = key(column), pattern.casefold()
    if mode == "contains":
        return Condition(f"instr({column}, ?) > 0", (pattern,))
    if mode == "prefix":
        return Condition(f"substr({column}, 1, ?) = ?", (len(pattern), pattern))
    return Condition(f"substr({column}, -?) = ?", (len(pattern), pattern))


def _regex(column: str, pattern: str, given: str) -> Condition:
    try:
        searcher(pattern)
    except BadPattern as error:
        raise InvalidParams(
            f"`pattern` {given[:200]!r} is not a valid RE2 regular expression: {error}", field="pattern"
        ) from None
    return Condition(f"matches(?, {column})", (pattern,))


def _glob(field: str, pattern: str, case_sensitive: bool) -> Condition:
    column = COLUMNS[field]
    if "[" not in pattern and case_sensitive:
        return Condition(f"{column} GLOB ?", (pattern,))
    if "[" not in pattern and pattern.isascii():
        escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        return Condition(f"{column} LIKE ? ESCAPE '\\'", (escaped.replace("*", "%").replace("?", "_"),))
    found = _regex(column, f"(?s{'' if case_sensitive else 'i'})^(?:{glob_to_regex(pattern)})$", pattern)
    return _narrowed(found, field, literals.parts_of_glob(pattern), any_case=not case_sensitive)


def glob_to_regex(pattern: str) -> str:
    """Translate a glob: `*` matches any characters, `?` one, `[a-z]` and `[!a-z]` one of a class; a `[` without its `]`
    stands for itself."""
    parts = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            parts.append(".*")
        elif char == "?":
            parts.append(".")
        elif char == "[":
            # A leading `]` belongs to the class.
            first = at + (pattern[at : at + 1] in ("!", "^"))
            end = pattern.find("]", first + 1)
            if end < 0:
                parts.append("\\[")
                continue
            inside = pattern[first:end].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            parts.append(f"[{'^' if first > at else ''}{inside.replace('^', chr(92) + '^')}]")
            at = end + 1
        else:
            parts.append(re2.escape(char))
    return "".join(parts)
