"""The components of the service, shared by its handlers."""

from __future__ import annotations

import msgspec

from proto.ops.documents.change import AddResult
from services.documents.add.add import Adding
from services.documents.add.intake import Progress
from services.documents.code.feed import GraphFeed
from services.documents.code.parsing import Parsing
from services.documents.store.databases import Store
from services.documents.text.feed import ContentFeed
from services.documents.text.indexing import Indexing
from services.runtime.handlers import Environment
from services.shared.outbox import Outbox

EXTRACTION_PATIENCE_S = 10.0


class DocumentsSettings(msgspec.Struct, frozen=True):
    """The settings in `[services.documents]` that this module uses; other modules define their own."""

    default_ignores: bool = True
    """Whether adding a folder skips generated folders (`node_modules`)."""


class Components:
    def __init__(self, env: Environment, store: Store) -> None:
        takes_generated = not env.settings_as(DocumentsSettings).default_ignores
        self.env, self.store = env, store
        self.adding = Adding(store, env.roots, takes_generated=takes_generated)
        self.parsing = Parsing(env, store)
        self.feed = ContentFeed(env, store, self.adding)
        self.search = self.feed.outbox
        self.indexing = Indexing(env, store, self.adding, self.search.hurry)
        self.graph_feed = GraphFeed(env, store, self.parsing, self.adding)
        self.graph = Outbox(env, "the graph", self.graph_feed)

    def hurry(self) -> None:
        """Start the background work now, because something changed."""
        self.indexing.hurry()
        self.search.hurry()
        self.graph.hurry()

    async def added(self, answer: AddResult, progress: Progress) -> AddResult:
        """Complete the result of an `add`, after waiting briefly for text extraction of the new contents."""
        if progress.changed:
            self.hurry()
        left = await self.indexing.settled(progress.objects, EXTRACTION_PATIENCE_S)
        without = await self.indexing.without_text(progress.objects)
        return msgspec.structs.replace(answer, text_waiting=left, without_text=without)


class OperationGroup:
    """Base class of the handlers."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._store = components.store
