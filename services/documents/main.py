"""The service: opens the databases, does its work in the background, and answers.

It is ready once the databases are open; a text that is not indexed yet is searched directly.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from linckia.services.documents.carrying import Carrying
from linckia.services.documents.changing import Changing
from linckia.services.documents.parts import Parts
from linckia.services.documents.reading import Reading
from linckia.services.documents.sessions import Sessions
from linckia.services.documents.store.store import Store
from linckia.services.documents.uploads import Uploads
from linckia.services.runtime.handlers import Environment, Handlers
from linckia.services.runtime.storage import patiently


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    store = await env.opened(Store, env.data_dir, env.damaged)
    env.at_rest(store.give_back)
    parts = Parts(env, store)
    sessions = Sessions(parts)
    store.when_index_is_lost = parts.hurry
    env.background.start_soon(patiently, env, "indexing", parts.indexing.run)
    for task in (parts.feed.run, parts.feed.cut_again, parts.graph.run, sessions.follower.run):
        env.background.start_soon(task)
    env.background.start_soon(parts.graph.watch_epoch, parts.graph_feed.epoch)
    yield Handlers(Reading(parts), Changing(parts), Uploads(parts), sessions, Carrying(parts))
