"""Where collections are kept: the interface, and the files of this machine (`postgres.engine` is the other one)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import trio

from proto.host.durable import sync_folder
from services.retrieve.collection import Collection
from services.retrieve.index.segment import VectorLimits
from services.retrieve.local_collection import LocalCollection
from services.runtime.database import Kind

NAMES = re.compile(r"[a-z][a-z0-9_-]{0,63}")
"""Names of collections that other services feed."""


class Engine(Protocol):
    """Keeps collections."""

    @property
    def kind(self) -> Kind:
        """Whether their data can be derived again."""

    async def names(self) -> list[str]:
        """Return the names of all collections, sorted."""

    async def holds(self, name: str) -> bool:
        """Return whether there is such a collection."""

    async def open(self, name: str, on_recreated: Callable[[], object]) -> Collection:
        """Open a collection, creating it if necessary.

        Args:
            on_recreated: called on the trio thread once `was_recreated` holds.

        Raises:
            OperationError: it cannot be opened.
        """

    async def open_existing(self, name: str, on_recreated: Callable[[], object]) -> Collection | None:
        """Open a collection; return None if it does not exist.  Raises OperationError."""

    async def remove(self, name: str) -> bool:
        """Remove a collection that is not open.  Returns whether it existed."""

    def close(self) -> None:
        """Release what collections share, once all are closed.  Blocks."""


class LocalEngine:
    """Collections in the files of one folder whose names match `files`."""

    def __init__(
        self, folder: Path, readers: int, limits: VectorLimits, large_words: int | None,
        files: re.Pattern[str] = NAMES, kind: Kind = Kind.DERIVED,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.folder = folder
        self._files = files
        self._readers = trio.CapacityLimiter(readers)
        self._limits = limits
        self._large_words = large_words

    def rename(self, name: str, new: str) -> None:
        """Rename a closed collection, to a name that is free.  Blocks.  Repeated after a crash, it goes on."""
        for suffix in (".db-wal", ".db"):
            path = self.folder / f"{name}{suffix}"
            if path.exists():
                path.rename(self.folder / f"{new}{suffix}")
                sync_folder(self.folder)
        remove_files(self.folder, name)

    async def names(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return sorted(path.stem for path in self.folder.glob("*.db") if self.may_hold(path.stem))

    def may_hold(self, name: str) -> bool:
        """Return whether this engine's collections may have this name."""
        return self._files.fullmatch(name) is not None

    async def holds(self, name: str) -> bool:
        await trio.lowlevel.checkpoint()
        return (self.folder / f"{name}.db").exists()

    async def open(self, name: str, on_recreated: Callable[[], object]) -> Collection:
        return await trio.to_thread.run_sync(
            LocalCollection, name, self.folder, self._readers, self._limits, self._large_words, on_recreated, self.kind
        )

    async def open_existing(self, name: str, on_recreated: Callable[[], object]) -> Collection | None:
        return await self.open(name, on_recreated) if await self.holds(name) else None

    async def remove(self, name: str) -> bool:
        return await trio.to_thread.run_sync(remove_files, self.folder, name)

    def close(self) -> None:
        """Nothing is shared."""


def remove_files(folder: Path, name: str) -> bool:
    """Remove a closed collection's files, its database last.  Returns whether it existed.  Blocks."""
    database = folder / f"{name}.db"
    for path in folder.glob(f"{name}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path != database:
            path.unlink(missing_ok=True)
    there = database.exists()
    database.unlink(missing_ok=True)
    sync_folder(folder)
    return there
