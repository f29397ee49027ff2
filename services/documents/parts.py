"""What the handlers of the service share."""

from __future__ import annotations

from dataclasses import dataclass

from services.documents.add.add import Adding
from services.documents.add.uploads import Uploads
from services.documents.code.parsing import Parsing
from services.documents.graph.feed import GraphFeed
from services.documents.store.compress import Codec
from services.documents.store.store import Store
from services.documents.text.feed import SearchFeed
from services.documents.text.indexing import Indexing
from services.runtime.handlers import Environment


@dataclass(frozen=True, slots=True)
class Parts:
    """The open store and the work around it."""

    env: Environment
    store: Store
    codec: Codec
    adding: Adding
    indexing: Indexing
    feed: SearchFeed
    parsing: Parsing
    graph: GraphFeed
    uploads: Uploads

    def hurry(self) -> None:
        """Something was changed: the work in the background begins at once."""
        self.indexing.hurry()
        self.feed.hurry()
        self.graph.hurry()
