"""The operations that change documents (add, update, delete), and restoring files from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw
import trio

from proto.errors import InvalidParams, OperationError
from proto.ops.documents.change import AddResult
from proto.ops.documents.reading import Document, Scalar, pairs
from services.documents import restore
from services.documents.add import folders
from services.documents.add.add import add_directory
from services.documents.components import OperationGroup
from services.documents.operations import change as ops
from services.documents.operations.adding import DocumentsAdd
from services.documents.store import globs, rows, snapshots
from services.documents.store.databases import Store
from services.documents.store.rows import DocumentAttributes
from services.runtime.handlers import Context, handles

MAX_CONTENT_BYTES = 64 * 1024 * 1024
MAX_NAMED = 1000
MAX_HASHES = 100


class ChangeOperations(OperationGroup):
    @handles(DocumentsAdd)
    async def add(self, params: DocumentsAdd, ctx: Context) -> AddResult:
        adding = self._components.adding
        session = await session_to_add(self._store, params.session, ctx.session)
        tags = tuple(dict.fromkeys(params.tags))
        given = DocumentAttributes(tags, pairs(params.metadata), params.collection, params.mimeType, session)
        if params.content is not None:
            assert params.name is not None
            if len(params.content) > MAX_CONTENT_BYTES:
                raise InvalidParams(
                    f"parameter `content` has more than {MAX_CONTENT_BYTES} characters", field="content"
                )
            return await self._components.added(*await adding.text(params.name, params.content, given))
        assert params.path is not None
        path, is_folder = await trio.to_thread.run_sync(folders.existing, params.path, "path", adding.roots)
        if not is_folder:
            return await self._components.added(*await adding.file(path, given, ctx))
        walk = folders.Walk(
            path, adding.roots, recursive=params.recursive, include=params.include, exclude=params.exclude,
            honour_ignores=not params.no_ignore, takes_generated=adding.takes_generated,
        )  # fmt: skip
        return await self._components.added(*await add_directory(adding, walk, given, params.snapshot_label, ctx))

    @handles(ops.DocumentsUpdate)
    async def update(self, params: ops.DocumentsUpdate, ctx: Context) -> ops.UpdateResult:
        answer = await self._store.answer(lambda db: _update(db, params))
        self._components.hurry()
        return answer

    @handles(ops.DocumentsDelete)
    async def delete(self, params: ops.DocumentsDelete, ctx: Context) -> ops.DeleteResult:
        if params.dry_run:
            return await self._store.read(lambda db: _delete(db, params))
        answer = await self._store.answer(lambda db: _delete(db, params))
        self._components.hurry()
        return answer

    @handles(ops.DocumentsRestore)
    async def restore(self, params: ops.DocumentsRestore, ctx: Context) -> ops.RestoreResult:
        roots = self._components.adding.roots
        target = folders.to_be_written(params.output_directory, "output_directory", roots)

        def progress(done: int, total: int) -> None:
            trio.from_thread.run_sync(ctx.progress, done, total, "files")

        try:
            return await self._store.read(lambda db: restore.restore(db, params, target, roots, progress))
        except OSError as error:
            raise OperationError(f"{target} cannot be written: {error.strerror}", field="output_directory") from None


def _update(db: apsw.Connection, params: ops.DocumentsUpdate) -> ops.UpdateResult:
    if params.hash is not None:
        found = rows.pick(db, hash_=params.hash)
    else:
        field = "path" if params.path is not None else "name"
        wanted = params.path if params.path is not None else params.name
        assert wanted is not None
        found = rows.named(db, wanted, ends=False)
        if not found:
            near = rows.nearest(db, wanted)
            raise OperationError(f"Document not found: no document with {field} {wanted[:200]!r}{near}", field=field)
    values = pairs(params.metadata)
    updated = sum(describe(db, document.id, values, give=params.tags, take=params.remove_tags) for document in found)
    hashes = sorted({document.hash for document in found})[:MAX_HASHES]
    return ops.UpdateResult(matched=len(found), updated=updated, hashes=hashes)


def describe(
    db: apsw.Connection, id_: int, values: Mapping[str, Scalar], *, give: Sequence[str], take: Sequence[str]
) -> bool:
    """Set metadata of a document, add tags (`give`) and remove tags (`take`).  Returns whether anything changed."""
    before = db.total_changes()
    rows.merge(db, id_, values)
    db.executemany("INSERT OR IGNORE INTO tag(document, tag) VALUES(?, ?)", ((id_, one) for one in give))
    db.executemany("DELETE FROM tag WHERE document=? AND tag=?", ((id_, one) for one in take))
    return db.total_changes() > before


def chosen(db: apsw.Connection, names: Sequence[str], hash_: str | None, tags: Sequence[str] = (),
           collection: str | None = None) -> list[Document]:  # fmt: skip
    """Return documents selected by names or globs and by hash, narrowed by tags and a collection.

    A name that a document has is no glob, and brackets alone make none: a deletion that is repeated must not take
    another document. Without names and hash, tags and collection alone select.

    Raises InvalidParams.
    """

    def admitted(clause: str = "", *values: str, hash_: str | None = None) -> list[Document]:
        here = rows.conditions(tags=tags, collection=collection, hash_=hash_)
        if clause:
            here.add(clause, *values)
        return list(rows.documents(db, here))

    if not names and hash_ is None:
        return admitted()
    found: list[Document] = []
    if hash_ is not None:
        rows.pick(db, hash_=hash_)
        found += admitted(hash_=hash_)
    patterns: list[str] = []
    for name in dict.fromkeys(names):
        # Whatever it looks like, what has exactly this path or name is meant.
        is_glob = globs.has_stars(name)
        exact = rows.named(db, name, ends=not is_glob)
        if is_glob and not exact:
            patterns.append(name)
        found += [
            one for one in exact if set(tags) <= set(one.tags) and (collection is None or collection in one.collections)
        ]
    if patterns:
        found += admitted("path_matches(?, document.path)", globs.SEPARATOR.join(patterns))
    by_id = {document.id: document for document in found}
    return [by_id[id_] for id_ in sorted(by_id)]


def _delete(db: apsw.Connection, params: ops.DocumentsDelete) -> ops.DeleteResult:
    if params.snapshot_id is not None:
        snapshot = snapshots.find(db, params.snapshot_id)
        if not params.dry_run:
            db.execute("DELETE FROM snapshot WHERE id=?", (snapshot.id,))
        return ops.DeleteResult(deleted=[], count=0, dry_run=params.dry_run, kept_by_snapshots=0, snapshots=1)
    names = [name for name in (params.name, params.path, *params.names) if name is not None]
    found = chosen(db, names, params.hash, params.tags, params.collection)
    if not found:
        said = ", ".join(repr(name[:100]) for name in names[:5]) or "these conditions"
        raise OperationError(f"Nothing to delete: no document matches {said}")
    query = "SELECT 1 FROM document JOIN held ON held.object = document.object WHERE id=? LIMIT 1"
    kept = sum(db.execute(query, (document.id,)).get is not None for document in found)
    if not params.dry_run:
        db.executemany("DELETE FROM document WHERE id=?", ((document.id,) for document in found))
    return ops.DeleteResult(
        deleted=[ops.Deleted(hash=one.hash, name=one.name, path=one.path) for one in found[:MAX_NAMED]],
        count=len(found), dry_run=params.dry_run, kept_by_snapshots=kept, snapshots=0,
    )  # fmt: skip


CLIENT_PREFIX = "client of "
"""Prefix of the settings that store which client (by its MCP session) started a session."""


def session_of_client(db: apsw.Connection, client: str) -> tuple[str, str] | None:
    """Return id and label of the last open session that this client started."""
    query = (
        "SELECT id, label FROM session WHERE stopped_ns IS NULL"
        " AND EXISTS(SELECT 1 FROM setting WHERE name=? || id AND value=?) ORDER BY number DESC LIMIT 1"
    )
    return db.execute(query, (CLIENT_PREFIX, client)).fetchone()


async def session_to_add(store: Store, wanted: str | None, client: str) -> str | None:
    """Return the id of the named session, or of the client's own.  Raises OperationError if the named one is closed."""
    if wanted is not None:
        return (await store.read(lambda db: open_session(db, wanted, "session")))[0]
    own = await store.read(lambda db: session_of_client(db, client)) if client else None
    return None if own is None else own[0]


def open_session(
    db: apsw.Connection, wanted: str | None, field: str = "session_id", *, client: str = ""
) -> tuple[str, str]:
    """Return id and label of the latest open session that `wanted` names.

    If `wanted` is None, return the client's own session, or else the only open one. Raises OperationError if no session
    is found, or several.
    """
    if wanted is None and client and (own := session_of_client(db, client)) is not None:
        return own
    query = "SELECT id, label FROM session WHERE stopped_ns IS NULL AND (?1 IS NULL OR ?1 IN (id, label))"
    # A label may look like the id of another session, which names that one.
    found: list[tuple[str, str]] = list(db.execute(f"{query} ORDER BY id IS ?1 DESC, number DESC", (wanted,)))
    if not found and wanted is not None:
        raise OperationError(f"session {wanted[:128]!r} was never started or has been stopped", field=field)
    if not found:
        raise OperationError("no session is open; start one with `start`", field=field)
    if wanted is None and len(found) > 1:
        listed = ", ".join(id_ for id_, _ in found[:5]) + ", …" * (len(found) > 5)
        raise OperationError(f"{len(found)} sessions are open ({listed}); give `session_id`", field="session_id")
    return found[0]
