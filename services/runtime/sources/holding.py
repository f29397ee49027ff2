"""The hold of a service's source database: the process waits for it, watches it, and ends once it is lost."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import trio
from psycopg.conninfo import conninfo_to_dict

from proto.errors import LinckiaError, OperationError
from services.runtime.sources.connecting import Sources
from services.runtime.sources.pages import mounted
from services.runtime.sources.server import SETTLE_S, HeldElsewhere, PageServer

TRY_S = 0.3
"""How often a process that stands by tries to take over."""
CONFIRM_S = 2.0
WATCH_S = 0.5

_log = logging.getLogger("linckia.service")


def read(settings: Mapping[str, Any]) -> Sources:
    """Read what the kernel tells a service about its sources."""
    return msgspec.convert(settings, Sources)


class Holding:
    """The hold of the source database of `service`, whose folder is `folder`.

    Args:
        tells: called with the reason for waiting; empty once there is none.
    """

    def __init__(self, sources: Sources, service: str, folder: Path, tells: Callable[[str], None]) -> None:
        dsn = os.environ.get(sources.dsn_env, "")
        if not dsn:
            raise OperationError(f"the variable {sources.dsn_env}, which says where the source data are, is not set")
        (name,) = sources.databases
        self._path = folder / name
        self._derived = [folder / each for each in sources.derived]
        self._tells = tells
        self.server = PageServer(
            dsn, f"{service}/{name}", kernel=sources.kernel, machine=sources.machine, schema=sources.schema
        )
        self.is_held = False
        self._limit = trio.CapacityLimiter(2)
        given = conninfo_to_dict(dsn)
        self.where = (
            f"{given.get('dbname', '')} on the server {given.get('host', 'localhost')}, schema {sources.schema}"
        )
        """Where the data are, for people: without the password."""

    async def take(self) -> None:
        """Wait until this process holds the database. Raises OperationError if the data are still in a file here."""
        while True:
            try:
                opened = await trio.to_thread.run_sync(self.server.take, self._remove_derived, limiter=self._limit)
                break
            except HeldElsewhere as held:
                self._tells(f"stands by: {self.server.name} is held by {held}")
            except LinckiaError as error:
                self._tells(f"waits: {error}")
            await trio.sleep(TRY_S)
        if opened.is_new and self._path.exists():
            raise OperationError(
                f"{self._path} is not on the PostgreSQL server yet: stop Linckia, and run "
                "`linckia migrate sources --to postgres`"
            )
        if opened.taken_from:
            _log.warning("takes %s over from %s", self.server.name, opened.taken_from)
            self._tells(f"takes over from {opened.taken_from}")
            await trio.sleep(SETTLE_S)
        mounted(self._path, self.server)
        self.is_held = True

    def _remove_derived(self, taken_from: str) -> None:
        """Remove what was made here of the state that another kernel has changed since."""
        for path in self._derived:
            for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                each.unlink(missing_ok=True)

    async def watch(self, end: Callable[[str], None]) -> None:
        """Tell the server that this process lives, and call `end` with the reason once the hold is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._confirm)
            while not self.server.ended:
                await trio.sleep(WATCH_S)
                self.server.end_overdue()
            _log.warning("%s: starts anew", self.server.ended)
            end(self.server.ended)
            nursery.cancel_scope.cancel()

    async def _confirm(self) -> None:
        failing = False
        while True:
            try:
                await trio.to_thread.run_sync(self.server.confirm, limiter=self._limit, abandon_on_cancel=True)
                failing = failing and self._well()
            except LinckiaError as error:
                failing = True
                self._tells(f"waits: {error}")
            await trio.sleep(CONFIRM_S)

    def _well(self) -> bool:
        self._tells("")
        return False
