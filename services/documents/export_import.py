"""The operations behind `linckia export` and `import`: rows and contents.

Rows are read in pages ordered by path, so memory is bounded. Importing is idempotent.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import TypeVar

import apsw
import msgspec
import trio

from proto.errors import InvalidParams, OperationError
from services.documents.components import OperationGroup
from services.documents.operations import carry as ops
from services.documents.store import kinds, objects, rows, snapshots, tables
from services.documents.store.compress import DamagedContent
from services.documents.store.objects import Block, PackedContent
from services.documents.store.snapshots import SnapshotEntry
from services.runtime.handlers import Context, handles

PAGE = 1000
T = TypeVar("T")

_DOCUMENTS = f"""
    SELECT json_object('path', path, 'name', name, 'hash', lower(hex(object.hash)), 'mime_type', document.mime,
        'session', session, 'metadata', json(metadata), 'created_ns', created_ns, 'modified_ns', modified_ns,
        'indexed_ns', indexed_ns,
        'tags', json((SELECT json_group_array(tag) FROM tag WHERE document=document.id)),
        'collections', json((SELECT json_group_array(collection.name ORDER BY collection.name) FROM member
            JOIN collection ON collection.id = member.collection WHERE member.document=document.id)))
    FROM document JOIN object ON object.id = document.object WHERE path > ? ORDER BY path LIMIT {PAGE}
"""
_SESSIONS = """
    SELECT json_object('id', id, 'label', label, 'started_ns', started_ns, 'stopped_ns', stopped_ns,
        'watches', json((SELECT json_group_array(json_object('folder', folder, 'interval_ms', interval_ms)) FROM watched
            WHERE watched.session=session.id)))
    FROM session ORDER BY number
"""
_SNAPSHOTS = """
    SELECT json_object('id', id, 'label', label, 'directory', directory, 'collection', collection,
        'created_ns', created_ns, 'files', files, 'bytes', bytes)
    FROM snapshot ORDER BY number
