"""Sessions: spans of work that documents are added in, pinned in and watched in."""

from __future__ import annotations

import secrets
import time

import apsw
import trio

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.reading import Scalar, pairs
from proto.ops.documents.sessions import (
    PINNED,
    Pinned,
    SessionPin,
    SessionStart,
    SessionStarted,
    SessionStop,
    SessionStopped,
    SessionUnpin,
    SessionWatch,
    Watching,
)
from services.documents import changing
from services.documents.add import folders
from services.documents.follower import SessionFollower
from services.documents.parts import Parts
from services.documents.store import rows
from services.runtime.handlers import Context, handles


class Sessions:
    """The handlers."""

    def __init__(self, parts: Parts, follower: SessionFollower) -> None:
        self._parts = parts
        self._store = parts.store
        self._follower = follower

    @handles(SessionStart)
    async def start(self, params: SessionStart, ctx: Context) -> SessionStarted:
        now_ns = time.time_ns()
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ns // 1_000_000_000))
        id_ = f"session-{stamp}-{secrets.token_hex(4)}"
        label = params.label or params.name or id_
        query = "INSERT INTO session(id, label, started_ns) VALUES(?, ?, ?)"
        await self._store.write(lambda db: db.execute(query, (id_, label, now_ns)).fetchall())
        return SessionStarted(session_id=id_, label=label, started=rows.instant(now_ns))

    @handles(SessionStop)
    async def stop(self, params: SessionStop, ctx: Context) -> SessionStopped:
        def change(db: apsw.Connection) -> SessionStopped:
            id_, label = changing.started(db, params.session_id or params.label or params.name)
            db.execute("UPDATE session SET stopped_ns=? WHERE id=?", (time.time_ns(), id_))
            db.execute("DELETE FROM watched WHERE session=?", (id_,))
            count = db.execute("SELECT count(*) FROM document WHERE session=?", (id_,)).get
            return SessionStopped(session_id=id_, label=label, documents=count)

        answer = await self._store.write(change)
        self._follower.hurry()
        return answer

    @handles(SessionPin)
    async def pin(self, params: SessionPin, ctx: Context) -> Pinned:
        return await self._pin(params, pairs(params.metadata))

    @handles(SessionUnpin)
    async def unpin(self, params: SessionUnpin, ctx: Context) -> Pinned:
        return await self._pin(params, {})

    async def _pin(self, params: SessionPin | SessionUnpin, values: dict[str, Scalar]) -> Pinned:
        """Give or take the tag.  Raises InvalidParams; OperationError where nothing matches."""
        names = [name for name in (params.path, params.name, *params.paths) if name is not None]
        if not names and params.hash is None:
            raise InvalidParams("missing parameter: give `hash`, `path` (a path or a glob) or `paths`", field="path")
        give, take = ([PINNED], []) if isinstance(params, SessionPin) else ([], [PINNED])

        def change(db: apsw.Connection) -> Pinned:
            found = changing.chosen(db, names, params.hash)
            if not found:
                said = ", ".join(map(repr, names[:5]))
                raise OperationError(f"Document not found: nothing matches {said}", field="path")
            for document in found:
                changing.describe(db, document.id, values, give=give, take=take)
            return Pinned(updated=len(found))

        answer = await self._store.write(change)
        self._parts.hurry()
        return answer

    @handles(SessionWatch)
    async def watch(self, params: SessionWatch, ctx: Context) -> Watching:
        folder = None
        if params.root is not None:
            roots = self._parts.adding.roots
            folder, is_folder = await trio.to_thread.run_sync(folders.existing, params.root, "root", roots)
            if not is_folder:
                raise InvalidParams(f"parameter `root`: {params.root} is no directory", field="root")
        elif params.enabled:
            raise InvalidParams("missing required parameter `root`", field="root")

        def change(db: apsw.Connection) -> Watching:
            id_, _ = changing.started(db, params.session_id)
            if params.enabled:
                db.execute(
                    "INSERT OR REPLACE INTO watched(session, folder, interval_ms) VALUES(?, ?, ?)",
                    (id_, folder, params.interval_ms),
                )
            else:
                db.execute("DELETE FROM watched WHERE session=?1 AND (?2 IS NULL OR folder=?2)", (id_, folder))
            listed = db.execute("SELECT folder FROM watched WHERE session=? ORDER BY folder", (id_,))
            roots = [one for (one,) in listed]
            return Watching(session_id=id_, enabled=params.enabled, roots=roots, interval_ms=params.interval_ms)

        answer = await self._store.write(change)
        self._follower.hurry()
        return answer
