"""The conditions of plans as SQL over the view `node`."""

from __future__ import annotations

import re

from proto.errors import InvalidParams
from proto.ops.files.plans import (
    All,
    AnyOf,
    Condition,
    MediaCondition,
    MediaType,
    NoneOf,
    PathCondition,
    SizeCondition,
    TimeCondition,
)
from proto.ops.files.shared import Instant
from services.files.query import matching
from services.files.query.entries import instant
from services.files.query.matching import between
from services.files.store import schema
from services.files.store.functions import is_pattern

MAX_DEPTH = 32
MAX_CONDITIONS = 1000
"""SQLite parses an expression of so many parts without running out of room."""

_EXTENSIONS: dict[MediaType, str] = {
    "image": "avif bmp cr2 cr3 dng exr gif heic heif ico jfif jp2 jpe jpeg jpg jxl nef orf png psd raf raw rw2 svg tga"
    " tif tiff webp arw",
    "video": "3g2 3gp avi flv m2ts m4v mkv mov mp4 mpeg mpg mts mxf ogv ts vob webm wmv",
    "audio": "aac aif aiff alac amr ape au flac m4a m4b mid midi mp3 oga ogg opus wav wma wv",
    "document": "csv doc docx epub htm html json key log md mobi numbers odp ods odt org pages pdf ppt pptx ps rst rtf"
    " tex toml tsv txt xls xlsx xml yaml yml",
}

EXTENSIONS = {kind: frozenset(text.split()) for kind, text in _EXTENSIONS.items()}
"""What a file is, by its extension."""

_REGEX_SIGNS = re.compile(r"[\\^$+|(){}]|\.\*|\.\?")
"""Of which at least one is in a regular expression that is no glob."""


def check(condition: Condition) -> None:
    """Raises InvalidParams, which names the field, where it could never be asked."""
    where(condition)


def where(condition: Condition | None) -> matching.Condition:
    """The expression; met by all where there is no condition."""
    if condition is None:
        return matching.Condition("1")
    return _Compiler().compile(condition, "conditions", 1)


class _Compiler:
    def __init__(self) -> None:
        self._count = 0

    def compile(self, condition: Condition, field: str, depth: int) -> matching.Condition:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_CONDITIONS:
            why = f"more than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_CONDITIONS} conditions"
            raise InvalidParams(f"`{field}`: {why}", field=field)
        match condition:
            case All() | AnyOf() | NoneOf():
                parts = [
                    self.compile(part, f"{field}.conditions[{n}]", depth + 1)
                    for n, part in enumerate(condition.conditions)
                ]
                return _joined(condition, parts)
            case MediaCondition():
                extensions = sorted(EXTENSIONS[condition.mediaType])
                marks = ",".join("?" * len(extensions))
                return matching.Condition(f"(n.kind = {schema.FILE} AND n.extension IN ({marks}))", tuple(extensions))
            case SizeCondition():
                return _every(between("size", condition.minSize, condition.maxSize), field, "minSize, maxSize")
            case TimeCondition():
                return _every(_times(condition, field), field, "minMtime, maxMtime, minCtime, maxCtime")
            case PathCondition():
                names = "pathContains, pathPrefix, pathSuffix, pathPattern"
                return _every(_path(condition, field), field, names)


def _joined(group: All | AnyOf | NoneOf, parts: list[matching.Condition]) -> matching.Condition:
    bindings = tuple(value for part in parts for value in part.bindings)
    sqls = [part.sql for part in parts]
    if isinstance(group, All):
        return matching.Condition(f"({' AND '.join(sqls) or '1'})", bindings)
    any_of = f"({' OR '.join(sqls) or '0'})"
    return matching.Condition(any_of if isinstance(group, AnyOf) else f"(NOT {any_of})", bindings)


def _every(parts: list[matching.Condition], field: str, names: str) -> matching.Condition:
    if not parts:
        raise InvalidParams(f"`{field}`: it asks for nothing; give at least one of {names}", field=field)
    sql = " AND ".join(part.sql for part in parts)
    return matching.Condition(f"({sql})", tuple(value for part in parts for value in part.bindings))


def _times(condition: TimeCondition, field: str) -> list[matching.Condition]:
    def at(given: Instant | None, name: str, *, end: bool = False) -> int | None:
        return instant(given, f"{field}.{name}", end=end)

    return [
        *between("mtime", at(condition.minMtime, "minMtime"), at(condition.maxMtime, "maxMtime", end=True)),
        *between("ctime", at(condition.minCtime, "minCtime"), at(condition.maxCtime, "maxCtime", end=True)),
    ]


def _path(condition: PathCondition, field: str) -> list[matching.Condition]:
    parts = [
        matching.text_matches("path", given, mode, case_sensitive=False)
        for given, mode in (
            (condition.pathContains, "contains"),
            (condition.pathPrefix, "prefix"),
            (condition.pathSuffix, "suffix"),
        )
        if given is not None
    ]
    pattern = condition.pathPattern
    if pattern is not None:
        mode = "regex" if _REGEX_SIGNS.search(pattern) and is_pattern(pattern) else "glob"
        try:
            parts.append(matching.text_matches("path", pattern, mode, case_sensitive=False))
        except InvalidParams as error:
            raise InvalidParams(str(error), field=f"{field}.pathPattern") from None
    return parts
