"""Which rows a connection has written: what somebody who keeps a copy of them has to look at again."""

from __future__ import annotations

MAX_ROWS = 100_000
"""Noted; whoever is told of more reads all anew, which is not slower."""


class Written:
    """Ids by table. `note` is for the hook of the connection, within its transactions."""

    def __init__(self) -> None:
        self.entries: set[int] = set()
        self.folders: set[int] = set()
        self.sets: set[int] = set()
        self.too_many = False
        """What is noted is not all."""
        self._open: dict[str, set[int]] = {"entry": set(), "folder": set(), "resource_set": set()}

    def note(self, operation: int, database: str, table: str, row: int) -> None:
        """A row was inserted, changed or deleted."""
        rows = self._open.get(table)
        if rows is not None and len(rows) <= MAX_ROWS:
            rows.add(row)

    def committed(self) -> None:
        """What was noted is so."""
        self.entries |= self._open["entry"]
        self.folders |= self._open["folder"]
        self.sets |= self._open["resource_set"]
        self.too_many = self.too_many or len(self.entries) > MAX_ROWS or len(self.folders) > MAX_ROWS
        self.undone()
        if self.too_many:
            self.entries.clear()
            self.folders.clear()

    def undone(self) -> None:
        """What was noted is not so."""
        for rows in self._open.values():
            rows.clear()

    def taken(self) -> Written:
        """What was committed, of which nothing is kept here."""
        taken = Written()
        taken.entries, taken.folders, taken.sets, taken.too_many = self.entries, self.folders, self.sets, self.too_many
        self.entries, self.folders, self.sets = set(), set(), set()
        return taken
