"""Wait for the ingest: until an id can be resolved, or until everything is indexed, with progress.

The ingest runs independently: cancelling a wait stops nothing, and a new call waits for the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import trio

from proto import grants
from proto.errors import InvalidParams, Kind, LinckiaError, OperationError, Unavailable
from proto.ops.retrieve import CollectionStatus, RetrieveStatus
from proto.suggestions import did_you_mean
from services.knowledge import nodes
from services.knowledge.ingest.index import COLLECTION
from services.knowledge.ingest.ingest import STARTUP_PATIENCE_S, Ingest
from services.knowledge.notes.files import Place
from services.knowledge.notes.spelling import as_on_disk
from services.knowledge.operations.notes import KnowledgeIngest, KnowledgeIngestResult, Problem
from services.runtime.database import Database
from services.runtime.handlers import Context
from services.runtime.roots import Roots, is_below, printable

MAX_FAILED = 100
POLL_S = 0.25
"""Interval for polling the number of missing vectors."""


class NoteLookup:
    """Looks up notes by id, waiting if they are not listed yet after a start."""

    def __init__(self, database: Database, ingest: Ingest) -> None:
        self._database = database
        self._ingest = ingest

    async def find(self, id_: str, *, with_links: bool = False) -> nodes.IndexedNote | None:
        """Return the note that has or had this id, once it is known whether it exists and, if asked, its links.

        Raises:
            Unavailable: that takes too long.
        """
        known, node = await self._look(id_, with_links)
        if known:
            return node
        with trio.move_on_after(STARTUP_PATIENCE_S):
            async with self._ingest.passed:
                while True:
                    known, node = await self._look(id_, with_links)
                    if known:
                        return node
                    await self._ingest.passed.wait()
        reason = "; ".join(self._ingest.degraded()) or "the folders are being read"
        raise Unavailable(f"note {id_} is not fully indexed yet: {reason}", retry_after_ms=1000)

    async def _look(self, id_: str, with_links: bool) -> tuple[bool, nodes.IndexedNote | None]:
        """Return whether the information is complete, and the note."""
        listed = self._ingest.is_listed
        node = await self._database.read(lambda db: nodes.sought(db, id_))
        return (listed if node is None else bool(node.title) or not with_links), node

    async def require(self, id_: str) -> nodes.IndexedNote:
        """Like `find`, but raise OperationError with suggestions if there is no such note."""
        node = await self.find(id_)
        if node is not None and (not grants.roots() or self._ingest.roots.holds(node.place.absolute)):
            return node
        if grants.roots():
            # Reveal nothing about notes that the client may not access.
            raise OperationError("Node not found.", field="id")
        path = await self._database.read(lambda db: nodes.departed_path(db, id_))
        if path is not None:
            raise OperationError(f"File not found: {path}", field="id")
        known = await self._database.read(lambda db: nodes.ids_like(db, id_))
        raise OperationError(f"Node not found.{did_you_mean(id_, known).replace('; d', ' D', 1)}", field="id")


async def wait_for(params: KnowledgeIngest, ingest: Ingest, ctx: Context) -> KnowledgeIngestResult:
    """Wait until the current content below the given paths is indexed.

    Raises InvalidParams if a path does not exist or is not below a root.
    """
    seats = [_seat(path, index, ingest.roots) for index, path in enumerate(params.paths)] or ingest.roots
    before = {place: known.hash for place, known in ingest.index.known.items()}
    await _indexed(seats, ingest, ctx)
    known = ingest.index.known
    places = [place for place in known if is_below(place.absolute, seats)]
    vectors = await _vectors(ctx, wait=params.vectors)
    failed = sorted((place, ingest.index.failed[place].reason) for place in places if place in ingest.index.failed)
    return KnowledgeIngestResult(
        notes=len(places),
        indexed=sum(known[place].hash not in (None, before.get(place)) for place in places),
        failed=[Problem(path=printable(place.absolute), reason=reason) for place, reason in failed[:MAX_FAILED]],
        failed_count=len(failed),
        vectors_waiting=vectors.vectors_waiting,
        no_model=vectors.no_model,
    )


def _seat(path: str, index: int, roots: Roots) -> str:
    """Return the real path.  Raises InvalidParams, Denied."""
    real, wrong = os.path.realpath(as_on_disk(os.path.realpath(path), roots)), ""
    if not roots.holds(real):
        there = ", ".join(roots) or "no roots are configured"
        wrong = f"is not below a root ({there}); pass roots when starting the kernel: linckia serve PATH…"
    elif not os.path.lexists(real):
        wrong = "does not exist"
    if wrong:
        raise InvalidParams(f"parameter `paths[{index}]`: {path[:200]} {wrong}", field=f"paths[{index}]")
    roots.check(real, field=f"paths[{index}]")
    return real


async def _indexed(seats: Sequence[str], ingest: Ingest, ctx: Context) -> None:
    """Wait until a scan that began after this call has left nothing pending."""
    began = time.time()
    touched: set[Place] = set()

    def is_indexed() -> bool:
        pending = {place for place in ingest.index.pending if is_below(place.absolute, seats)}
        touched.update(pending)
        if touched:
            why = f"notes: waiting: {ingest.waiting}" if ingest.waiting else "notes"
            ctx.progress(len(touched) - len(pending), len(touched), why)
        return ingest.scanned and ingest.scan_began_at >= began and not pending

    ingest.hurry()
    await ingest.until(is_indexed)


async def _vectors(ctx: Context, *, wait: bool) -> CollectionStatus:
    """Return how many pieces have no vector.  If `wait`, first wait until only those are left that will have none."""
    while True:
        try:
            status = await ctx.call(RetrieveStatus(collection=COLLECTION))
        except LinckiaError as error:
            if error.failure.kind not in (Kind.UNAVAILABLE, Kind.OVERLOADED, Kind.TIMEOUT, Kind.MAYBE_EXECUTED):
                raise
            # The search restarts, and its work survives that; keep waiting.
            await trio.sleep(max(POLL_S, (error.failure.retry_after_ms or 0) / 1000))
            continue
        if wait and (backlog := status.backlog) is not None:
            ctx.progress(backlog.done, backlog.total, "vectors")
        if not wait or status.no_model or status.vectors_waiting <= status.vectors_failed:
            return status
        await trio.sleep(POLL_S)
