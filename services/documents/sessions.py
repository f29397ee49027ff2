"""Sessions: spans of work that documents are added in, pinned in, and added in from the folders that they watch.

The service `watch` says what changes below those folders, and what has is added.  A change is only a reason to look at
its folder again, so it does not matter whether it is told twice.  While the watcher is away, and until it has looked at
everything for the first time, a folder is looked at in each interval.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import apsw
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.documents import sessions as ops
from proto.ops.documents.reading import Scalar, pairs
from proto.ops.watch import Change
from services.documents import changing
from services.documents.add import folders
from services.documents.add.add import add_changes
from services.documents.add.folders import Walk
from services.documents.parts import Parts
from services.documents.store import rows
from services.documents.store.rows import Given
from services.runtime.follower import Follower
from services.runtime.handlers import Context, handles
from services.runtime.ignore_files import GENERATED, VERSION_CONTROL
from services.runtime.roots import is_below

_log = logging.getLogger("linckia.documents")


class Sessions:
    """The handlers."""

    def __init__(self, parts: Parts, follower: SessionFollower) -> None:
        self._parts = parts
        self._store = parts.store
        self._follower = follower

    @handles(ops.SessionStart)
    async def start(self, params: ops.SessionStart, ctx: Context) -> ops.SessionStarted:
        now_ns = time.time_ns()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ns // 1_000_000_000))
        id_ = f"session-{stamp}-{secrets.token_hex(4)}"
        label = params.label or params.name or id_

        def change(db: apsw.Connection) -> None:
            db.execute("INSERT INTO session(id, label, started_ns) VALUES(?, ?, ?)", (id_, label, now_ns))
            changing.bind(db, id_, ctx.session)

        await self._store.write(change)
        return ops.SessionStarted(session_id=id_, label=label, started=rows.instant(now_ns))

    @handles(ops.SessionStop)
    async def stop(self, params: ops.SessionStop, ctx: Context) -> ops.SessionStopped:
        def change(db: apsw.Connection) -> ops.SessionStopped:
            wanted = params.session_id or params.label or params.name
            id_, label = changing.started(db, wanted, client=ctx.session)
            changing.unbind(db, id_)
            db.execute("UPDATE session SET stopped_ns=? WHERE id=?", (time.time_ns(), id_))
            db.execute("DELETE FROM watched WHERE session=?", (id_,))
            count = db.execute("SELECT count(*) FROM document WHERE session=?", (id_,)).get
            return ops.SessionStopped(session_id=id_, label=label, documents=count)

        answer = await self._store.write(change)
        self._follower.hurry()
        return answer

    @handles(ops.SessionBound)
    async def bound(self, params: ops.SessionBound, ctx: Context) -> ops.Bound | None:
        found = await self._store.read(lambda db: changing.bound(db, ctx.session)) if ctx.session else None
        return None if found is None else ops.Bound(session_id=found[0], label=found[1])

    @handles(ops.SessionPin)
    async def pin(self, params: ops.SessionPin, ctx: Context) -> ops.Pinned:
        return await self._pin(params, pairs(params.metadata))

    @handles(ops.SessionUnpin)
    async def unpin(self, params: ops.SessionUnpin, ctx: Context) -> ops.Pinned:
        return await self._pin(params, {})

    async def _pin(self, params: ops.SessionPin | ops.SessionUnpin, values: dict[str, Scalar]) -> ops.Pinned:
        """Give or take the tag.  Raises InvalidParams; OperationError where nothing matches."""
        names = [name for name in (params.path, params.name, *params.paths) if name is not None]
        if not names and params.hash is None:
            raise InvalidParams("missing parameter: give `hash`, `path` (a path or a glob) or `paths`", field="path")
        give, take = ([ops.PINNED], []) if isinstance(params, ops.SessionPin) else ([], [ops.PINNED])

        def change(db: apsw.Connection) -> ops.Pinned:
            found = changing.chosen(db, names, params.hash)
            if not found:
                said = ", ".join(map(repr, names[:5]))
                raise OperationError(f"Document not found: nothing matches {said}", field="path")
            for document in found:
                changing.describe(db, document.id, values, give=give, take=take)
            return ops.Pinned(updated=len(found))

        answer = await self._store.write(change)
        self._parts.hurry()
        return answer

    @handles(ops.SessionWatch)
    async def watch(self, params: ops.SessionWatch, ctx: Context) -> ops.Watching:
        folder = None
        if params.root is not None:
            roots = self._parts.adding.roots
            folder, is_folder = await trio.to_thread.run_sync(folders.existing, params.root, "root", roots)
            if not is_folder:
                raise InvalidParams(f"parameter `root`: {params.root} is no directory", field="root")
        elif params.enabled:
            raise InvalidParams("missing required parameter `root`", field="root")

        def change(db: apsw.Connection) -> ops.Watching:
            id_, _ = changing.started(db, params.session_id, client=ctx.session)
            if params.enabled:
                db.execute(
                    "INSERT OR REPLACE INTO watched(session, folder, interval_ms) VALUES(?, ?, ?)",
                    (id_, folder, params.interval_ms),
                )
            else:
                db.execute("DELETE FROM watched WHERE session=?1 AND (?2 IS NULL OR folder=?2)", (id_, folder))
            listed = db.execute("SELECT folder FROM watched WHERE session=? ORDER BY folder", (id_,))
            roots = [one for (one,) in listed]
            return ops.Watching(session_id=id_, enabled=params.enabled, roots=roots, interval_ms=params.interval_ms)

        answer = await self._store.write(change)
        self._follower.hurry()
        return answer


@dataclass(slots=True)
class _Watched:
    """A folder of a session; `due` is when it may be looked at next, `changed` whether there is a reason to."""

    session: str
    folder: str
    interval_s: float
    due: float = 0.0
    changed: bool = True


class SessionFollower:
    """The task, and what the runtime's follower tells of changes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wake = trio.Event()
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._is_unwatched = False
        self._follower = Follower(parts.env, "sessions", self)

    def hurry(self) -> None:
        """The folders are no longer the same, or something changed below one."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            await self._parts.env.after_the_rush()
            while True:
                self._wake = trio.Event()
                try:
                    await self._list()
                except LinckiaError as error:
                    _log.error("what sessions watch cannot be read: %s", error)
                folders = sorted({one.folder for one in self._watched.values()})
                left_out = VERSION_CONTROL | (frozenset() if self._parts.adding.takes_generated else GENERATED)
                self._follower.follow(folders, ignore=[f"{name}/" for name in sorted(left_out)])
                await self._look()
                next_look = min((one.due for one in self._watched.values() if self._is_wanted(one)), default=math.inf)
                with trio.move_on_at(next_look):
                    await self._wake.wait()

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        """Look at the folders of these again."""
        for one in self._watched.values():
            one.changed |= any(
                is_below(path, (one.folder,))
                for change in changes
                for path in (change.path, change.old_path)
                if path is not None
            )
        self._wake.set()

    async def rescan(self, sequence: int) -> None:
        """Look at all folders again."""
        for one in self._watched.values():
            one.changed = True
        self._wake.set()

    def watched(self) -> None:
        """From now on a change is a reason to look, and nothing else."""
        self._is_unwatched = False

    def unwatched(self, reason: str) -> None:
        """From now on each interval is a reason to look."""
        if not self._is_unwatched:
            self._is_unwatched = True
            self._wake.set()

    def _is_wanted(self, one: _Watched) -> bool:
        return one.changed or self._is_unwatched

    async def _list(self) -> None:
        """What is watched now; what was before keeps its state."""

        def watched(db: apsw.Connection) -> list[_Watched]:
            query = "SELECT session, folder, interval_ms / 1000.0 FROM watched"
            return [_Watched(*row) for row in db.execute(query)]

        now = {(one.session, one.folder): one for one in await self._parts.store.read(watched)}
        for key, before in self._watched.items():
            if key in now:
                now[key].due, now[key].changed = before.due, before.changed
        self._watched = now

    async def _look(self) -> None:
        """Add what has changed in the folders that are due."""
        for one in list(self._watched.values()):
            if not self._is_wanted(one) or one.due > trio.current_time():
                continue
            # Before the look: what changes while it is under way is told after it.
            one.changed = False
            adding = self._parts.adding
            walk = Walk(one.folder, adding.roots, takes_generated=adding.takes_generated)
            try:
                await add_changes(self._parts.adding, walk, Given(session=one.session))
            except LinckiaError as error:
                _log.warning("watching %s: %s", one.folder, error)
                one.changed = True
            self._parts.hurry()
            one.due = trio.current_time() + one.interval_s
