"""Compiles the conditions of plans to SQL over the view `node`."""

from __future__ import annotations

import re

from proto.errors import InvalidParams
from services.files.operations import plans as ops
from services.files.operations.resources import TextMode
from services.files.query import matching
from services.files.query.matching import EXTENSIONS, between
from services.files.store import schema
from services.files.store.sql import is_pattern
from services.shared.times import instant

MAX_DEPTH = 32
MAX_CONDITIONS = 1000
"""SQLite can parse expressions with this many parts without running out of stack."""

_REGEX_SIGNS = re.compile(r"[\\^$+|(){}]|\.\*|\.\?")
"""A pattern without any of these is a glob rather than a regular expression."""


def where(condition: ops.Condition | None) -> matching.Condition:
    """Compile a condition; None matches everything. Raises InvalidParams, which names the field, if it can never be
    evaluated."""
    return matching.Condition("1") if condition is None else _Compiler().compile(condition, "conditions", 1)


class _Compiler:
    def __init__(self) -> None:
        self._count = 0

    def compile(self, condition: ops.Condition, field: str, depth: int) -> matching.Condition:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_CONDITIONS:
            why = (
                f"more than {MAX_DEPTH} levels deep" if depth > MAX_DEPTH else f"more than {MAX_CONDITIONS} conditions"
            )
            raise InvalidParams(f"`{field}`: {why}", field=field)
        match condition:
            case ops.All() | ops.AnyOf() | ops.NoneOf():
                parts = [
                    self.compile(part, f"{field}.conditions[{n}]", depth + 1)
                    for n, part in enumerate(condition.conditions)
                ]
                if isinstance(condition, ops.All):
                    return _joined(parts, " AND ", "1")
                any_of = _joined(parts, " OR ", "0")
                return any_of if isinstance(condition, ops.AnyOf) else any_of._replace(sql=f"(NOT {any_of.sql})")
            case ops.MediaCondition():
                extensions = sorted(EXTENSIONS[condition.mediaType])
                marks = ",".join("?" * len(extensions))
                return matching.Condition(f"(n.kind = {schema.FILE} AND n.extension IN ({marks}))", tuple(extensions))
            case ops.SizeCondition():
                return _every(between("size", condition.minSize, condition.maxSize), field, "minSize, maxSize")
            case ops.TimeCondition():
                return _every(_times(condition, field), field, "minMtime, maxMtime, minCtime, maxCtime")
            case ops.PathCondition():
                names = "pathContains, pathPrefix, pathSuffix, pathPattern"
                return _every(_path(condition, field), field, names)


def _joined(parts: list[matching.Condition], by: str, nothing: str) -> matching.Condition:
    bindings = tuple(value for part in parts for value in part.bindings)
    return matching.Condition(f"({by.join(part.sql for part in parts) or nothing})", bindings)


def _every(parts: list[matching.Condition], field: str, names: str) -> matching.Condition:
    if not parts:
        raise InvalidParams(f"`{field}`: empty condition; give at least one of {names}", field=field)
    return _joined(parts, " AND ", "1")


def _times(condition: ops.TimeCondition, field: str) -> list[matching.Condition]:
    def at(name: str) -> int | None:
        return instant(getattr(condition, name), f"{field}.{name}", end=name.startswith("max"))

    return [*between("mtime", at("minMtime"), at("maxMtime")), *between("ctime", at("minCtime"), at("maxCtime"))]


def _path(condition: ops.PathCondition, field: str) -> list[matching.Condition]:
    wanted: list[tuple[str | None, TextMode]] = [
        (condition.pathContains, "contains"),
        (condition.pathPrefix, "prefix"),
        (condition.pathSuffix, "suffix"),
    ]
    pattern = condition.pathPattern
    if pattern is not None:
        wanted.append((pattern, "regex" if _REGEX_SIGNS.search(pattern) and is_pattern(pattern) else "glob"))
    try:
        return [
            matching.text_matches("path", text, mode, case_sensitive=False) for text, mode in wanted if text is not None
        ]
    except InvalidParams as error:
        raise InvalidParams(str(error), field=f"{field}.pathPattern") from None
