"""One change of a file or folder, as it was asked for and as it is under way."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from services.files.changes.disk import Place
from services.files.store.database import Note


@dataclass(slots=True)
class Item:
    """One change, and what became of it."""

    kind: str
    """move, trash, restore or delete."""
    source: str
    target: str = ""
    source_field: str = "from"
    target_field: str = "to"
    trash_id: int | None = None
    force: bool = False
    make: bool = False
    error: str | None = None
    scan: list[str] = field(default_factory=list)
    """Paths that are to be scanned, for the index to know all of it."""
    done: bool = False

    def paths(self) -> tuple[str, ...]:
        """Those that clients know."""
        return tuple(path for path in (self.source, self.target) if path)


@dataclass(slots=True)
class Opened:
    """An item with its places."""

    item: Item
    source: Place
    target: Place | None
    status: os.stat_result
    intent: int = 0
    note: Note | None = None
    """Of an item for the trash."""
    crosses: bool = False
