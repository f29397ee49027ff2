"""The operations of sessions: a span of work that documents are added in, pinned in and watched in."""

from __future__ import annotations

import apsw
import trio

from proto.errors import InvalidParams
from proto.ops.documents.reading import pairs
from proto.ops.documents.sessions import (
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
from services.documents.add import places
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
        wanted = params.label or params.name
        id_, label, at_ns = await self._store.write(lambda db: changing.start_session(db, wanted))
        return SessionStarted(session_id=id_, label=label, started=rows.instant(at_ns))

    @handles(SessionStop)
    async def stop(self, params: SessionStop, ctx: Context) -> SessionStopped:
        wanted = params.session_id or params.label or params.name
        id_, label, count = await self._store.write(lambda db: changing.stop_session(db, wanted))
        self._follower.hurry()
        return SessionStopped(session_id=id_, label=label, documents=count)

    @handles(SessionPin)
    async def pin(self, params: SessionPin, ctx: Context) -> Pinned:
        values = pairs(params.metadata)

        def change(db: apsw.Connection) -> Pinned:
            found = changing.pin(db, _names(params), params.hash, pinned=True)
            for document in found:
                held = db.execute("SELECT metadata FROM document WHERE id=?", (document.id,)).get
                rows.merge(db, document.id, str(held), values)
            return Pinned(updated=len(found))

        answer = await self._store.write(change)
        self._parts.hurry()
        return answer

    @handles(SessionUnpin)
    async def unpin(self, params: SessionUnpin, ctx: Context) -> Pinned:
        found = await self._store.write(lambda db: changing.pin(db, _names(params), params.hash, pinned=False))
        self._parts.hurry()
        return Pinned(updated=len(found))

    @handles(SessionWatch)
    async def watch(self, params: SessionWatch, ctx: Context) -> Watching:
        folder = None
        if params.root is not None:
            roots = self._parts.adding.roots
            folder, is_folder = await trio.to_thread.run_sync(places.examined, params.root, "root", roots)
            if not is_folder:
                raise InvalidParams(f"parameter `root`: {params.root} is no directory", field="root")
        elif params.enabled:
            raise InvalidParams("missing required parameter `root`", field="root")

        def change(db: apsw.Connection) -> Watching:
            id_, _ = changing.only_session(db, params.session_id)
            if params.enabled:
                db.execute(
                    "INSERT OR REPLACE INTO watched(session, folder, interval_ms) VALUES(?, ?, ?)",
                    (id_, folder, params.interval_ms),
                )
            else:
                db.execute("DELETE FROM watched WHERE session=? AND (? IS NULL OR folder=?)", (id_, folder, folder))
            listed = db.execute("SELECT folder FROM watched WHERE session=? ORDER BY folder", (id_,))
            roots = [str(one) for (one,) in listed]
            return Watching(session_id=id_, enabled=params.enabled, roots=roots, interval_ms=params.interval_ms)

        answer = await self._store.write(change)
        self._follower.hurry()
        return answer


def _names(params: SessionPin | SessionUnpin) -> list[str]:
    return [name for name in (params.path, params.name, *params.paths) if name is not None]
