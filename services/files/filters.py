"""The criteria of `resource-search` and of saved queries as conditions."""

from __future__ import annotations

from proto.ops.files_shared import SORTS, Filter
from services.files import schema
from services.files.entries import COLUMNS, between, instant, known, order
from services.files.matching import Condition, text_matches


def conditions(wanted: Filter) -> list[Condition]:
    """All of them. Raises InvalidParams, which names the field."""
    found = []
    if wanted.kind is not None:
        found.append(Condition("n.kind = ?", (schema.KINDS.index(wanted.kind),)))
    if wanted.extension is not None:
        found.append(has_extension(wanted.extension))
    for field, column in (("path_contains", "path"), ("name_contains", "name")):
        part = getattr(wanted, field)
        if part is not None:
            found.append(text_matches(COLUMNS[column], part, "contains", case_sensitive=False))
    found += between("n.size", wanted.min_size, wanted.max_size)
    found += between(
        "n.mtime", instant(wanted.min_mtime, "min_mtime"), instant(wanted.max_mtime, "max_mtime", end=True)
    )
    return found


def ordering(wanted: Filter) -> str:
    """The `ORDER BY`. Raises InvalidParams where the field is unknown."""
    return order(known(wanted.sort_by, SORTS, "sort_by"), descending=wanted.sort_desc)


def has_extension(given: str) -> Condition:
    """With or without its dot, in either case; one with a dot inside (`tar.gz`) is the end of the name."""
    wanted = given.removeprefix(".").lower()
    if "." in wanted:
        return Condition("n.kind <> 1 AND substr(folded(n.name), -?) = ?", (len(wanted) + 1, f".{wanted.casefold()}"))
    return Condition("n.kind <> 1 AND n.extension = ?", (wanted,))
