"""The watch service on real folders and its real database, and a reader that mirrors the reported changes."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import apsw
import trio

from proto.operation import Params
from proto.ops.watch import (
    Change,
    ChangeKind,
    EntryKind,
    WatchChanges,
    WatchStatus,
    WatchStatusResult,
    WatchSubscribe,
)
from services.watch.database import select, stored_sequence
from services.watch.main import open_service
from tests.in_process import Bench, services_in_process

R = TypeVar("R")


class Caller(Protocol):
    """Anything that can call an operation."""

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R: ...


class Version(NamedTuple):
    """Distinguishes one version of an entry from another; directories have no version."""

    kind: EntryKind
    size: int
    mtime_ns: int
    inode: int


def on_disk(*roots: Path) -> dict[str, Version]:
    """What there is, by path."""
    found: dict[str, Version] = {}
    for root in roots:
        pending = [str(root)] if root.is_dir() else []
        while pending:
            folder = pending.pop()
            status = os.stat(folder, follow_symlinks=False)
            found[folder] = Version(EntryKind.FOLDER, 0, 0, status.st_ino)
            with os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif stat.S_ISREG(status.st_mode):
                        found[entry.path] = Version(EntryKind.FILE, status.st_size, status.st_mtime_ns, status.st_ino)
                    elif stat.S_ISLNK(status.st_mode):
                        found[entry.path] = Version(EntryKind.LINK, status.st_size, status.st_mtime_ns, status.st_ino)
                    else:
                        found[entry.path] = Version(EntryKind.OTHER, 0, status.st_mtime_ns, status.st_ino)
    return found


KINDS = (EntryKind.FILE, EntryKind.FOLDER, EntryKind.LINK, EntryKind.OTHER)


def stored(database: Path, name: str) -> tuple[int, dict[str, Version]]:
    """What the watcher's database holds for a subscription: the latest number, and the entries by path."""
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(10_000)
        connection.execute("BEGIN")
        sequence = stored_sequence(connection)
        folders = select(
            connection,
            "SELECT folder, parent, folder.name, inode FROM folder JOIN subscription USING(tree)"
            " WHERE subscription.name=?",
            (name,),
        )
        places = {number: (parent, os.fsdecode(called)) for number, parent, called, _ in folders}

        def path(number: int) -> str:
            parent, called = places[number]
            return f"{path(parent)}/{called}" if parent else called

        found = {path(number): Version(EntryKind.FOLDER, 0, 0, inode) for number, parent, _, inode in folders}
        for number in places:
            for called, kind, size, mtime_ns, inode in select(
                connection, "SELECT name, kind, size, mtime_ns, inode FROM entry WHERE folder=?", (number,)
            ):
                entry = f"{path(number)}/{os.fsdecode(called)}"
                found[entry] = Version(KINDS[kind], size, mtime_ns, inode)
        return sequence, found
    finally:
        connection.close()


class Mirror:
    """A reader that keeps a copy of the state by the log alone, and refuses changes that contradict its copy.

    At its beginning, and after a rescan notice, it takes the state from the watcher's database.
    """

    def __init__(self, caller: Caller, database: Path, name: str = "mirror") -> None:
        self._caller = caller
        self._database = database
        self.name = name
        self.after = 0
        self.entries: dict[str, Version] = {}
        self.resyncs = 0
        self.applied: list[Change] = []

    def use(self, caller: Caller) -> None:
        self._caller = caller

    async def follow(self, *, wait_s: float = 0.0) -> bool:
        """Read and apply one answer; return whether it contained changes."""
        answer = await self._caller.call(WatchChanges(subscription=self.name, after=self.after, wait_s=wait_s))
        if answer.resync:
            self.after, self.entries = await trio.to_thread.run_sync(stored, self._database, self.name)
            self.resyncs += 1
            return True
        for change in answer.changes:
            assert change.sequence > self.after
            self.after = change.sequence
            self._apply(change)
        assert self.after == answer.sequence
        return bool(answer.changes)

    def _apply(self, change: Change) -> None:
        self.applied.append(change)
        version = Version(change.kind, change.size, change.mtime_ns, change.inode)
        path = change.path
        match change.change:
            case ChangeKind.CREATED:
                assert path not in self.entries, f"created twice: {change}"
                self.entries[path] = version
            case ChangeKind.MODIFIED:
                assert path in self.entries, f"modified, but was never there: {change}"
                self.entries[path] = version
            case ChangeKind.DELETED:
                assert path in self.entries, f"deleted, but was never there: {change}"
                for each in self._within(path):
                    del self.entries[each]
            case ChangeKind.RENAMED:
                assert change.old_path in self.entries, f"renamed, but was never there: {change}"
                assert path not in self.entries, f"renamed to an existing path: {change}"
                assert change.old_path is not None
                for each in self._within(change.old_path):
                    self.entries[path + each[len(change.old_path) :]] = self.entries.pop(each)
                self.entries[path] = version

    def _within(self, path: str) -> list[str]:
        if self.entries[path].kind is not EntryKind.FOLDER:
            return [path]
        return [each for each in self.entries if each == path or each.startswith(path + "/")]

    async def until_same(self, *roots: Path, within_s: float = 10.0) -> None:
        """Read until the copy equals the disk and the watcher has nothing left to look at."""
        with trio.move_on_after(within_s):
            while True:
                status = await self._caller.call(WatchStatus())
                while await self.follow():
                    pass
                if status.settled and self.entries == on_disk(*roots):
                    return
                await self.follow(wait_s=0.05)
        there = on_disk(*roots)
        missing, strange = there.keys() - self.entries.keys(), self.entries.keys() - there.keys()
        other = [path for path in there.keys() & self.entries.keys() if there[path] != self.entries[path]]
        status = await self._caller.call(WatchStatus())
        raise AssertionError(
            f"after {within_s} s: {len(missing)} lost {sorted(missing)[:5]}, {len(strange)} invented "
            f"{sorted(strange)[:5]}, {len(other)} old {[(p, there[p], self.entries[p]) for p in other[:3]]}; {status}"
        )

    def told(self) -> list[tuple[str, str]]:
        """Return the changes reported since the last call, as kinds and names."""
        told = [(change.change.value, os.path.basename(change.path)) for change in self.applied]
        self.applied.clear()
        return told


@asynccontextmanager
async def watching(
    folder: Path, *roots: Path, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[tuple[Bench, Mirror]]:
    """The service over `roots`, its data in `folder`, and a mirror that has taken the first state."""
    async with services_in_process(
        {"watch": open_service}, folder, roots=roots, settings={"watch": dict(settings or {})}
    ) as bench:
        mirror = Mirror(bench, folder / "watch/watch.db")
        await bench.call(WatchSubscribe(name=mirror.name, paths=[str(root) for root in roots]))
        await mirror.until_same(*roots)
        mirror.told()
        yield bench, mirror


async def settled(caller: Caller, within_s: float = 10.0) -> WatchStatusResult:
    """The status once nothing is left to look at."""
    with trio.fail_after(within_s):
        while True:
            status = await caller.call(WatchStatus())
            if status.settled:
                return status
            await trio.sleep(0.01)


__all__ = ["Bench", "Mirror", "Version", "on_disk", "settled", "watching"]
