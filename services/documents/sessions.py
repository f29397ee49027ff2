"""The operations of sessions: a span of work that documents are added in, pinned in and watched in."""

from __future__ import annotations

import apsw
import trio

from proto.errors import InvalidParams
from proto.ops.documents import pairs
from proto.ops.documents_sessions import (
    Pinned,
    SessionPin,
    SessionStart,
    SessionStarted,
    SessionStop,
    SessionStopped,
    SessionUnpin,
    SessionWatch,
)
from proto.ops.documents_sessions import Watching as Watched
from services.documents import changing
from services.documents.add import places
from services.documents.follower import Watching
from services.documents.parts import Parts
from services.documents.store import rows
from services.runtime.handlers import Context, Handlers


def add_sessions(handlers: Handlers, parts: Parts, watching: Watching) -> None:
    """Put them among the handlers."""
    store = parts.store

    @handlers.handle(SessionStart)
    async def start(params: SessionStart, ctx: Context) -> SessionStarted:
        id_, label, at_ns = await store.write(lambda db: changing.start_session(db, params.label or params.name))
        return SessionStarted(session_id=id_, label=label, started=rows.instant(at_ns))

    @handlers.handle(SessionStop)
    async def stop(params: SessionStop, ctx: Context) -> SessionStopped:
        wanted = params.session_id or params.label or params.name
        id_, label, count = await store.write(lambda db: changing.stop_session(db, wanted))
        watching.hurry()
        return SessionStopped(session_id=id_, label=label, documents=count)

    @handlers.handle(SessionPin)
    async def pin(params: SessionPin, ctx: Context) -> Pinned:
        values = pairs(params.metadata)
        names = [name for name in (params.path, params.name, *params.paths) if name is not None]

        def change(db: apsw.Connection) -> Pinned:
            found = changing.pin(db, names, params.hash, pinned=True)
            for document in found:
                (held,) = db.execute("SELECT metadata FROM document WHERE id=?", (document.id,)).fetchall()[0]
                rows.merge(db, document.id, str(held), values)
            return Pinned(updated=len(found))

        answer = await store.write(change)
        parts.hurry()
        return answer

    @handlers.handle(SessionUnpin)
    async def unpin(params: SessionUnpin, ctx: Context) -> Pinned:
        names = [name for name in (params.path, params.name, *params.paths) if name is not None]
        found = await store.write(lambda db: changing.pin(db, names, params.hash, pinned=False))
        answer = Pinned(updated=len(found))
        parts.hurry()
        return answer

    @handlers.handle(SessionWatch)
    async def watch(params: SessionWatch, ctx: Context) -> Watched:
        folder = None
        if params.root is not None:
            folder, is_folder = await trio.to_thread.run_sync(places.examined, params.root, "root", parts.adding.roots)
            if not is_folder:
                raise InvalidParams(f"parameter `root`: {params.root} is no directory", field="root")
        elif params.enabled:
            raise InvalidParams("missing required parameter `root`", field="root")

        def change(db: apsw.Connection) -> Watched:
            id_, _ = changing.only_session(db, params.session_id)
            if params.enabled:
                db.execute(
                    "INSERT OR REPLACE INTO watched(session, folder, interval_ms) VALUES(?, ?, ?)",
                    (id_, folder, params.interval_ms),
                )
            else:
                db.execute("DELETE FROM watched WHERE session=? AND (? IS NULL OR folder=?)", (id_, folder, folder))
            listed = db.execute("SELECT folder FROM watched WHERE session=? ORDER BY folder", (id_,))
            return Watched(
                session_id=id_,
                enabled=params.enabled,
                roots=[str(one) for (one,) in listed],
                interval_ms=params.interval_ms,
            )

        answer = await store.write(change)
        watching.hurry()
        return answer
