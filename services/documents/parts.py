"""What the handlers of the service share."""

from __future__ import annotations

from dataclasses import dataclass

from services.documents.add import Adding
from services.documents.codes import Parsing
from services.documents.compress import Codec
from services.documents.feeding import SearchFeed
from services.documents.graph_feed import GraphFeed
from services.documents.indexing import Indexing
from services.documents.store import Store
from services.documents.uploads import Uploads
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