"""


def _read(db: apsw.Connection, kind: type[T], query: str, *values: apsw.SQLiteValue) -> list[T]:
    """Run a query whose rows are JSON, and decode them."""
    return [msgspec.json.decode(row, type=kind) for (row,) in db.execute(query, values)]


class ExportImport(OperationGroup):
    @handles(ops.DocumentsExport)
    async def export(self, params: ops.DocumentsExport, ctx: Context) -> ops.ExportedRows:
        return ops.ExportedRows(
            documents=await self._store.read(lambda db: _read(db, ops.CarriedDocument, _DOCUMENTS, params.after))
        )

    @handles(ops.DocumentsExportWork)
    async def export_work(self, params: ops.DocumentsExportWork, ctx: Context) -> ops.ExportedWork:
        return await self._store.read(
            lambda db: ops.ExportedWork(
                sessions=_read(db, ops.CarriedSession, _SESSIONS), snapshots=_read(db, ops.CarriedSnapshot, _SNAPSHOTS)
            )
        )

    @handles(ops.DocumentsExportFiles)
    async def export_files(self, params: ops.DocumentsExportFiles, ctx: Context) -> ops.ExportedFiles:
        def query(db: apsw.Connection) -> list[ops.CarriedFile]:
            listed = snapshots.entries(db, snapshots.find(db, params.snapshot_id).id)
            some = itertools.islice(listed, params.offset, params.offset + PAGE)
            return [
                ops.CarriedFile(
                    path=one.path, hash=one.hash.hex(), size=one.size, modified_ns=one.modified_ns, mode=one.mode
                )
                for one in some
            ]

        return ops.ExportedFiles(files=await self._store.read(query))

    @handles(ops.DocumentsExportContents)
    async def export_contents(self, params: ops.DocumentsExportContents, ctx: Context) -> ops.ExportedContents:
        def query(db: apsw.Connection) -> ops.ExportedContents:
            contents: list[ops.ExportedContent] = []
            held = 0
            for hash_ in params.hashes:
                contents.append(self._content(db, hash_, params.offset))
                held += len(contents[-1].data)
                if held >= ops.ANSWER_BYTES:
                    break
            return ops.ExportedContents(contents=contents)

        return await self._store.read(query)

    def _content(self, db: apsw.Connection, hash_: str, offset: int) -> ops.ExportedContent:
        if (stored := objects.by_hash(db, bytes.fromhex(hash_))) is None:
            return ops.ExportedContent(problem=f"no content is stored with the hash {hash_}")
        try:
            pieces = objects.stream(db, stored, offset, ops.INLINE_BYTES)
            return ops.ExportedContent(data=b"".join(pieces), size=stored.size)
        except DamagedContent as error:
            return ops.ExportedContent(problem=str(error))

    @handles(ops.DocumentsMissing)
    async def missing(self, params: ops.DocumentsMissing, ctx: Context) -> ops.MissingContents:
        there = await self._store.read(lambda db: objects.stored_ids(db, map(bytes.fromhex, params.hashes)))
        return ops.MissingContents(hashes=[one for one in params.hashes if bytes.fromhex(one) not in there])

    @handles(ops.DocumentsImport)
    async def import_rows(self, params: ops.DocumentsImport, ctx: Context) -> ops.Imported:
        names = {one.hash: (one.path, one.mime_type) for one in reversed(params.documents)}

        def pack() -> list[PackedContent]:
            return [self._packed(data, names) for data in params.contents]

        contents = await trio.to_thread.run_sync(pack)

        def change(db: apsw.Connection) -> int:
            objects.put_many(db, contents)
            before = db.total_changes()
            for session in params.sessions:
                _put_session(db, session)
            for document in params.documents:
                _put_document(db, document)
            if params.snapshot is not None:
                _put_files(db, params.snapshot, params.offset, params.files)
            return db.total_changes() - before

        changed = await self._store.write(change)
        self._components.hurry()
        return ops.Imported(changed=changed)

    def _packed(self, data: bytes, names: dict[str, tuple[str, str | None]]) -> PackedContent:
        digest = hashlib.sha256(data)
        path, mime = names.get(digest.hexdigest(), ("", None))
        if not path or len(data) > ops.INLINE_BYTES:
            raise InvalidParams(
                "parameter `contents`: one does not belong to any of `documents`, or is too long", field="contents"
            )
        nature = kinds.nature(data, path, mime)
        return PackedContent(digest.digest(), len(data), nature, Block(*self._store.codec.pack(data)))


def _put_session(db: apsw.Connection, session: ops.CarriedSession) -> None:
    db.execute(
        "INSERT OR IGNORE INTO session(id, label, started_ns, stopped_ns) VALUES(?, ?, ?, ?)",
        (session.id, session.label, session.started_ns, session.stopped_ns),
    )
    # A session that was stopped here no longer watches folders.
    db.executemany(
        "INSERT OR IGNORE INTO watched(session, folder, interval_ms)"
        " SELECT id, ?, ? FROM session WHERE id=? AND stopped_ns IS NULL",
        ((one.folder, one.interval_ms, session.id) for one in session.watches),
    )


def _put_document(db: apsw.Connection, document: ops.CarriedDocument) -> None:
    object_ = _stored(db, document.hash)
    db.execute(
        "INSERT INTO document(path, name, extension, object, mime, session, created_ns, modified_ns, indexed_ns)"
        " VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT(path) DO UPDATE SET object=?4, mime=?5, session=?6,"
        " created_ns=?7, modified_ns=?8, indexed_ns=?9, stamp='' WHERE indexed_ns < ?9",
        (document.path, document.name, kinds.extension_of(document.name), object_, document.mime_type,
         document.session, document.created_ns, document.modified_ns, document.indexed_ns),
    )  # fmt: skip
    ((id_, stored),) = db.execute("SELECT id, metadata FROM document WHERE path=?", (document.path,))
    before = json.loads(stored)
    after = {**document.metadata, **before}
    if after != before:
        db.execute("UPDATE document SET metadata=? WHERE id=?", (json.dumps(after, ensure_ascii=False), id_))
    db.executemany("INSERT OR IGNORE INTO tag(document, tag) VALUES(?, ?)", ((id_, tag) for tag in document.tags))
    for name in document.collections:
        rows.join(db, name, tables.ids((id_,)))


def _put_files(
    db: apsw.Connection, snapshot: ops.CarriedSnapshot, offset: int, files: Sequence[ops.CarriedFile]
) -> None:
    """Add files to a snapshot, creating it first if necessary."""
    row = db.execute("SELECT number FROM snapshot WHERE id=?", (snapshot.id,)).fetchone()
    listed = [] if row is None else list(snapshots.entries(db, snapshot.id))
    if len(listed) >= offset + len(files) and row is not None:
        return
    if len(listed) != offset:
        raise OperationError(f"snapshot {snapshot.id} has {len(listed)} files, but `offset` is {offset}")
    for one in files:
        object_ = _stored(db, one.hash) if one.hash else 0
        listed.append(SnapshotEntry(one.path, b"", object_, one.size, one.modified_ns, one.mode))
    values = msgspec.structs.asdict(snapshot) | {"listing": snapshots.packed(listed)}
    db.execute(
        f"INSERT INTO snapshot({', '.join(values)}) VALUES({', '.join('?' * len(values))})"
        " ON CONFLICT(id) DO UPDATE SET listing=excluded.listing",
        tuple(values.values()),
    )
    number = db.execute("SELECT number FROM snapshot WHERE id=?", (snapshot.id,)).get
    held = tables.ids(sorted({entry.object for entry in listed[offset:] if entry.object}))
    db.execute("INSERT OR IGNORE INTO held(object, snapshot) SELECT value, ? FROM carray(?)", (number, held))


def _stored(db: apsw.Connection, hash_: str) -> int:
    stored = objects.by_hash(db, bytes.fromhex(hash_))
    if stored is None:
        raise OperationError(f"content {hash_} is not stored; import it first", field="contents")
    return stored.id
