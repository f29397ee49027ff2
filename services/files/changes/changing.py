"""`rename-files`, `move-files`, `delete-files` and the trash, with their dry runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

import apsw
import trio

from proto.errors import InvalidParams
from proto.mcp import RESOURCE_UPDATED, ResourceUpdated
from proto.ops.files.changes import (
    DeleteFiles,
    DeletionOutcome,
    Deletions,
    EmptiedTrash,
    EmptyTrash,
    ItemStatus,
    ListTrash,
    MoveFiles,
    Relocation,
    RelocationOutcome,
    Relocations,
    RenameFiles,
    RestoreFiles,
    Trashed,
    TrashList,
)
from services.files import paths, times
from services.files.browse.reading import node_uri
from services.files.changes import trashed
from services.files.changes.changes import Changes, Item
from services.files.changes.preview import Preview
from services.files.core import Core
from services.files.index.jobs import Jobs
from services.files.query.entries import MAX_BYTES, fitting
from services.files.store import schema
from services.files.store.rows import fetch_all, fetch_one, fetch_value
from services.runtime.handlers import Context, handles

T = TypeVar("T", RelocationOutcome, DeletionOutcome)

MAX_TOLD = 100
"""Changed paths of one call that are published to subscribers."""


class Changing:
    """The operations of `proto.ops.files.changes`."""

    def __init__(self, core: Core, changes: Changes) -> None:
        self._core = core
        self._changes = changes
        self._turn = trio.Lock()

    async def _perform(self, items: Sequence[Item], dry_run: bool, ctx: Context) -> None:
        async with self._turn:
            if dry_run:
                await trio.to_thread.run_sync(_preview, self._changes, self._core, items)
                return
            try:
                await trio.to_thread.run_sync(_Run(self._changes, items, ctx))
            finally:
                with trio.CancelScope(shield=True):
                    await scan_all(self._core.jobs, [path for item in items for path in item.scan])
                    await rejoin(
                        self._core, [item.trash_id for item in items if item.kind == "restore" and item.trash_id]
                    )
                _tell(self._core, items)

    async def _relocate(self, given: Sequence[Relocation], dry_run: bool, make: bool, ctx: Context) -> Relocations:
        items = [Item("move", _cleaned(each.from_), _cleaned(each.to), make=make) for each in given]
        await self._perform(items, dry_run, ctx)
        return _relocations([(each.from_, each.to) for each in given], items, dry_run)

    @handles(RenameFiles)
    async def rename(self, params: RenameFiles, ctx: Context) -> Relocations:
        return await self._relocate(params.renames, params.dry_run, False, ctx)

    @handles(MoveFiles)
    async def move(self, params: MoveFiles, ctx: Context) -> Relocations:
        return await self._relocate(params.moves, params.dry_run, params.make_directories, ctx)

    @handles(DeleteFiles)
    async def delete(self, params: DeleteFiles, ctx: Context) -> Deletions:
        kind = "trash" if self._core.settings.trash else "delete"
        items = [Item(kind, _cleaned(path), source_field="path", force=params.force) for path in params.paths]
        await self._perform(items, params.dry_run, ctx)
        results = [
            DeletionOutcome(path=path, status=_status(item, params.dry_run), error=item.error, trash_id=item.trash_id)
            for path, item in zip(params.paths, items, strict=True)
        ]
        failed = sum(item.error is not None for item in items)
        shown, summary = _shown(results)
        return Deletions(
            results=shown, total=len(items), succeeded=len(items) - failed, failed=failed, dry_run=params.dry_run,
            summary=summary,
        )  # fmt: skip

    @handles(RestoreFiles)
    async def restore(self, params: RestoreFiles, ctx: Context) -> Relocations:
        if not params.paths and not params.items:
            raise InvalidParams(
                "`paths`: name what is to be restored, by its path or, in `items`, its id", field="paths"
            )
        wanted: list[tuple[str, int | None, str | None]] = [
            *((path, None, None) for path in params.paths),
            *(("", each.trash_id, each.to) for each in params.items),
        ]

        def find(db: apsw.Connection) -> list[Item]:
            return [_restorable(db, *each) for each in wanted]

        items = await self._core.database.read(find)
        there = [item for item in items if item.error is None]
        await self._perform(there, params.dry_run, ctx)
        return _relocations([(item.source, item.target) for item in items], items, params.dry_run)

    @handles(ListTrash)
    async def list_trash(self, params: ListTrash, ctx: Context) -> TrashList:
        def query(db: apsw.Connection) -> TrashList:
            rows = fetch_all(
                db, "SELECT id, path, kind, size, deleted FROM trash ORDER BY id DESC LIMIT ? OFFSET ?",
                (params.limit, params.offset),
            )  # fmt: skip
            items, _ = fitting(
                Trashed(trash_id=id_, path=path, kind=schema.KINDS[kind], size=size, deleted_at=times.rfc3339(deleted))
                for id_, path, kind, size, deleted in rows
            )
            return TrashList(items=items, total=fetch_value(db, "SELECT count(*) FROM trash"))

        return await self._core.database.read(query)

    @handles(EmptyTrash)
    async def empty_trash(self, params: EmptyTrash, ctx: Context) -> EmptiedTrash:
        if not params.trash_ids and params.older_than_days is None:
            raise InvalidParams(
                "`trashIds`: name the items, or with `olderThanDays` how old they must be", field="trashIds"
            )
        until = None if params.older_than_days is None else time.time_ns() - int(params.older_than_days * times.DAY_NS)

        def query(db: apsw.Connection) -> list[int]:
            rows = fetch_all(db, "SELECT id, deleted FROM trash")
            return [id_ for id_, at in rows if id_ in params.trash_ids or (until is not None and at <= until)]

        async with self._turn:
            ids = await self._core.database.read(query)
            problems = await trio.to_thread.run_sync(self._changes.empty, ids)
        return EmptiedTrash(deleted=len(ids) - len(problems), failed=len(problems), problems=problems[:20])


class _Run:
    """All items, in a worker thread; a call that is cancelled ends before the next."""

    def __init__(self, changes: Changes, items: Sequence[Item], ctx: Context) -> None:
        self._changes = changes
        self._items = items
        self._ctx = ctx

    def __call__(self) -> None:
        self._changes.run(self._items, self._go_on)

    def _go_on(self, done: int) -> None:
        trio.from_thread.check_cancelled()
        trio.from_thread.run_sync(self._ctx.progress, done, len(self._items))


def _preview(changes: Changes, core: Core, items: Sequence[Item]) -> None:
    preview = Preview(changes, core.roots)
    for item in items:
        preview.run(item)


async def scan_all(jobs: Jobs, wanted: Sequence[str]) -> None:
    """Scan these paths and wait."""
    for path in dict.fromkeys(wanted):
        job = await jobs.start(path, background=False, force=True, max_age_s=0)
        await jobs.wait(job, lambda counts: None)


async def rejoin(core: Core, trash_ids: Sequence[int]) -> None:
    """Have these items, which came back from the trash and are scanned, in their sets again."""

    def change(db: apsw.Connection) -> None:
        for trash_id in trash_ids:
            trashed.scanned(db, trash_id)

    if trash_ids:
        await core.database.write(change)


def _cleaned(path: str) -> str:
    """As it was written, where it is no path: the item says so then."""
    try:
        return paths.clean(path, "path")
    except InvalidParams:
        return path


def _restorable(db: apsw.Connection, path: str, trash_id: int | None, to: str | None) -> Item:
    if trash_id is None:
        row = fetch_one(db, "SELECT id, path FROM trash WHERE path = ? ORDER BY id DESC", (_cleaned(path),))
        missing = f"`paths`: {paths.shown(path)} is not in the trash; list-trash has what is"
    else:
        row = fetch_one(db, "SELECT id, path FROM trash WHERE id = ?", (trash_id,))
        missing = f"`trashId`: there is no item {trash_id} in the trash; list-trash has those there are"
    if row is None:
        return Item("restore", path, path, error=missing)
    return Item(
        "restore", row[1], _cleaned(to or row[1]), target_field="paths" if trash_id is None else "to", trash_id=row[0]
    )


def _status(item: Item, dry_run: bool) -> ItemStatus:
    if item.error is not None:
        return "error"
    return "preview" if dry_run else "success"


def _relocations(given: Sequence[tuple[str, str]], items: Sequence[Item], dry_run: bool) -> Relocations:
    results = [
        RelocationOutcome(from_=source, to=target, status=_status(item, dry_run), error=item.error)
        for (source, target), item in zip(given, items, strict=True)
    ]
    failed = sum(item.error is not None for item in items)
    shown, summary = _shown(results)
    return Relocations(
        results=shown, total=len(items), succeeded=len(items) - failed, failed=failed, dry_run=dry_run, summary=summary
    )


def _shown(results: list[T]) -> tuple[list[T], str | None]:
    """All outcomes; where these are too long for an answer, those that failed before the others, and what was left."""
    shown, cut = fitting(results)
    if not cut:
        return results, None
    shown, _ = fitting(sorted(results, key=lambda result: result.status != "error"))
    return shown, (
        f"These are {len(shown)} of {len(results)} outcomes, those that failed first, as many as fit into {MAX_BYTES}"
        " bytes; `succeeded` and `failed` count all."
    )


def _tell(core: Core, items: Sequence[Item]) -> None:
    """Tell clients that subscribed to entries that these changed."""
    changed = [path for item in items if item.done for path in item.paths()]
    for path in dict.fromkeys(changed[:MAX_TOLD]):
        core.env.publish(RESOURCE_UPDATED, ResourceUpdated(uri=node_uri(path)))
