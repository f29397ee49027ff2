"""The service `documents`: opens the databases, starts the background work and provides the handlers.

It is ready once the databases are open. Texts that are not indexed yet are searched directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from services.documents.change_operations import ChangeOperations
from services.documents.components import Components
from services.documents.export_import import ExportImport
from services.documents.read_operations import ReadOperations
from services.documents.sessions import Sessions
from services.documents.store.databases import Store
from services.documents.uploads import Uploads
from services.runtime.handlers import Environment, Handlers
from services.runtime.storage import retry_when_full


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    store = await env.opened(Store, env.data_dir, env.damaged)
    env.at_rest(store.give_back)
    env.keeps_keys_in(store.packs)
    components = Components(env, store)
    sessions = Sessions(components)
    store.on_index_lost = components.hurry
    env.background.start_soon(retry_when_full, env, "indexing", components.indexing.run)
    for task in (components.feed.run, components.feed.cut_again, components.graph.run, sessions.follower.run):
        env.background.start_soon(task)
    env.background.start_soon(components.graph.watch_epoch, components.graph_feed.epoch)
    yield Handlers(
        ReadOperations(components),
        ChangeOperations(components),
        Uploads(components),
        sessions,
        ExportImport(components),
    )
