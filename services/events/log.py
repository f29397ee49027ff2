"""The log of events as the other modules use it: adds, reads, waits, and tells clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw
import trio

from proto.mcp import RESOURCE_UPDATED, ResourceUpdated
from proto.ops.events import URI
from services.events import event_database
from services.events.event_database import Bounds, NewEvent
from services.runtime.database import Database, Kind
from services.runtime.handlers import Environment

NOTICE_S = 0.5
"""Least time between two notices to subscribed clients."""


class Log:
    """The open database. `announce` must be running."""

    def __init__(self, env: Environment, database: Database, bounds: Bounds) -> None:
        self._env = env
        self.database = database
        self._bounds = bounds
        self.changed = trio.Event()
        """Set at the next event, and then replaced."""

    @classmethod
    async def open(cls, env: Environment, bounds: Bounds) -> Log:
        """Open the database; it is closed when the service ends."""
        path: Path = env.data_dir / "events.db"
        database = await env.opened(
            Database, path, event_database.SCHEMA, kind=Kind.SOURCE, readers=4, on_damage=env.damaged
        )
        env.at_rest(database.give_back)
        return cls(env, database, bounds)

    async def positions(self) -> dict[str, str]:
        """Return how far each source was read."""
        return await self.database.read(event_database.positions)

    async def add(self, events: Sequence[NewEvent], positions: dict[str, str]) -> None:
        """Store events with their sources' positions. Raises the errors of `Database.write`."""
        await self.database.write(lambda db: event_database.add(db, events, positions, self._bounds))
        if events:
            self._tell()

    async def add_once(self, event: NewEvent) -> tuple[int, bool]:
        """Store an event unless its sender has sent it before; return its number, and whether it had."""
        sender, id_ = event.sender or "", event.id or ""

        def add(db: apsw.Connection) -> tuple[int, bool]:
            if (number := event_database.sent(db, sender, id_)) is not None:
                return number, True
            event_database.add(db, [event], {}, self._bounds)
            return event_database.latest(db), False

        number, repeated = await self.database.write(add)
        if not repeated:
            self._tell()
        return number, repeated

    def _tell(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def announce(self) -> None:
        """Notify subscribed clients of new events, until cancelled."""
        changed = self.changed
        while True:
            await changed.wait()
            # Later events are announced next time.
            changed = self.changed
            self._env.publish(RESOURCE_UPDATED, ResourceUpdated(uri=URI))
            await trio.sleep(NOTICE_S)
