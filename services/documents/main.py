"""The service: opens the databases, does its work in the background, and answers.

It is ready once the databases are open; what is still to be indexed is found all the same, by being looked through.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from proto.operation import Params
from proto.ops.documents import DocumentsGet, DocumentsList
from proto.ops.documents_change import DocumentsAdd
from proto.ops.documents_find import DocumentsGrep, DocumentsSearch
from services.documents.add.add import Adding
from services.documents.add.uploads import Uploads
from services.documents.code.parsing import Parsing
from services.documents.follower import Watching
from services.documents.graph.feed import GraphFeed
from services.documents.operations import handlers_of
from services.documents.parts import Parts
from services.documents.store.compress import Codec
from services.documents.store.store import Store
from services.documents.store.training import Trainer
from services.documents.text.feed import SearchFeed
from services.documents.text.indexing import Indexing
from services.runtime.handlers import Environment, Handlers


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the databases are open."""
    store = await trio.to_thread.run_sync(Store, env.data_dir)
    env.at_rest(store.give_back)
    try:
        codec = await store.read(Codec)
        roots = tuple(str(root) for root in env.roots)
        adding = Adding(store, codec, Trainer(store, codec), roots)
        indexing = Indexing(env, store, codec, adding)
        feed = SearchFeed(env, store, codec, adding)
        parsing = Parsing(store, codec)
        graph = GraphFeed(env, store, parsing, adding)
        parts = Parts(env, store, codec, adding, indexing, feed, parsing, graph, Uploads(adding))
        watching = Watching(parts)
        env.background.start_soon(indexing.run)
        env.background.start_soon(feed.run)
        env.background.start_soon(graph.run)
        env.background.start_soon(watching.run)
        try:
            yield handlers_of(parts, watching)
        finally:
            await watching.stop()
            await graph.stop()
            await feed.stop()
            await indexing.stop()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """A file and a text, found in every way."""
    (root / "a.py").write_text("def a():\n    return 1\n")
    return (
        DocumentsAdd(path=str(root)),
        DocumentsAdd(name="b.txt", content="a text"),
        DocumentsList(limit=10),
        DocumentsGet(name="b.txt", include_content=True),
        DocumentsGrep(pattern="return"),
        DocumentsSearch(query="a text"),
    )
