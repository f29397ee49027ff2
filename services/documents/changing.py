"""Changing the tags and metadata of documents, deleting them, and the sessions that they are added and pinned in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import apsw

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.change import Deleted, DeleteResult, DocumentsDelete, DocumentsUpdate, UpdateResult
from proto.ops.documents.reading import Document, pairs
from proto.ops.documents.sessions import PINNED
from services.documents.store import globs, rows, snapshots

MAX_NAMED = 1000
MAX_HASHES = 100


def update(db: apsw.Connection, params: DocumentsUpdate) -> UpdateResult:
    """Raises InvalidParams, OperationError."""
    values = pairs(params.metadata)
    if params.hash is not None:
        found = rows.pick(db, hash_=params.hash, name=None, path=None)
    else:
        wanted = params.path if params.path is not None else params.name
        assert wanted is not None
        found = rows.named(db, wanted, ends=False)
        if not found:
            field = "path" if params.path is not None else "name"
            raise OperationError(f"Document not found: no document with {field} {wanted[:200]!r}", field=field)
    updated = 0
    for document in found:
        (held,) = db.execute("SELECT metadata FROM document WHERE id=?", (document.id,)).fetchall()[0]
        before = db.total_changes()
        rows.merge(db, document.id, str(held), values)
        tag(db, document.id, give=params.tags, take=params.remove_tags)
        updated += db.total_changes() > before
    return UpdateResult(
        matched=len(found), updated=updated, hashes=sorted({document.hash for document in found})[:MAX_HASHES]
    )


def tag(db: apsw.Connection, id_: int, *, give: Sequence[str] = (), take: Sequence[str] = ()) -> None:
    """Give and take tags of a document."""
    db.executemany("INSERT OR IGNORE INTO tag(document, tag) VALUES(?, ?)", ((id_, one) for one in give))
    db.executemany("DELETE FROM tag WHERE document=? AND tag=?", ((id_, one) for one in take))


def chosen(
    db: apsw.Connection,
    names: Sequence[str],
    hash_: str | None,
    tags: Sequence[str] = (),
    collection: str | None = None,
) -> list[Document]:
    """Documents by names or globs and by hash; tags and a collection narrow that, or choose where nothing else does.

    Raises InvalidParams.
    """
    if not names and hash_ is None:
        return list(rows.documents(db, rows.conditions(tags=tags, collection=collection)))
    found: dict[int, Document] = {}
    if hash_ is not None:
        rows.pick(db, hash_=hash_, name=None, path=None)
        here = rows.conditions(tags=tags, collection=collection, hash_=hash_)
        found.update((document.id, document) for document in rows.documents(db, here))
    if names:
        plain = frozenset(name for name in names if not globs.is_glob(name))
        for name in plain:
            here = rows.conditions(tags=tags, collection=collection)
            here.add("(document.path=? OR document.name=?)", name, name)
            exact = list(rows.documents(db, here)) or [
                document
                for document in rows.named(db, name)
                if set(tags) <= set(document.tags) and (collection is None or collection in document.collections)
            ]
            found.update((document.id, document) for document in exact)
        if len(plain) < len(names):
            here = rows.conditions(tags=tags, collection=collection)
            here.add_globs([name for name in names if globs.is_glob(name)])
            found.update((document.id, document) for document in rows.documents(db, here))
            # A name may look like a glob and be none.
            for name in names:
                found.update((document.id, document) for document in rows.named(db, name, ends=False))
    return [found[id_] for id_ in sorted(found)]


def delete(db: apsw.Connection, params: DocumentsDelete) -> DeleteResult:
    """Raises InvalidParams; OperationError where nothing matches."""
    names = [name for name in (params.name, params.path, *params.names) if name is not None]
    if params.snapshot_id is not None:
        return _delete_snapshot(db, params.snapshot_id, dry_run=params.dry_run)
    found = chosen(db, names, params.hash, params.tags, params.collection)
    if not found:
        said = ", ".join(repr(name[:100]) for name in names[:5]) or "these conditions"
        raise OperationError(f"Nothing to delete: no document matches {said}")
    kept = sum(
        bool(
            db.execute(
                "SELECT EXISTS(SELECT 1 FROM held WHERE object=(SELECT object FROM document WHERE id=?))",
                (document.id,),
            ).fetchall()[0][0]
        )
        for document in found
    )
    if not params.dry_run:
        db.executemany("DELETE FROM document WHERE id=?", ((document.id,) for document in found))
    return DeleteResult(
        deleted=[Deleted(hash=one.hash, name=one.name, path=one.path) for one in found[:MAX_NAMED]],
        count=len(found),
        dry_run=params.dry_run,
        kept_by_snapshots=kept,
        snapshots=0,
    )


def _delete_snapshot(db: apsw.Connection, id_: str, *, dry_run: bool) -> DeleteResult:
    snapshot = snapshots.find(db, id_)
    if snapshot is None:
        raise OperationError(f"Snapshot not found: {id_}", field="snapshot_id")
    if not dry_run:
        snapshots.remove(db, [snapshot.id])
    return DeleteResult(deleted=[], count=0, dry_run=dry_run, kept_by_snapshots=0, snapshots=1)


def start_session(db: apsw.Connection, label: str | None) -> tuple[str, str, int]:
    """Begin a session; answers its id, its label and when."""
    now_ns = time.time_ns()
    id_ = f"session-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_ns // 1_000_000_000))}-{secrets.token_hex(4)}"
    db.execute("INSERT INTO session(id, label, started_ns) VALUES(?, ?, ?)", (id_, label or id_, now_ns))
    return id_, label or id_, now_ns


def session(db: apsw.Connection, wanted: str, *, field: str = "session_id") -> tuple[str, str]:
    """Id and label of the latest session that is not stopped, of those that `wanted` names.  Raises OperationError."""
    row = db.execute(
        "SELECT id, label FROM session WHERE stopped_ns IS NULL AND (id=?1 OR label=?1) ORDER BY number DESC LIMIT 1",
        (wanted,),
    ).fetchone()
    if row is None:
        raise OperationError(f"no session {wanted[:128]!r} has been started, or it was stopped", field=field)
    return str(row[0]), str(row[1])


def only_session(db: apsw.Connection, wanted: str | None) -> tuple[str, str]:
    """The same, or the only one that there is: with several, whose is meant cannot be known.  Raises OperationError."""
    if wanted is not None:
        return session(db, wanted)
    open_ = db.execute("SELECT id, label FROM session WHERE stopped_ns IS NULL ORDER BY number DESC").fetchall()
    if not open_:
        raise OperationError("no session has been started; `start` begins one", field="session_id")
    if len(open_) > 1:
        listed = ", ".join(str(id_) for id_, _ in open_[:5])
        raise OperationError(
            f"{len(open_)} sessions are open ({listed}{', …' if len(open_) > 5 else ''}): say which by `session_id`",
            field="session_id",
        )
    return str(open_[0][0]), str(open_[0][1])


def stop_session(db: apsw.Connection, wanted: str | None) -> tuple[str, str, int]:
    """End a session; answers its id, its label and how many documents were added in it.  Raises OperationError."""
    id_, label = only_session(db, wanted)
    db.execute("UPDATE session SET stopped_ns=? WHERE id=?", (time.time_ns(), id_))
    db.execute("DELETE FROM watched WHERE session=?", (id_,))
    (count,) = db.execute("SELECT count(*) FROM document WHERE session=?", (id_,)).fetchall()[0]
    assert isinstance(count, int)
    return id_, label, count


def pin(db: apsw.Connection, names: Sequence[str], hash_: str | None, *, pinned: bool) -> list[Document]:
    """Give or take the tag; answers the documents.  Raises InvalidParams; OperationError where nothing matches."""
    if not names and hash_ is None:
        raise InvalidParams("missing parameter: give `hash`, `path` (a path or a glob) or `paths`", field="path")
    found = chosen(db, names, hash_)
    if not found:
        raise OperationError(f"Document not found: nothing matches {', '.join(map(repr, names[:5]))}", field="path")
    for document in found:
        tag(db, document.id, give=[PINNED] if pinned else (), take=() if pinned else [PINNED])
    return found
