"""`changes_list`, `changes_show` and `changes_undo`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import apsw
import trio

from proto.errors import InvalidParams, OperationError
from proto.ops.changes import CollectChanges
from services.files import paths
from services.files.changes.disk import Item
from services.files.changes.writing import Writing
from services.files.core import Core, Family
from services.files.operations import undo as ops
from services.files.query.entries import fitting
from services.files.store.sql import fetch_all, fetch_value
from services.files.undo.journal import Entry, Journal
from services.files.undo.undoing import FOR_GOOD, Facts, Undoing, facts_of
from services.runtime import change_log
from services.runtime.handlers import Context, handles
from services.runtime.rewrite import TooLarge, read_whole
from services.runtime.roots import OutsideRoots
from services.shared import times
from services.shared.text.lines import MAX_CHARACTERS, shortly
from services.shared.text.texts import decode

MAX_FILES = 100
"""Most paths of one change in a list."""
MAX_ENTRIES = 20_000
"""Most paths that one call undoes."""
THIS = "this"


class Performing(Protocol):
    """What makes changes of names (`ChangeTools.perform`)."""

    async def __call__(self, items: Sequence[Item], ctx: Context) -> None: ...


class UndoTools(Family):
    """The operations of `services.files.operations.undo`."""

    def __init__(self, core: Core, journal: Journal, writing: Writing, perform: Performing) -> None:
        super().__init__(core)
        self._journal = journal
        self._writing = writing
        self._perform = perform
        self._turn = trio.Lock()

    @handles(CollectChanges)
    async def collect(self, params: CollectChanges, ctx: Context) -> None:
        await self._journal.collect()

    @handles(ops.ListChanges)
    async def list_changes(self, params: ops.ListChanges, ctx: Context) -> ops.ChangeList:
        degraded = await self._journal.collect()
        where, values = self._where(params, ctx)

        def query(db: apsw.Connection) -> tuple[list[ops.ListedChange], bool]:
            rows = fetch_all(
                db, f"SELECT change FROM entry WHERE {where} GROUP BY 1 ORDER BY max(number) DESC LIMIT ? OFFSET ?",
                (*values, params.limit + 1, params.offset),
            )  # fmt: skip
            listed = [self._listed(db, id_, where, values) for (id_,) in rows[: params.limit]]
            return [each for each in listed if each is not None], len(rows) > params.limit

        changes, has_more = await (await self._journal.database()).read(query)
        shown, cut = fitting(changes)
        return ops.ChangeList(changes=shown, has_more=has_more or bool(cut), degraded=degraded)

    def _listed(self, db: apsw.Connection, id_: str, where: str, values: Sequence[Any]) -> ops.ListedChange | None:
        entries = self._may_see(Journal.entries(db, f"change = ? AND {where}", (id_, *values)))
        if not entries:
            return None
        first = entries[0]
        undoes = dict.fromkeys(Journal.change_of(db, each.undoes) for each in entries if each.undoes is not None)
        files = [
            ops.ChangedPath(
                kind=each.kind, path=each.path, to=each.target, trash_id=each.trash_id,
                undone_by="" if each.undone_by is None else Journal.change_of(db, each.undone_by),
                lost=each.lost or (FOR_GOOD if each.kind == "delete" else ""),
            )
            for each in entries[:MAX_FILES]
        ]  # fmt: skip
        return ops.ListedChange(
            id=id_, at=times.rfc3339(first.number), operation=first.operation, client=first.client,
            session=first.session, task=first.task, undoes=[each for each in undoes if each], files=files,
            more_files=max(0, len(entries) - MAX_FILES),
        )  # fmt: skip

    @handles(ops.ShowChange)
    async def show(self, params: ops.ShowChange, ctx: Context) -> ops.ShownChange:
        await self._journal.collect()
        below = None if params.path is None else self._clean(params.path)

        def query(db: apsw.Connection) -> ops.ShownChange:
            entries = self._may_see(Journal.entries(db, "change = ?", (params.id,)))
            if not entries:
                raise _unknown(params.id)
            files: list[ops.ShownPath] = []
            room = 4 * MAX_CHARACTERS
            for each in entries:
                if below is None or any(paths.is_within(path, (below,)) for path in (each.path, each.target) if path):
                    files.append(self._shown(db, each, room > 0))
                    room -= len(files[-1].diff)
            return ops.ShownChange(
                id=params.id, at=times.rfc3339(entries[0].number), operation=entries[0].operation,
                client=entries[0].client, files=files,
            )  # fmt: skip

        return await (await self._journal.database()).read(query)

    def _shown(self, db: apsw.Connection, entry: Entry, has_room: bool) -> ops.ShownPath:
        shown = partial(ops.ShownPath, kind=entry.kind, path=entry.path, to=entry.target)
        if entry.kind not in ("write", "create"):
            return shown()
        before = b"" if entry.kind == "create" else Journal.content(db, entry.before)
        after = Journal.content(db, entry.after)
        if after is None:
            after = self._on_disk(facts_of(db, entry).path, entry.after)
        if before is None or after is None:
            return shown(note=entry.lost or "the content after it is not kept: others changed it since")
        if not has_room:
            return shown(note="the answer has no room for it: give `path`")
        try:
            old, new = (decode(data, entry.path, "").text for data in (before, after))
        except OperationError as error:
            return shown(note=str(error))
        return shown(diff=shortly(old, new, entry.path))

    def _on_disk(self, path: str, digest: bytes) -> bytes | None:
        try:
            data = read_whole(paths.to_os(path), self._core.roots.all)
        except (OSError, OutsideRoots, TooLarge, OperationError):
            return None
        return data if hashlib.sha256(data).digest() == digest else None

    @handles(ops.UndoChanges)
    async def undo(self, params: ops.UndoChanges, ctx: Context) -> ops.UndoResult:
        async with self._turn:
            degraded = await self._journal.collect()
            where, values = self._where(params, ctx)
            if not params.id:
                # Undos are undone by their id alone.
                where += " AND undoes IS NULL"
            database = await self._journal.database()
            entries = await database.read(lambda db: Journal.entries(db, where, values))
            if not entries and params.id:
                raise _unknown(params.id)
            entries = self._may_see(entries)
            if len(entries) > MAX_ENTRIES:
                raise OperationError(f"{len(entries)} paths match, more than {MAX_ENTRIES}: undo fewer at once")
            undoing = Undoing(
                self._core, self._writing, lambda items: self._perform(items, ctx), merge=params.merge,
                dry_run=params.dry_run,
            )  # fmt: skip
            # An earlier attempt of this call has the same id.
            who = change_log.who() if ctx.key else None
            own = "" if who is None else who.change
            results = []
            for number, entry in enumerate(entries):
                if entry.undone_by is not None:
                    by = await database.read(partial(_undone_by, entry=entry))
                    if own and by == own:
                        results.append(
                            ops.Undone(change=entry.change, kind=entry.kind, path=entry.path, status="undone")
                        )
                    elif params.id:
                        results.append(
                            ops.Undone(
                                change=entry.change, kind=entry.kind, path=entry.path, status="skipped",
                                reason=f"change {by} has undone it already",
                            )
                        )  # fmt: skip
                    continue
                now, facts = await database.read(partial(_as_it_is, entry=entry))
                results.append(await undoing.undo(now, facts))
                if not params.dry_run:
                    # So that the next entry sees where things are now.
                    await self._journal.collect_own()
                ctx.progress(number + 1, len(entries))
        undone = sum(each.status != "skipped" for each in results)
        shown, _ = fitting(results)
        return ops.UndoResult(
            results=shown, undone=undone, skipped=len(results) - undone, dry_run=params.dry_run, degraded=degraded,
            change=own if undone and not params.dry_run else "",
        )  # fmt: skip

    # What matches

    def _where(self, params: ops.ListChanges | ops.UndoChanges, ctx: Context) -> tuple[str, list[Any]]:
        """Return the condition for entries that match, as SQL."""
        where = ["1"]
        values: list[Any] = []
        if params.id:
            where.append("change = ?")
            values.append(params.id)
        if params.client:
            where.append("client = ?")
            values.append(params.client)
        if params.session:
            session = ctx.session if params.session == THIS else params.session
            if not session:
                raise InvalidParams("`session`: this call has no session; name one of changes_list", field="session")
            where.append("session = ?")
            values.append(session)
        if params.task:
            where.append("task IN (?, ?, ?, ?)")
            values += [params.task, f"task {params.task}", f"plan {params.task}", f"timer {params.task}"]
        if params.path is not None:
            path = self._clean(params.path)
            within = (path, f"{path}/", f"{path}0")
            where.append("(path = ? OR (path >= ? AND path < ?) OR target = ? OR (target >= ? AND target < ?))")
            values += [*within, *within]
        if params.since is not None:
            where.append("number >= ?")
            values.append(times.instant(params.since, "since"))
        if params.until is not None:
            where.append("number < ?")
            values.append(times.instant(params.until, "until"))
        return " AND ".join(where), values

    def _clean(self, path: str) -> str:
        return self._core.roots.clean(path, "path")

    def _may_see(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries whose paths the client may read."""
        roots = self._core.roots.all
        return [
            entry
            for entry in entries
            if all(
                roots.holds(paths.to_os(path)) and not roots.refusal(paths.to_os(path))
                for path in (entry.path, entry.target)
                if path
            )
        ]


def _as_it_is(db: apsw.Connection, entry: Entry) -> tuple[Entry, Facts]:
    """Return the current state of an entry, whose item may have another id in the trash now, and its facts."""
    (now,) = Journal.entries(db, "id = ?", (entry.id,))
    return now, facts_of(db, now)


def _undone_by(db: apsw.Connection, entry: Entry) -> str:
    return str(fetch_value(db, "SELECT change FROM entry WHERE id = ?", (entry.undone_by,)) or "?")


def _unknown(id_: str) -> OperationError:
    return OperationError(f"`id`: no change {id_}; changes_list shows those that are kept", field="id")
