"""Sessions: periods of work in which documents are added and pinned, and folders are watched.

The service `watch` reports changes in the watched folders. A report only triggers a new scan of the folder, so
duplicates do no harm. While `watch` is unavailable or still scanning for the first time, each folder is scanned once
per interval.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import apsw
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.documents.reading import Scalar, pairs
from proto.ops.documents.sessions import Bound, SessionBound
from proto.ops.watch import Change
from services.documents import change_operations
from services.documents.add import folders
from services.documents.add.add import add_changes
from services.documents.add.folders import Walk
from services.documents.components import Components, OperationGroup
from services.documents.operations import sessions as ops
from services.documents.store import rows
from services.documents.store.rows import DocumentAttributes
from services.runtime.handlers import Context, handles
from services.runtime.roots import is_below
from services.shared.follower import Follower
from services.shared.ignore_files import GENERATED, VERSION_CONTROL

_log = logging.getLogger("linckia.documents")


class Sessions(OperationGroup):
    def __init__(self, components: Components) -> None:
        super().__init__(components)
        self.follower = SessionFollower(components)

    @handles(ops.SessionStart)
    async def start(self, params: ops.SessionStart, ctx: Context) -> ops.SessionStarted:
        now_ns = time.time_ns()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ns // 1_000_000_000))
        id_ = f"session-{stamp}-{secrets.token_hex(4)}"
        label = params.label or params.name or id_

        def change(db: apsw.Connection) -> None:
            db.execute("INSERT INTO session(id, label, started_ns) VALUES(?, ?, ?)", (id_, label, now_ns))
            if ctx.session:
                # The session owns everything this client adds until it is stopped.
                db.execute("INSERT INTO setting VALUES(?, ?)", (f"{change_operations.CLIENT_PREFIX}{id_}", ctx.session))

        started = ops.SessionStarted(session_id=id_, label=label, started=rows.instant(now_ns))
        await self._store.answer(change, lambda _: started)
        return started

    @handles(ops.SessionStop)
    async def stop(self, params: ops.SessionStop, ctx: Context) -> ops.SessionStopped:
        def change(db: apsw.Connection) -> ops.SessionStopped:
            wanted = params.session_id or params.label or params.name
            id_, label = change_operations.open_session(db, wanted, client=ctx.session)
            db.execute("DELETE FROM setting WHERE name=?", (f"{change_operations.CLIENT_PREFIX}{id_}",))
            db.execute("UPDATE session SET stopped_ns=? WHERE id=?", (time.time_ns(), id_))
            db.execute("DELETE FROM watched WHERE session=?", (id_,))
            count = db.execute("SELECT count(*) FROM document WHERE session=?", (id_,)).get
            return ops.SessionStopped(session_id=id_, label=label, documents=count)

        answer = await self._store.answer(change)
        self.follower.hurry()
        return answer

    @handles(SessionBound)
    async def bound(self, params: SessionBound, ctx: Context) -> Bound | None:
        found = (
            await self._store.read(lambda db: change_operations.session_of_client(db, ctx.session))
            if ctx.session
            else None
        )
        return None if found is None else Bound(session_id=found[0], label=found[1])

    @handles(ops.SessionPin)
    async def pin(self, params: ops.SessionPin, ctx: Context) -> ops.Pinned:
        return await self._pin(params, pairs(params.metadata))

    @handles(ops.SessionUnpin)
    async def unpin(self, params: ops.SessionUnpin, ctx: Context) -> ops.Pinned:
        return await self._pin(params, {})

    async def _pin(self, params: ops.SessionPin | ops.SessionUnpin, values: dict[str, Scalar]) -> ops.Pinned:
        """Add or remove the tag.  Raises InvalidParams, or OperationError if nothing matches."""
        names = [name for name in (params.path, params.name, *params.paths) if name is not None]
        if not names and params.hash is None:
            raise InvalidParams("missing parameter: give `hash`, `path` (a path or a glob) or `paths`", field="path")
        give, take = ([ops.PINNED], []) if isinstance(params, ops.SessionPin) else ([], [ops.PINNED])

        def change(db: apsw.Connection) -> ops.Pinned:
            found = change_operations.chosen(db, names, params.hash)
            if not found:
                said = ", ".join(map(repr, names[:5]))
                raise OperationError(f"Document not found: nothing matches {said}", field="path")
            for document in found:
                change_operations.describe(db, document.id, values, give=give, take=take)
            return ops.Pinned(updated=len(found))

        answer = await self._store.answer(change)
        self._components.hurry()
        return answer

    @handles(ops.SessionWatch)
    async def watch(self, params: ops.SessionWatch, ctx: Context) -> ops.Watching:
        folder = None
        if params.root is not None:
            roots = self._components.adding.roots
            folder, is_folder = await trio.to_thread.run_sync(folders.existing, params.root, "root", roots)
            if not is_folder:
                raise InvalidParams(f"parameter `root`: {params.root} is not a directory", field="root")
        elif params.enabled:
            raise InvalidParams("missing required parameter `root`", field="root")

        def change(db: apsw.Connection) -> ops.Watching:
            id_, _ = change_operations.open_session(db, params.session_id, client=ctx.session)
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

        answer = await self._store.answer(change)
        self.follower.hurry()
        return answer


class _Watched(NamedTuple):
    session: str
    folder: str
    interval_s: float


class SessionFollower:
    """Adds changed files in watched folders.  The runtime's `Follower` calls it with changes."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._wake = trio.Event()
        self._watched: list[_Watched] = []
        self._settled: set[_Watched] = set()
        """Folders without changes since their last scan."""
        self._due: dict[_Watched, float] = {}
        """Earliest time of the next scan of each folder, if it is not settled or changes are not reported."""
        self._is_unwatched = False
        self._follower = Follower(components.env, "sessions", self)

    def hurry(self) -> None:
        """Wake the task, because the set of folders or something in them changed."""
        self._wake.set()

    async def run(self) -> None:
        adding = self._components.adding
        left_out = VERSION_CONTROL | (frozenset() if adding.takes_generated else GENERATED)
        query = "SELECT session, folder, interval_ms / 1000.0 FROM watched"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            await self._components.env.after_the_rush()
            while True:
                self._wake = trio.Event()
                try:
                    self._watched = await self._components.store.read(
                        lambda db: [_Watched(*row) for row in db.execute(query)]
                    )
                except LinckiaError as error:
                    _log.error("the watched folders of sessions cannot be read: %s", error)
                self._settled.intersection_update(self._watched)
                self._due = {one: self._due.get(one, 0.0) for one in self._watched}
                folders = sorted({one.folder for one in self._watched})
                self._follower.follow(folders, ignore=[f"{name}/" for name in sorted(left_out)])
                for one in self._watched:
                    if self._is_wanted(one) and self._due[one] <= trio.current_time():
                        await self._look(one)
                with trio.move_on_at(
                    min((at for one, at in self._due.items() if self._is_wanted(one)), default=math.inf)
                ):
                    await self._wake.wait()

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        paths = [path for change in changes for path in (change.path, change.old_path) if path is not None]
        self._settled -= {one for one in self._settled if any(is_below(path, (one.folder,)) for path in paths)}
        self._wake.set()

    async def rescan(self, sequence: int) -> None:
        self._settled.clear()
        self._wake.set()

    async def watched(self) -> None:
        """Scan folders only when a change is reported."""
        self._is_unwatched = False

    def unwatched(self, reason: str) -> None:
        """Scan folders once per interval."""
        self._is_unwatched = True
        self._wake.set()

    def _is_wanted(self, one: _Watched) -> bool:
        return one not in self._settled or self._is_unwatched

    async def _look(self, one: _Watched) -> None:
        # Set before the scan, because changes during the scan are reported after it.
        self._settled.add(one)
        adding = self._components.adding
        walk = Walk(one.folder, adding.roots, takes_generated=adding.takes_generated)
        try:
            await add_changes(adding, walk, DocumentAttributes(session=one.session))
        except LinckiaError as error:
            _log.warning("watching %s: %s", one.folder, error)
            self._settled.discard(one)
        self._components.hurry()
        self._due[one] = trio.current_time() + one.interval_s
