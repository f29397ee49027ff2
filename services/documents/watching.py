"""Folders that a session watches: looked through again and again, and what has changed is added, while it lasts."""

from __future__ import annotations

import logging

import apsw
import trio

from proto.errors import LinckiaError
from services.documents.folders import Walk
from services.documents.parts import Parts
from services.documents.rows import Given

PAUSE_S = 60.0

_log = logging.getLogger("linckia.documents")


class _Quiet:
    """Nobody waits for what a look adds."""

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Nobody asked."""


class Watching:
    """The task."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._due: dict[tuple[str, str], float] = {}

    def hurry(self) -> None:
        """What is watched has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        try:
            with self._scope:
                while True:
                    self._wake = trio.Event()
                    until = await self._look()
                    with trio.move_on_at(until):
                        await self._wake.wait()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses neither the databases nor a file."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def _look(self) -> float:
        """Look at what is due; answers when the next is."""

        def watched(db: apsw.Connection) -> list[tuple[str, str, int]]:
            rows = db.execute("SELECT session, folder, interval_ms FROM watched")
            return [(str(session), str(folder), int(str(ms))) for session, folder, ms in rows]

        listed = await self._parts.store.read(watched)
        until = trio.current_time() + PAUSE_S
        for session, folder, interval_ms in listed:
            key = (session, folder)
            if self._due.get(key, 0.0) <= trio.current_time():
                walk = Walk(folder, self._parts.adding.roots, avoid=(str(self._parts.env.data_dir),))
                try:
                    await self._parts.adding.changes(walk, Given(session=session))
                except LinckiaError as error:
                    _log.warning("watching %s: %s", folder, error)
                self._parts.hurry()
                self._due[key] = trio.current_time() + interval_ms / 1000
            until = min(until, self._due[key])
        return until
