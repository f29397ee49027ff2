"""The service `events`: keeps what happened, for agents that were away."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from proto.errors import LinckiaError
from services.events.event_database import Bounds
from services.events.folded import Folded
from services.events.log import Log
from services.events.reading import Reading
from services.events.sources import FILES, Files, Kernel
from services.runtime.handlers import Environment, Handlers
from services.shared.times import DAY_NS

RETRY_S = 5.0


class EventsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings table `[events]`."""

    keep_days: Annotated[int, Meta(ge=1, le=3650, description="How long events are kept")] = 7
    max_events: Annotated[int, Meta(ge=1000, le=10_000_000, description="How many are kept at most")] = 200_000
    files: Annotated[bool, Meta(description="Whether changes of files are recorded")] = True
    ignore: Annotated[list[str], Meta(max_length=512, description="Files to leave out, as in a .gitignore")] = []


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; it is ready once the database is open."""
    settings = env.settings_as(EventsSettings)
    bounds = Bounds(settings.max_events, settings.keep_days * DAY_NS)
    log = await Log.open(env, bounds)
    env.background.start_soon(log.announce)
    env.background.start_soon(_follow, env, log, settings, bounds)
    yield Handlers(Reading(env, log), Folded(env, log))


async def _follow(env: Environment, log: Log, settings: EventsSettings, bounds: Bounds) -> None:
    """Follow the sources from the stored positions until cancelled."""
    while True:
        try:
            positions = await log.positions()
            break
        except LinckiaError:
            # The database is damaged, which `status` says; what can be read of it is served.
            await trio.sleep(RETRY_S)
    if settings.files and env.roots:
        env.background.start_soon(Files(env, log, positions.get(FILES, ""), settings.ignore).run)
    await Kernel(env, log, positions, bounds).run()
