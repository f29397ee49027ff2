"""Writing documents, many in one transaction and with few statements: what is known of a path is kept and added to."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import apsw

from proto.ops.documents.change import AddResult
from services.documents.add.intake import Ready, Same, Taken
from services.documents.store import kinds, objects, rows, schema
from services.documents.store.rows import Given
from services.documents.store.snapshots import Entry

MAX_FAILED = 100


@dataclass(slots=True)
class Progress:
    """What an `add` has done so far: documents by what has become of them, bytes, and the contents that are new."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    size: int = 0
    stored: int = 0
    objects: list[int] = field(default_factory=list)
    changed: bool = False
    """Whether any row was written: a content or document that is the same already leaves no work."""
    failed: list[str] = field(default_factory=list)
    failed_count: int = 0

    def fail(self, reasons: Sequence[str]) -> None:
        self.failed_count += len(reasons)
        self.failed += reasons[: MAX_FAILED - len(self.failed)]

    def answer(
        self, path: str, name: str, hash_: str | None = None, *, skipped: int = 0, snapshot: str | None = None,
        ignored: Mapping[str, int] = MappingProxyType({}),
    ) -> AddResult:  # fmt: skip
        return AddResult(
            hash=hash_, path=path, name=name, size=self.size, is_new=bool(self.objects), documents_added=self.added,
            documents_updated=self.updated, documents_unchanged=self.unchanged,
            files=self.added + self.updated + self.unchanged, bytes_stored=self.stored, failed=self.failed,
            failed_count=self.failed_count, skipped=skipped, snapshot_id=snapshot, text_waiting=0,
            ignored=dict(sorted(ignored.items())),
        )  # fmt: skip


@dataclass(slots=True)
class Written:
    """What came of it: the listing, and paths that have to be read (once more) by themselves."""

    entries: list[Entry] = field(default_factory=list)
    again: list[str] = field(default_factory=list)


def write(db: apsw.Connection, ready: Ready, given: Given, progress: Progress) -> Written:
    """Write documents, inside the caller's transaction."""
    written = Written()
    before = db.total_changes()
    ids = _write_taken(db, ready.taken, given, progress, written)
    ids += _keep_same(db, ready.same, given, progress, written)
    _describe(db, ids, given)
    progress.changed |= db.total_changes() > before
    return written


def _write_taken(
    db: apsw.Connection, taken: Sequence[Taken], given: Given, progress: Progress, written: Written
) -> list[int]:
    """Have each path hold its content; answers the documents."""
    if not taken:
        return []
    objects_, new = objects.put_many(db, [one.content for one in taken])
    query = "SELECT path, id, object, stamp FROM carray(?) AS one JOIN document ON path = one.value"
    held = {row[0]: row[1:] for row in db.execute(query, (apsw.carray(tuple(one.path for one in taken)),))}
    next_id = schema.next_id(db, "document") if len(held) < len(taken) else 0
    now_ns = time.time_ns()
    metadata = json.dumps(dict(given.metadata), ensure_ascii=False)
    arrived: list[tuple[apsw.SQLiteValue, ...]] = []
    changed: list[tuple[int, int, int, str, int]] = []
    touched: list[tuple[int, str, int]] = []
    ids: list[int] = []
    unseen = set(new)
    for one, object_ in zip(taken, objects_, strict=True):
        if object_ is None:
            written.again.append(one.path)
            continue
        if object_ in unseen:
            unseen.remove(object_)
            progress.stored += one.content.size
        progress.size += one.content.size
        id_, before, stamp = held.get(one.path, (next_id, None, ""))
        if before is None:
            next_id += 1
            progress.added += 1
            name = one.name or one.path.rstrip("/").rsplit("/", 1)[-1] or one.path
            arrived.append(
                (id_, one.path, name, kinds.extension_of(name), object_, given.mime, given.session, metadata,
                 now_ns, one.modified_ns, now_ns, one.stamp)
            )  # fmt: skip
        else:
            progress.updated += before != object_
            progress.unchanged += before == object_
            if before != object_:
                changed.append((object_, one.modified_ns, now_ns, one.stamp, id_))
            elif stamp != one.stamp:
                touched.append((one.modified_ns, one.stamp, id_))
            rows.merge(db, id_, given.metadata)
        ids.append(id_)
        written.entries.append(Entry(one.path, b"", object_, one.content.size, one.modified_ns, one.mode))
    progress.objects += new
    schema.insert(
        db,
        "document(id, path, name, extension, object, mime, session, metadata, created_ns, modified_ns, indexed_ns,"
        " stamp)",
        arrived,
    )
    db.executemany("UPDATE document SET object=?, modified_ns=?, indexed_ns=?, stamp=? WHERE id=?", changed)
    db.executemany("UPDATE document SET modified_ns=?, stamp=? WHERE id=?", touched)
    return ids


def _keep_same(
    db: apsw.Connection, same: Sequence[Same], given: Given, progress: Progress, written: Written
) -> list[int]:
    """Files that nothing was read of, as long as the store still has them so; answers the documents."""
    if not same:
        return []
    # One row: while SQLite makes it, threads that read and compress go on.
    query = (
        "SELECT group_concat(coalesce(document.object, 0), ' ' ORDER BY wanted.rowid)"
        " FROM carray(?) AS wanted LEFT JOIN document ON document.id = wanted.value"
    )
    now: str = db.execute(query, (schema.ids(one.document for one in same),)).get
    ids: list[int] = []
    for one, object_ in zip(same, map(int, now.split(" ")), strict=True):
        if object_ != one.object:
            # Deleted or replaced while the directory was being looked at.
            written.again.append(one.path)
            continue
        ids.append(one.document)
        progress.unchanged += 1
        progress.size += one.size
        written.entries.append(Entry(one.path, b"", object_, one.size, one.modified_ns, one.mode))
        rows.merge(db, one.document, given.metadata)
    return ids


def _describe(db: apsw.Connection, ids: Sequence[int], given: Given) -> None:
    """Give all of them what was said of them."""
    if not ids:
        return
    if given.mime is not None or given.session is not None:
        db.execute(
            "UPDATE document SET mime=coalesce(?1, mime), session=coalesce(?2, session)"
            " WHERE id IN (SELECT value FROM carray(?3))"
            " AND (mime IS NOT coalesce(?1, mime) OR session IS NOT coalesce(?2, session))",
            (given.mime, given.session, schema.ids(ids)),
        )
    for tag in given.tags:
        db.execute("INSERT OR IGNORE INTO tag(document, tag) SELECT value, ? FROM carray(?)", (tag, schema.ids(ids)))
    if given.collection is not None:
        db.execute("INSERT OR IGNORE INTO collection(name) VALUES(?)", (given.collection,))
        db.execute(
            "INSERT OR IGNORE INTO member(document, collection)"
            " SELECT value, (SELECT id FROM collection WHERE name=?) FROM carray(?)",
            (given.collection, schema.ids(ids)),
        )
