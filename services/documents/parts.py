"""The parts of the service, which its handlers share."""

from __future__ import annotations

import msgspec

from linckia.proto.ops.documents.change import AddResult
from linckia.services.documents.add.add import Adding
from linckia.services.documents.add.intake import Progress
from linckia.services.documents.code.feed import GraphFeed
from linckia.services.documents.code.parsing import Parsing
from linckia.services.documents.store.store import Store
from linckia.services.documents.text.feed import ContentFeed
from linckia.services.documents.text.indexing import Indexing
from linckia.services.runtime.handlers import Environment
from linckia.services.runtime.outbox import Outbox

EXTRACTION_PATIENCE_S = 10.0


class Settings(msgspec.Struct, frozen=True):
    """As they may be written; others are of those that read them."""

    default_ignores: bool = True
    """Whether folders that tools make (`node_modules`) are left out of a folder that is added."""


class Parts:
    def __init__(self, env: Environment, store: Store) -> None:
        takes_generated = not env.settings_as(Settings).default_ignores
        self.env, self.store = env, store
        self.adding = Adding(store, env.roots, takes_generated=takes_generated)
        self.parsing = Parsing(env, store)
        self.feed = ContentFeed(env, store, self.adding)
        self.search = self.feed.outbox
        self.indexing = Indexing(env, store, self.adding, self.search.hurry)
        self.graph_feed = GraphFeed(env, store, self.parsing, self.adding)
        self.graph = Outbox(env, "the graph", self.graph_feed)

    def hurry(self) -> None:
        """Something was changed: the work in the background begins at once."""
        self.indexing.hurry()
        self.search.hurry()
        self.graph.hurry()

    async def added(self, answer: AddResult, progress: Progress) -> AddResult:
        """The answer to an `add`, after a moment in which the text of new contents may be extracted."""
        if progress.changed:
            self.hurry()
        left = await self.indexing.settled(progress.objects, EXTRACTION_PATIENCE_S)
        without = await self.indexing.without_text(progress.objects)
        return msgspec.structs.replace(answer, text_waiting=left, without_text=without)


class Family:
    """Handlers, which share the parts."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store
