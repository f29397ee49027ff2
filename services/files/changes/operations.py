"""`files_rename`, `files_move`, `files_delete` and the trash, with dry runs: each item of a dry run sees the disk as
the previous items would have left it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import apsw
import trio
from msgspec import structs

from proto.errors import InvalidParams, LinckiaError
from services.files import paths
from services.files.changes import disk, following
from services.files.changes.changes import Changes, take_up
from services.files.changes.disk import Item, Refused, placed
from services.files.core import Core, Family, reads
from services.files.operations import changes as ops
from services.files.paths import FileRoots
from services.files.query import named
from services.files.query.entries import MAX_BYTES, fitting
from services.files.store import schema
from services.files.store.sql import fetch_all, fetch_one, fetch_value
from services.files.undo.journal import Journal
from services.runtime import keyed
from services.runtime.handlers import Context, handles
from services.shared import times

T = TypeVar("T", ops.Relocations, ops.FoldersMade, ops.Deletions)

_OF_NOTES = "links from other notes to a renamed Markdown note are not updated; use notes_rename to rewrite them"

MAX_NOTIFIED = 100
"""Most changed paths per call that subscribers are notified of."""


class ChangeTools(Family):
    """The operations of `services.files.operations.changes`."""

    def __init__(self, core: Core, changes: Changes, behind: Callable[[Sequence[str]], None], journal: Journal) -> None:
        super().__init__(core)
        self._journal = journal
        self._changes = changes
        self._behind = behind
        self._turn = trio.Lock()

    async def perform(self, items: Sequence[Item], ctx: Context) -> None:
        """Make changes for an undo, and store in each item what became of it."""
        await self._perform(items, False, ctx)

    async def _perform(self, items: Sequence[Item], dry_run: bool, ctx: Context) -> None:
        for number, item in enumerate(items):
            item.step = item.step or str(number)
        async with self._turn:
            if dry_run:
                await trio.to_thread.run_sync(_Preview(self._changes, self._core.roots).run, items)
                return

            def go_on(done: int) -> None:
                # A cancelled call ends before the next item.
                trio.from_thread.check_cancelled()
                trio.from_thread.run_sync(ctx.progress, done, len(items))

            try:
                await trio.to_thread.run_sync(self._changes.run, items, go_on)
            finally:
                with trio.CancelScope(shield=True):
                    await self._index(items)
                changed = [path for item in items if item.done for path in item.paths()]
                named.notify(self._core.env, *(f"nodes{path}" for path in dict.fromkeys(changed[:MAX_NOTIFIED])))

    async def _index(self, items: Sequence[Item]) -> None:
        """Update the index for everything that was done, or later if the disk is too full now."""
        unread = list(dict.fromkeys(path for item in items for path in item.scan))
        restored = [item.trash_id for item in items if item.kind == "restore" and item.trash_id]
        try:
            for path in unread:
                await self._core.jobs.scan(path)
            await rejoin(self._core, restored)
        except LinckiaError:
            self._behind(unread)

    async def _relocate(
        self, given: Sequence[ops.Relocation], dry_run: bool, ctx: Context, *, make: bool = False, renames: bool = False
    ) -> ops.Relocations:
        roots = self._core.roots
        items = [Item("move", _cleaned(roots, each.from_), _target(roots, each, renames), make=make) for each in given]
        await self._perform(items, dry_run, ctx)
        return _relocations([(each.from_, each.to) for each in given], items, dry_run)

    @handles(ops.RenameFiles, resumes=True)
    async def rename(self, params: ops.RenameFiles, ctx: Context) -> ops.Relocations:
        done = await self._relocate(params.renames, params.dry_run, ctx, renames=True)
        notes = any(each.status != "error" and each.from_.lower().endswith(".md") for each in done.results)
        return structs.replace(done, hint=_OF_NOTES) if notes else done

    @handles(ops.MoveFiles, resumes=True)
    async def move(self, params: ops.MoveFiles, ctx: Context) -> ops.Relocations:
        return await self._relocate(params.moves, params.dry_run, ctx, make=params.make_directories)

    @handles(ops.CopyFiles, resumes=True)
    async def copy(self, params: ops.CopyFiles, ctx: Context) -> ops.Relocations:
        roots, make = self._core.roots, params.make_directories
        items = [
            Item("copy", _cleaned(roots, each.from_), _cleaned(roots, each.to), make=make) for each in params.copies
        ]
        await self._perform(items, params.dry_run, ctx)
        return _relocations([(each.from_, each.to) for each in params.copies], items, params.dry_run)

    @handles(ops.CreateFolders, resumes=True)
    async def create_folders(self, params: ops.CreateFolders, ctx: Context) -> ops.FoldersMade:
        items = [Item("folder", _cleaned(self._core.roots, path), source_field="paths") for path in params.paths]
        await self._perform(items, params.dry_run, ctx)
        results = [
            ops.FolderOutcome(path=path, status=_status(item, params.dry_run), error=item.error, existed=item.existed)
            for path, item in zip(params.paths, items, strict=True)
        ]
        return _told(ops.FoldersMade, results, params.dry_run)

    @handles(ops.DeleteFiles, resumes=True)
    async def delete(self, params: ops.DeleteFiles, ctx: Context) -> ops.Deletions:
        kind = "trash" if self._core.settings.trash else "delete"
        items = [
            Item(kind, _cleaned(self._core.roots, path), source_field="path", force=params.force)
            for path in params.paths
        ]
        await self._perform(items, params.dry_run, ctx)
        results = [
            ops.DeletionOutcome(
                path=path, status=_status(item, params.dry_run), error=item.error, trash_id=item.trash_id
            )
            for path, item in zip(params.paths, items, strict=True)
        ]
        return _told(partial(ops.Deletions, permanent=self._is_permanent), results, params.dry_run)

    @property
    def _is_permanent(self) -> bool:
        return not self._core.settings.trash

    @handles(ops.RestoreFiles, resumes=True)
    async def restore(self, params: ops.RestoreFiles, ctx: Context) -> ops.Relocations:
        if not params.paths and not params.items:
            raise InvalidParams("`paths`: required: paths to restore, or their ids in `items`", field="paths")

        roots = self._core.roots

        def find(db: apsw.Connection) -> list[Item]:
            by_path = [_restorable(db, roots, path, None, None) for path in params.paths]
            return by_path + [_restorable(db, roots, "", each.trash_id, each.to) for each in params.items]

        items = await self._core.database.read(find)
        for number, item in enumerate(items):
            item.step = str(number)
        take_up(items)
        for item in items:
            if item.error is not None and self._is_permanent:
                item.error += "; deletions are permanent: the setting `trash` of `[services.files]` is off"
        there = [item for item in items if item.error is None]
        await self._perform(there, params.dry_run, ctx)
        return _relocations([(item.source, item.target) for item in items], items, params.dry_run)

    @reads(ops.ListTrash)
    def list_trash(self, db: apsw.Connection, params: ops.ListTrash) -> ops.TrashList:
        rows = fetch_all(
            db, "SELECT id, path, kind, size, deleted FROM trash ORDER BY id DESC LIMIT ? OFFSET ?",
            (params.limit, params.offset),
        )  # fmt: skip
        items, _ = fitting(
            ops.Trashed(trash_id=id_, path=path, kind=schema.KINDS[kind], size=size, deleted_at=times.rfc3339(deleted))
            for id_, path, kind, size, deleted in rows
        )
        total = fetch_value(db, "SELECT count(*) FROM trash")
        return ops.TrashList(items=items, total=total, permanent=self._is_permanent)

    @handles(ops.EmptyTrash, resumes=True)
    async def empty_trash(self, params: ops.EmptyTrash, ctx: Context) -> ops.EmptiedTrash:
        if not params.trash_ids and params.older_than_days is None:
            raise InvalidParams(
                "`trashIds`: required: the ids of the items, or their minimum age in `olderThanDays`", field="trashIds"
            )
        until = None if params.older_than_days is None else time.time_ns() - int(params.older_than_days * times.DAY_NS)

        def query(db: apsw.Connection) -> list[int]:
            rows = fetch_all(db, "SELECT id, deleted FROM trash")
            return [id_ for id_, at in rows if id_ in params.trash_ids or (until is not None and at <= until)]

        async with self._turn:
            ids = await self._core.database.read(query)
            problems = await trio.to_thread.run_sync(self._changes.empty, ids)
            await self._journal.purge_trash(ids)
        earlier = len(keyed.steps())
        return ops.EmptiedTrash(
            deleted=len(ids) + earlier - len(problems),
            failed=len(problems),
            problems=problems[:20],
            permanent=self._is_permanent,
        )


async def rejoin(core: Core, trash_ids: Sequence[int]) -> None:
    """Add items that were restored from the trash and scanned to their sets again."""

    def change(db: apsw.Connection) -> None:
        for trash_id in trash_ids:
            following.scanned(db, trash_id)

    if trash_ids:
        await core.database.write(change)


def _cleaned(roots: FileRoots, path: str) -> str:
    """Clean a path; an invalid one is returned as given, and reported later for its item."""
    try:
        return roots.clean(path, "path")
    except InvalidParams:
        return path


def _target(roots: FileRoots, given: ops.Relocation, renames: bool) -> str:
    """Return where an entry goes; to rename it, a name alone is enough."""
    if "/" in given.to or not renames:
        return _cleaned(roots, given.to)
    return _cleaned(roots, paths.as_folder(paths.parent(_cleaned(roots, given.from_))) + given.to)


def _restorable(db: apsw.Connection, roots: FileRoots, path: str, trash_id: int | None, to: str | None) -> Item:
    if trash_id is None:
        row = fetch_one(db, "SELECT id, path FROM trash WHERE path = ? ORDER BY id DESC", (_cleaned(roots, path),))
        missing = f"`paths`: {paths.shown(path)} is not in the trash; see trash_list"
    else:
        row = fetch_one(db, "SELECT id, path FROM trash WHERE id = ?", (trash_id,))
        missing = f"`trashId`: no item {trash_id} in the trash; see trash_list"
    if row is None:
        return Item("restore", path, path, error=missing)
    return Item(
        "restore",
        row[1],
        _cleaned(roots, to or row[1]),
        target_field="paths" if trash_id is None else "to",
        trash_id=row[0],
    )


def _status(item: Item, dry_run: bool) -> ops.ItemStatus:
    if item.error is not None:
        return "error"
    return "preview" if dry_run else "success"


def _relocations(given: Sequence[tuple[str, str]], items: Sequence[Item], dry_run: bool) -> ops.Relocations:
    results = [
        ops.RelocationOutcome(from_=source, to=target, status=_status(item, dry_run), error=item.error)
        for (source, target), item in zip(given, items, strict=True)
    ]
    return _told(ops.Relocations, results, dry_run)


def _told(answer: Callable[..., T], results: Sequence[ops.Outcome], dry_run: bool) -> T:
    """Build the answer with all outcomes. If they do not fit, failures come first and the summary says so."""
    shown, cut = fitting(results)
    if cut:
        shown, _ = fitting(sorted(results, key=lambda result: result.status != "error"))
    summary = (
        f"Truncated to {len(shown)} of {len(results)} outcomes, failures first, to fit into {MAX_BYTES} bytes;"
        " `succeeded` and `failed` count all of them."
    )
    failed = sum(result.status == "error" for result in results)
    return answer(
        results=shown, total=len(results), succeeded=len(results) - failed, failed=failed, dry_run=dry_run,
        summary=summary if cut else None,
    )  # fmt: skip


class _Preview:
    """The disk as the previous items would have left it; blocks."""

    def __init__(self, changes: Changes, roots: FileRoots) -> None:
        self._changes = changes
        self._roots = roots
        self._moves: list[tuple[str, str | None]] = []
        self._copies: set[int] = set()
        """Which of the moves leave their source in place."""
        self._made: set[str] = set()

    def run(self, items: Sequence[Item]) -> None:
        """Predict the result of each item, in order."""
        for item in items:
            try:
                self._run(item)
            except Refused as error:
                item.error = str(error)
            except OSError as error:
                item.error = disk.describe_error(item.source, error)

    def _run(self, item: Item) -> None:
        if item.kind == "folder":
            self._make(item)
            return
        source: str | None = None
        if item.kind != "restore":
            source = placed(self._roots, item.source, item.source_field)
            if item.kind == "copy":
                disk.check_readable(self._roots, source, item.source_field)
            else:
                disk.check_writable(self._roots, source, item.source_field)
            status = self._status(source)
            if status is None:
                raise Refused(self._roots.missing(source, item.source_field))
            if item.kind != "copy":
                self._check_writable(source)
            if item.kind not in ("move", "copy"):
                if stat.S_ISDIR(status.st_mode) and not item.force and self._holds_something(source):
                    raise Refused(disk.not_empty(source))
                self._moves.append((source, None))
                return
        target = placed(
            self._roots, item.target, item.target_field, moved=disk.unmoved(self._roots, item, source or "")
        )
        disk.check_writable(self._roots, target, item.target_field)
        if source is not None:
            disk.check_not_inside(source, target, item.target_field)
        above = paths.parent(target)
        while item.make and self._status(above) is None:
            above = paths.parent(above)
        folder = self._status(above)
        if folder is None:
            raise Refused(f"`{item.target_field}`: directory {paths.shown(above)} does not exist")
        if not stat.S_ISDIR(folder.st_mode):
            raise Refused(f"`{item.target_field}`: {paths.shown(above)} is not a directory")
        if self._status(target) is not None:
            raise Refused(disk.exists(item.target_field, target))
        self._check_writable(target)
        if item.kind == "copy":
            self._copies.add(len(self._moves))
        self._moves.append((source or "", target))

    def _make(self, item: Item) -> None:
        place = self._changes.additions.folder(item)
        item.existed = item.existed or place in self._made
        if item.existed:
            return
        above = next(at for at in paths.ancestors(place) if os.path.lexists(paths.to_os(at)))
        if not os.path.isdir(paths.to_os(above)):
            raise Refused(f"`{item.source_field}`: {paths.shown(above)} is not a directory")
        if not os.access(paths.to_os(above), os.W_OK):
            raise Refused(f"{paths.shown(above)} is not writable")
        self._made |= {place, *paths.ancestors(place)}

    def _origin(self, path: str) -> str | None:
        """Return the current path of the entry that the moves so far would put at `path`, or None."""
        for number, (source, target) in reversed(list(enumerate(self._moves))):
            if target is not None and paths.is_within(path, (target,)):
                if not source:
                    return None
                path = source + path[len(target) :]
            elif source and number not in self._copies and paths.is_within(path, (source,)):
                return None
        return path

    def _status(self, path: str) -> os.stat_result | None:
        if any(target == path and not source for source, target in self._moves):
            # Restored from the trash; any status will do to show that the path is taken.
            return os.lstat("/")
        origin = self._origin(path)
        if origin is None:
            return None
        try:
            return os.lstat(paths.to_os(origin))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _holds_something(self, path: str) -> bool:
        origin = self._origin(path)
        names = os.listdir(paths.to_os(origin)) if origin is not None else []
        inside = [f"{path}/{paths.to_text(name)}" for name in names]
        inside += [target for _, target in self._moves if target is not None and paths.split(target)[0] == f"{path}/"]
        return any(self._status(each) is not None for each in inside)

    def _check_writable(self, path: str) -> None:
        above = self._origin(paths.parent(path))
        if above is not None and os.path.isdir(paths.to_os(above)) and not os.access(paths.to_os(above), os.W_OK):
            raise Refused(f"{paths.shown(above)} is not writable")
