"""Undoing changes, the latest first.

Nothing that others have written since is lost: what an entry left must be unchanged, or it is skipped, or merged. Each
step is an ordinary change with a record of its own, so that an undo can be undone, and one that is interrupted leaves a
state that can be listed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Sequence

import apsw
import msgspec
import trio

from proto.errors import LinckiaError
from services.files import paths
from services.files.changes import disk
from services.files.changes.disk import Item
from services.files.changes.writing import Writing
from services.files.core import Core
from services.files.operations.undo import Undone
from services.files.undo.journal import Entry, Journal
from services.files.undo.merging import CannotMerge, merged
from services.runtime import change_log, keyed
from services.runtime.rewrite import TooLarge, read_whole
from services.runtime.roots import OutsideRoots

DISK, ANY = b"", b"any"
"""What a dry run expects at a path: what is on disk, or anything."""

FOR_GOOD = "it was deleted for good"

Perform = Callable[[Sequence[Item]], Awaitable[None]]


class Skip(Exception):
    """An entry that is not undone; the message says why."""


class Facts(msgspec.Struct, frozen=True):
    """What the journal says of an entry: the path where its file is now, former contents, and later changes there."""

    path: str
    before: bytes | None
    after: bytes | None
    later: list[str]
    """Descriptions of later changes of the same path that are in force."""


class Undoing:
    """Undoes entries one by one.

    Args:
        perform: makes changes of names, with the index updated to match.
        dry_run: whether to predict only: each entry sees the state that those before it would have left.
    """

    def __init__(self, core: Core, writing: Writing, perform: Perform, *, merge: bool, dry_run: bool) -> None:
        self._core = core
        self._writing = writing
        self._perform = perform
        self._merge = merge
        self._dry_run = dry_run
        self._predicted: dict[str, bytes | None] = {}
        """In a dry run: the hash of each file that would be written; None for a path that would be gone, ANY for one
        that would be there."""
        self._moved: list[tuple[str, str]] = []
        """In a dry run: the names that would change, in order."""

    async def undo(self, entry: Entry, facts: Facts) -> Undone:
        """Undo an entry; the answer says what became of it."""
        if self._moved:
            facts = msgspec.structs.replace(facts, path=self._as_predicted(facts.path))
        done = Undone(change=entry.change, kind=entry.kind, path=facts.path, status="undone")
        serving = change_log.current.get()
        if serving is not None:
            serving.undoes = entry.id
        # An undo has many steps, of which no single one is its effect.
        token = keyed.current.set(None)
        try:
            if entry.lost and entry.kind not in ("create", "move", "folder"):
                raise Skip(entry.lost)
            status, trash_id = await self._undo(entry, facts)
            status = "preview" if self._dry_run else status
            return msgspec.structs.replace(done, status=status, trash_id=trash_id)
        except Skip as skipped:
            return msgspec.structs.replace(done, status="skipped", reason=str(skipped))
        except LinckiaError as error:
            return msgspec.structs.replace(done, status="skipped", reason=str(error))
        finally:
            keyed.current.reset(token)
            if serving is not None:
                serving.undoes = None

    async def _undo(self, entry: Entry, facts: Facts) -> tuple[str, int | None]:
        path, former = facts.path, entry.path
        step = f"undo {entry.id}"
        match entry.kind:
            case "write":
                return await trio.to_thread.run_sync(self._write, entry, facts), None
            case "create":
                await trio.to_thread.run_sync(self._check_unchanged, path, entry.after, facts)
                item = Item("trash", path, source_field="path", step=step)
            case "copy":
                if facts.later:
                    raise Skip(f"{paths.shown(path)} was changed since by {facts.later[0]}")
                item = Item("trash", path, source_field="path", force=True, step=step)
            case "move":
                item = Item("move", path, former, source_field="path", target_field="path", make=True, step=step)
            case "trash":
                item = Item(
                    "restore", former, former, target_field="path", trash_id=entry.trash_id, make=True, step=step
                )
            case "restore":
                item = Item("trash", path, source_field="path", force=True, step=step)
            case "folder":
                self._check_empty(path)
                item = Item("delete", path, source_field="path", step=step)
            case "rmdir":
                item = Item("folder", former, source_field="path", step=step)
            case _:
                raise Skip(FOR_GOOD)
        if self._dry_run:
            self._predict(item)
            return "preview", None
        await self._perform([item])
        if item.error is not None:
            raise Skip(item.error)
        if entry.kind == "rmdir":
            with disk.open_at(paths.to_os(former), disk.O_READ_FOLDER) as folder:
                os.fchmod(folder, entry.mode)
        return "undone", item.trash_id if item.kind == "trash" else None

    def _write(self, entry: Entry, facts: Facts) -> str:
        status = "undone"

        def change(data: bytes) -> bytes:
            nonlocal status
            if facts.before is None:
                raise Skip("its former content is not kept")
            if hashlib.sha256(data).digest() == entry.after:
                return facts.before
            if self._merge and facts.after is not None:
                status = "merged"
                try:
                    both = merged(self._core.env.data_dir, facts.after, data, facts.before)
                except CannotMerge as error:
                    raise Skip(f"cannot be merged: {error}") from None
                if both is not None:
                    return both
                raise Skip(f"{paths.shown(facts.path)} was changed since, in the same lines, by {_by(facts)}")
            raise Skip(f"{paths.shown(facts.path)} was changed since by {_by(facts)}")

        if self._dry_run:
            self._predict_write(entry, facts, change)
            return status
        try:
            self._writing.rewrite(facts.path, change, if_match=None, answer=lambda done, trash_id: None)
        except FileNotFoundError:
            raise Skip(self._missing(facts)) from None
        except (OSError, OutsideRoots, TooLarge) as error:
            raise Skip(str(error)) from None
        return status

    def _read(self, path: str) -> bytes:
        """Raises Skip."""
        try:
            return read_whole(paths.to_os(path), self._core.roots.all)
        except (FileNotFoundError, NotADirectoryError):
            raise Skip(f"{paths.shown(path)} is not there any more") from None
        except (OSError, OutsideRoots, TooLarge, LinckiaError) as error:
            raise Skip(str(error)) from None

    def _missing(self, facts: Facts) -> str:
        said = f": {facts.later[0]}" if facts.later else ""
        return f"{paths.shown(facts.path)} is not there any more{said}"

    def _check_unchanged(self, path: str, after: bytes, facts: Facts) -> None:
        now = self._state(path)
        if now is None:
            raise Skip(self._missing(facts))
        if now == DISK:
            now = hashlib.sha256(self._read(path)).digest()
        if now not in (after, ANY):
            raise Skip(f"{paths.shown(path)} was changed since by {_by(facts)}")

    def _check_empty(self, path: str) -> None:
        if self._state(path) == ANY:
            # A dry run cannot see into what would be restored.
            return
        try:
            inside = [f"{path}/{paths.to_text(name)}" for name in os.listdir(paths.to_os(path))]
        except OSError as error:
            raise Skip(f"{paths.shown(path)}: {os.strerror(error.errno or 0)}") from None
        if not all(map(self._is_gone, inside)):
            raise Skip(f"{paths.shown(path)} is not empty")

    # Dry runs

    def _state(self, path: str) -> bytes | None:
        """Return what a dry run expects at a path: the hash of a file, ANY, None for nothing, or `DISK`."""
        at = path
        while at not in self._predicted and at != "/":
            at = os.path.dirname(at)
        found = self._predicted.get(at, DISK)
        return found if at == path or found is None else ANY if found != DISK else DISK

    def _is_gone(self, path: str) -> bool:
        return self._state(path) is None

    def _is_there(self, path: str) -> bool:
        state = self._state(path)
        return os.path.lexists(paths.to_os(path)) if state == DISK else state is not None

    def _predict(self, item: Item) -> None:
        source, target = item.source, item.target
        if target and self._is_there(target):
            raise Skip(f"{paths.shown(target)} already exists and is not overwritten")
        if item.kind == "folder":
            self._predicted[source] = ANY
            return
        state: bytes | None = ANY
        if item.kind != "restore":
            if not self._is_there(source):
                raise Skip(f"{paths.shown(source)} is not there any more")
            state = self._state(source) or ANY
            self._predicted[source] = None
        if target:
            self._predicted[target] = state
        if item.kind == "move":
            self._moved.append((source, target))

    def _predict_write(self, entry: Entry, facts: Facts, change: Callable[[bytes], bytes]) -> None:
        known = self._state(facts.path)
        if known is None:
            raise Skip(self._missing(facts))
        if known == DISK:
            self._predicted[facts.path] = hashlib.sha256(change(self._read(facts.path))).digest()
        elif known not in (entry.after, ANY):
            raise Skip(f"{paths.shown(facts.path)} was changed since by {_by(facts)}")
        elif facts.before is None:
            raise Skip("its former content is not kept")
        else:
            self._predicted[facts.path] = entry.before

    def _as_predicted(self, path: str) -> str:
        for source, target in self._moved:
            if path == source or path.startswith(f"{source}/"):
                path = target + path[len(source) :]
        return path


def _by(facts: Facts) -> str:
    return facts.later[0] if facts.later else "another program"


# What the journal says


def facts_of(db: apsw.Connection, entry: Entry) -> Facts:
    """Return what the journal says of an entry."""
    path = entry.target if entry.kind in ("move", "copy", "restore") else entry.path
    in_force = "undone_by IS NULL AND undoes IS NULL"
    if entry.kind not in ("trash", "rmdir", "delete"):
        later = Journal.entries(db, f"number > ? AND kind IN ('move', 'restore') AND {in_force}", (entry.number,))
        for each in reversed(later):
            if each.kind == "move" and (path == each.path or path.startswith(f"{each.path}/")):
                path = each.target + path[len(each.path) :]
    since = Journal.entries(
        db, f"number > ? AND change <> ? AND {in_force} AND path = ?", (entry.number, entry.change, path)
    )
    return Facts(
        path,
        Journal.content(db, entry.before) if entry.kind == "write" else None,
        Journal.content(db, entry.after) if entry.kind == "write" else None,
        [f"{each.operation} of {each.client} (change {each.change})" for each in since],
    )
