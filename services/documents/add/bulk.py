"""Writing documents, many in one transaction and with few statements: what is known of a path is kept and added to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from services.documents.add.intake import Ready, Same, Taken
from services.documents.add.progress import Progress
from services.documents.store import kinds, objects, rows, statements
from services.documents.store.rows import ADDED, UNCHANGED, UPDATED, Given
from services.documents.store.snapshots import Entry


@dataclass(slots=True)
class Written:
    """What came of it: the listing, and paths that have to be read (once more) by themselves."""

    entries: list[Entry] = field(default_factory=list)
    again: list[str] = field(default_factory=list)


def write(db: apsw.Connection, ready: Ready, given: Given, progress: Progress, now_ns: int) -> Written:
    """Write documents, inside the caller's transaction."""
    written = Written()
    ids = _write_taken(db, ready.taken, given, progress, now_ns, written)
    ids += _keep_same(db, ready.same, given, progress, written)
    _describe(db, ids, given)
    return written


def _write_taken(db: apsw.Connection, taken: Sequence[Taken], given: Given, progress: Progress, now_ns: int,
                 written: Written) -> list[int]:  # fmt: skip
    """Have each path hold its content; answers the documents."""
    if not taken:
        return []
    objects_, new = objects.put_many(db, [one.content for one in taken])
    first_new = new[0] if new else None
    query = "SELECT path, id, object, metadata, stamp FROM carray(?) AS one JOIN document ON path = one.value"
    held = {row[0]: row[1:] for row in db.execute(query, (apsw.carray(tuple(one.path for one in taken)),))}
    next_id = statements.next_id(db, "document")
    metadata = json.dumps(dict(given.metadata), ensure_ascii=False) if given.metadata else "{}"
    arrived: list[tuple[apsw.SQLiteValue, ...]] = []
    changed: list[tuple[int, int, int, str, int]] = []
    touched: list[tuple[int, str, int]] = []
    ids: list[int] = []
    stored: set[int] = set()
    for one, object_ in zip(taken, objects_, strict=True):
        if object_ is None:
            written.again.append(one.path)
            continue
        if first_new is not None and object_ >= first_new and object_ not in stored:
            stored.add(object_)
            progress.stored += one.content.size
        before = held.get(one.path)
        if before is None:
            id_ = next_id
            next_id += 1
            name = one.name or one.path.rstrip("/").rsplit("/", 1)[-1] or one.path
            arrived.append(
                (id_, one.path, name, kinds.extension_of(name), object_, given.mime, given.session, metadata,
                 now_ns, one.modified_ns, now_ns, one.stamp)
            )  # fmt: skip
            progress.count(ADDED, one.content.size)
        else:
            id_, was, said, stamp = before
            if was != object_:
                changed.append((object_, one.modified_ns, now_ns, one.stamp, id_))
            elif stamp != one.stamp:
                touched.append((one.modified_ns, one.stamp, id_))
            progress.count(UNCHANGED if was == object_ else UPDATED, one.content.size)
            if given.metadata:
                rows.merge(db, id_, str(said), given.metadata)
        ids.append(id_)
        written.entries.append(Entry(one.path, b"", object_, one.content.size, one.modified_ns, one.mode))
    progress.objects += new
    statements.insert(
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
    query = (
        "SELECT group_concat(coalesce(document.object, 0), ' ' ORDER BY wanted.rowid)"
        " FROM carray(?) AS wanted LEFT JOIN document ON document.id = wanted.value"
    )
    (now,) = db.execute(query, (statements.ids(one.document for one in same),)).fetchall()[0]
    ids: list[int] = []
    for one, object_ in zip(same, map(int, str(now).split(" ")), strict=True):
        if object_ != one.object:
            # Deleted or replaced while the directory was being looked at.
            written.again.append(one.path)
            continue
        ids.append(one.document)
        progress.count(UNCHANGED, one.size)
        written.entries.append(Entry(one.path, b"", object_, one.size, one.modified_ns, one.mode))
        if given.metadata:
            (said,) = db.execute("SELECT metadata FROM document WHERE id=?", (one.document,)).fetchall()[0]
            rows.merge(db, one.document, str(said), given.metadata)
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
            (given.mime, given.session, statements.ids(ids)),
        )
    for tag in given.tags:
        db.execute(
            "INSERT OR IGNORE INTO tag(document, tag) SELECT value, ? FROM carray(?)", (tag, statements.ids(ids))
        )
    if given.collection is not None:
        db.execute("INSERT OR IGNORE INTO collection(name) VALUES(?)", (given.collection,))
        db.execute(
            "INSERT OR IGNORE INTO member(document, collection)"
            " SELECT value, (SELECT id FROM collection WHERE name=?) FROM carray(?)",
            (given.collection, statements.ids(ids)),
        )
