"""Which note an id means, as soon as that is known: after a start, some are not listed yet."""

from __future__ import annotations

import trio

from proto import grants
from proto.errors import OperationError, Unavailable
from proto.near import did_you_mean
from services.knowledge import nodes
from services.knowledge.ingest.ingest import STARTUP_PATIENCE_S, Ingest
from services.runtime.database import Database


class Finding:
    """Looks notes up by their ids."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest

    async def sought(self, id_: str, *, with_links: bool = False) -> nodes.Node | None:
        """The note, as soon as it is known whether there is one, and which links it has.

        Raises:
            Unavailable: that takes longer than a moment.
        """
        listed = self._ingest.is_listed
        node = await self._database.read(lambda db: nodes.sought(db, id_))
        if listed if node is None else node.title or not with_links:
            return node
        with trio.move_on_after(STARTUP_PATIENCE_S):
            async with self._ingest.passed:
                while True:
                    listed = self._ingest.is_listed
                    node = await self._database.read(lambda db: nodes.sought(db, id_))
                    if listed if node is None else node.title or not with_links:
                        return node
                    await self._ingest.passed.wait()
        reason = "; ".join(self._ingest.degraded()) or "the folders are being read"
        raise Unavailable(f"what is known of note {id_} is not whole yet: {reason}", retry_after_ms=1000)

    async def found(self, id_: str) -> nodes.Node:
        """The same.  Raises OperationError where there is none, with what may have been meant."""
        node = await self.sought(id_)
        if node is not None and (not grants.roots() or self._ingest.roots.holds(node.place.absolute)):
            return node
        if grants.roots():
            # Nothing is told of notes that the client may not reach.
            raise OperationError("Node not found.", field="id")
        path = await self._database.read(lambda db: nodes.departed_path(db, id_))
        if path is not None:
            raise OperationError(f"File not found: {path}", field="id")
        known = await self._database.read(lambda db: nodes.ids_like(db, id_))
        raise OperationError(f"Node not found.{did_you_mean(id_, known).replace('; d', ' D', 1)}", field="id")
