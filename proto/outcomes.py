"""Results of operations on many items, of which some can fail while others are done.

The type of such a result declares which members count its items, so that callers can tell a failure from a success
without knowing the operation:

    class Deletions(msgspec.Struct, frozen=True, kw_only=True):
        per_item: ClassVar = PerItem(done=("succeeded",), failed="failed")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec


class Counted(NamedTuple):
    """How many items were done, and how many failed."""

    done: int
    failed: int


class PerItem(msgspec.Struct, frozen=True):
    """The members of a result that count its items: numbers, or lists of items.

    `details` is the member that has the reasons, for messages.
    """

    done: tuple[str, ...]
    failed: str
    details: str


def per_item(result: Any) -> PerItem | None:
    """Return what the type of a result declares; None if it has no items that can fail on their own."""
    declared = getattr(result, "per_item", None) if isinstance(result, type) else None
    return declared if isinstance(declared, PerItem) else None


def counted(declared: PerItem, value: Mapping[str, object]) -> Counted:
    """Return the counts in a result; a member that is missing or of another type counts as 0."""
    return Counted(sum(_count(value.get(name)) for name in declared.done), _count(value.get(declared.failed)))


def _count(member: object) -> int:
    return member if isinstance(member, int) else len(member) if isinstance(member, list) else 0
