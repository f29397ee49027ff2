"""The service `memory`: opens the database, feeds the search beside it, and answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.errors import LinckiaError
from services.memory import store
from services.memory.feed import MemoryFeed
from services.memory.finding import Finding
from services.memory.keeping import Keeping
from services.runtime.handlers import Environment, Handlers
from services.runtime.times import DAY_NS


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.memory]`."""

    expired_days: Annotated[int, Meta(ge=0, le=36_500, description="How long what has expired is still listed")] = 30


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open, also a damaged one."""
    kept_ns = env.settings_as(Settings).expired_days * DAY_NS
    database = await env.opened(store.open_database, env.data_dir / "memory.db", env.damaged)
    with contextlib.suppress(LinckiaError):  # A full or damaged disk: what is kept is served.
        await database.write(lambda db: store.purge(db, time.time_ns() - kept_ns))
    feed = MemoryFeed(env, database)
    env.background.start_soon(feed.run)
    yield Handlers(Keeping(database, feed, kept_ns), Finding(database, feed))
