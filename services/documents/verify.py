"""Statistics of the store, and verification of its contents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import apsw
import trio

from proto.ops.documents.reading import VerifyResult
from services.documents.operations.listing import DocumentsStatus, StatusResult, TypeCount
from services.documents.store import objects, tables
from services.documents.store.compress import DamagedContent
from services.documents.store.databases import Store, is_complete
from services.runtime.handlers import Context
from services.runtime.storage import Damaged as DamagedFile

T = TypeVar("T")

BATCH = 200
MAX_NOTES = 1000
MAX_QUARANTINED = 100


def status(
    db: apsw.Connection, params: DocumentsStatus, disk_bytes: int, vectors_waiting: int | None, degraded: list[str]
) -> StatusResult:
    """Return the statistics of the store.  Contents awaiting garbage collection are not counted."""

    def by_type(column: str) -> list[TypeCount]:
        counted = db.execute(
            f"SELECT {column}, count(*) AS n, sum(object.size) FROM document"
            " JOIN object ON object.id = document.object GROUP BY 1 ORDER BY n DESC, 1"
        )
        return [TypeCount(type=kind or "(none)", documents=n, bytes=size) for kind, n, size in counted]

    documents, total_bytes = db.execute(
        "SELECT count(*), coalesce(sum(size), 0) FROM document JOIN object ON object.id = document.object"
    ).get
    blocks, stored = db.execute(
        "SELECT count(*), coalesce(sum(stored), 0) FROM (SELECT object, stored FROM block"
        " UNION ALL SELECT object, stored FROM packed) AS whole JOIN object ON object.id = whole.object"
        f" WHERE {objects.HELD}"
    ).get
    chunks, chunked = db.execute(
        "SELECT count(*), coalesce(sum(stored), 0) FROM chunk WHERE id IN (SELECT chunk FROM part)"
    ).get
    needed = db.execute(
        "SELECT (SELECT coalesce(sum(size), 0) FROM object WHERE chunked=0"
        " AND EXISTS(SELECT 1 FROM document WHERE document.object=object.id))"
        " + (SELECT coalesce(sum(size), 0) FROM chunk WHERE id IN (SELECT chunk FROM part WHERE EXISTS("
        "SELECT 1 FROM document WHERE document.object=part.object)))"
    ).get
    saved = max(0, total_bytes - needed)
    quarantined = db.execute(
        "SELECT path, problem FROM object JOIN document ON document.object = object.id WHERE problem IS NOT NULL"
        " ORDER BY document.id LIMIT ?",
        (MAX_QUARANTINED,),
    )
    in_state = "object WHERE text_state="
    return StatusResult(
        total_objects=documents,
        total_bytes=total_bytes,
        unique_objects=count(db, f"object WHERE {objects.HELD}"),
        unique_blocks=blocks + chunks,
        deduplicated_bytes=saved,
        dedup_ratio=round(saved / total_bytes, 6) if total_bytes else 0.0,
        stored_bytes=stored + chunked,
        disk_bytes=disk_bytes,
        collections=db.execute("SELECT count(DISTINCT collection) FROM member").get,
        snapshots=count(db, "snapshot"),
        extraction_waiting=count(db, f"{in_state}{tables.TEXT_WAITING}"),
        index_waiting=count(db, "index_outbox"),
        search_waiting=count(db, "search_outbox"),
        graph_waiting=count(db, "graph_outbox"),
        vectors_waiting=vectors_waiting,
        quarantined=count(db, f"{in_state}{tables.TEXT_QUARANTINED}"),
        file_types=by_type("document.extension") if params.file_types else None,
        mime_types=by_type("coalesce(document.mime, object.mime)") if params.detailed else None,
        quarantine=[f"{path}: {problem}" for path, problem in quarantined] if params.detailed else None,
        degraded=degraded,
    )


def count(db: apsw.Connection, of: str) -> int:
    """Count the rows of a table or FROM clause."""
    return int(db.execute(f"SELECT count(*) FROM {of}").get)


_INCONSISTENCIES = {
    "documents whose content is missing": "document WHERE NOT EXISTS(SELECT 1 FROM object WHERE id=document.object)",
    "missing contents of snapshots": ("held WHERE NOT EXISTS(SELECT 1 FROM object WHERE id=held.object)"),
    "unreferenced contents that would never be collected": (
        f"object WHERE NOT {objects.HELD} AND NOT EXISTS(SELECT 1 FROM loose WHERE object=object.id)"
    ),
    "contents whose pack is missing": "packed WHERE NOT EXISTS(SELECT 1 FROM pack WHERE id=packed.pack)",
    "empty packs that would never be collected": (
        "pack WHERE NOT EXISTS(SELECT 1 FROM packed WHERE pack=pack.id AND object >= pack.id"
        f" AND object < pack.id + {objects.PACK_IDS})"
    ),
}
"""Inconsistencies, with the rows that have them."""

_UNINDEXED = (
    "SELECT id FROM object WHERE text_state IN (1, 2)"
    " AND NOT EXISTS(SELECT 1 FROM index_outbox WHERE object=object.id)"
    " AND NOT EXISTS(SELECT 1 FROM idx.done WHERE object=object.id)"
    " AND NOT EXISTS(SELECT 1 FROM idx.unindexed WHERE object=object.id)"
)


def _integrity(db: apsw.Connection, name: str) -> list[str]:
    return [f"{name}: {said}" for (said,) in db.execute(f"PRAGMA {name}.integrity_check(20)") if said != "ok"]


async def unfindable(store: Store) -> list[str]:
    """Report texts that grep would miss.

    The index is read after the packs, so a concurrent deletion looks like a missing text. Only texts that are missing
    in two reads are reported.
    """

    def missing(db: apsw.Connection) -> set[int]:
        return {id_ for (id_,) in db.execute(_UNINDEXED)} if is_complete(db) else set()

    first = await store.read(missing)
    both = first & await store.read(missing) if first else first
    if not both:
        return []
    return [f"{len(both)} texts that grep would miss: neither in the index nor waiting for it"]


async def verify(store: Store, ctx: Context) -> VerifyResult:
    """Verify the hash of every content, in batches so that other calls can run.  Unreadable pages are reported too."""
    damaged: list[str] = []
    problems: list[str] = []
    checked = size = 0
    last = await _read_packs(store, lambda db: tables.next_id(db, "object"), 0, problems) - 1
    for first in range(1, last + 1, BATCH):
        some = partial(_hashed, first=first, last=first + BATCH - 1)
        nothing: tuple[int, int, list[str]] = (0, 0, [])
        contents, read, found = await _read_packs(store, some, nothing, problems)
        checked, size = checked + contents, size + read
        damaged += found[: MAX_NOTES - len(damaged)]
        ctx.progress(checked, max(last, checked), "contents")
    problems += await _read_packs(store, lambda db: _integrity(db, "main"), [], problems)
    for what, rows in _INCONSISTENCIES.items():
        lost = await _read_packs(store, partial(count, of=rows), 0, problems)
        problems += [f"{lost} {what}"] if lost else []
    of_index = await store.read(lambda db: _integrity(db, "idx"))
    if of_index:
        await trio.to_thread.run_sync(store.index.begin_again, of_index[0], store.index.generation)
        problems += [*of_index, "the index is being rebuilt"]
    if not problems:
        problems += await unfindable(store)
    return VerifyResult(objects=checked, bytes=size, damaged=damaged, problems=list(dict.fromkeys(problems)))


async def _read_packs(store: Store, query: Callable[[apsw.Connection], T], otherwise: T, problems: list[str]) -> T:
    """Run `query` on the packs.  If they cannot be read, record a problem and return `otherwise`."""
    try:
        return await store.read(query)
    except DamagedFile as error:
        problems.append(str(error))
        return otherwise


def _hashed(db: apsw.Connection, first: int, last: int) -> tuple[int, int, list[str]]:
    """Verify a range of ids.  Returns the number of contents, the bytes read, and the damaged ones."""
    ids = [id_ for (id_,) in db.execute("SELECT id FROM object WHERE id BETWEEN ? AND ?", (first, last))]
    found: list[str] = []
    read = 0
    for id_ in ids:
        digest = hashlib.sha256()
        name = f"content {id_}"
        try:
            stored = objects.by_id(db, id_)
            assert stored is not None
            name = stored.hash.hex()
            for piece in objects.stream(db, stored):
                digest.update(piece)
                read += len(piece)
            reason = "" if digest.digest() == stored.hash else "hash mismatch"
        except DamagedContent as error:
            reason = str(error)
        if reason:
            path = db.execute("SELECT path FROM document WHERE object=? LIMIT 1", (id_,)).get
            found.append(f"{name} ({path or 'only in a snapshot'}): {reason}")
    return len(ids), read, found
