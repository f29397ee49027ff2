"""The criteria of `resource-search` and of saved queries as conditions."""

from __future__ import annotations

from proto.ops.files.shared import SORTS, Filter, Kind
from services.files.query.entries import Order, instant, known
from services.files.query.matching import Condition, between, text_matches
from services.files.store import schema


def conditions(wanted: Filter) -> list[Condition]:
    """All of them. Raises InvalidParams, which names the field."""
    found = []
    if wanted.kind is not None:
        found.append(is_kind(wanted.kind))
    if wanted.extension is not None:
        found.append(has_extension(wanted.extension))
    for field, column in (("path_contains", "path"), ("name_contains", "name")):
        part = getattr(wanted, field)
        if part is not None:
            found.append(text_matches(column, part, "contains", case_sensitive=False))
    found += between("size", wanted.min_size, wanted.max_size)
    found += between("mtime", instant(wanted.min_mtime, "min_mtime"), instant(wanted.max_mtime, "max_mtime", end=True))
    return found


def ordering(wanted: Filter) -> Order:
    """In which order. Raises InvalidParams where the field is unknown."""
    return Order(known(wanted.sort_by, SORTS, "sort_by"), wanted.sort_desc)


def is_kind(kind: Kind) -> Condition:
    """One of the kinds there are."""
    return Condition("n.kind = ?", (schema.KINDS.index(kind),))


def has_extension(given: str) -> Condition:
    """With or without its dot, in either case; one with a dot inside (`tar.gz`) is the end of the name."""
    wanted = given.removeprefix(".").lower()
    if "." in wanted:
        end = f".{wanted.casefold()}"
        return Condition("n.kind <> 1 AND substr(folded(n.name), -?) = ?", (len(end), end))
    return Condition("n.kind <> 1 AND n.extension = ?", (wanted,))
