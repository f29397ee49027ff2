"""What `linckia export` and `import` ask for: rows as they are, contents of whatever holds them.

Rows are read in pages by path, so that memory is bounded. What is imported again changes nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence

import apsw
import msgspec
import trio
import zstandard

from proto.errors import InvalidParams, OperationError
from proto.ops.documents import carry as ops
from services.documents.parts import Parts
from services.documents.store import kinds, objects, schema, snapshots
from services.documents.store.compress import DamagedContent
from services.documents.store.objects import Block, Content
from services.documents.store.snapshots import Entry
from services.runtime.handlers import Context, handles

PAGE = 1000

_ROWS = (
    "SELECT path, name, lower(hex(object.hash)), document.mime, session,"
    " (SELECT json_group_array(tag) FROM tag WHERE document=document.id), metadata,"
    " (SELECT json_group_array(name) FROM (SELECT collection.name FROM member JOIN collection"
    "   ON collection.id = member.collection WHERE member.document=document.id ORDER BY 1)),"
    " created_ns, modified_ns, indexed_ns FROM document JOIN object ON object.id = document.object"
)


class Carrying:
    """The handlers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store

    @handles(ops.DocumentsExport)
    async def export(self, params: ops.DocumentsExport, ctx: Context) -> ops.ExportedRows:
        query = f"{_ROWS} WHERE path > ? ORDER BY path LIMIT {PAGE}"
        return ops.ExportedRows(
            documents=await self._store.read(lambda db: [_document(*row) for row in db.execute(query, (params.after,))])
        )

    @handles(ops.DocumentsExportWork)
    async def export_work(self, params: ops.DocumentsExportWork, ctx: Context) -> ops.ExportedWork:
        return await self._store.read(_work)

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
            pieces = objects.stream(db, self._parts.codec, stored, offset, ops.INLINE_BYTES)
            return ops.ExportedContent(data=b"".join(pieces), size=stored.size)
        except DamagedContent as error:
            return ops.ExportedContent(problem=str(error))

    @handles(ops.DocumentsMissing)
    async def missing(self, params: ops.DocumentsMissing, ctx: Context) -> ops.MissingContents:
        there = await self._store.read(lambda db: objects.there(db, map(bytes.fromhex, params.hashes)))
        return ops.MissingContents(hashes=[one for one in params.hashes if bytes.fromhex(one) not in there])

    @handles(ops.DocumentsImport)
    async def import_rows(self, params: ops.DocumentsImport, ctx: Context) -> ops.Imported:
        names = {one.hash: (one.path, one.mime_type) for one in reversed(params.documents)}

        def pack() -> list[Content]:
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
        self._parts.hurry()
        return ops.Imported(changed=changed)

    def _packed(self, data: bytes, names: dict[str, tuple[str, str | None]]) -> Content:
        digest = hashlib.sha256(data)
        path, mime = names.get(digest.hexdigest(), ("", None))
        if not path or len(data) > ops.INLINE_BYTES:
            raise InvalidParams(
                "parameter `contents`: one is of none of these documents, or too long", field="contents"
            )
        nature = kinds.nature(data[: kinds.SNIFF_BYTES], path, mime)
        return Content(digest.digest(), len(data), nature, Block(*self._parts.codec.pack(data)))


def _document(path: str, name: str, hash_: str, mime: str | None, session: str | None, tags: str, metadata: str,
              collections: str, created_ns: int, modified_ns: int, indexed_ns: int) -> ops.CarriedDocument:  # fmt: skip
    return ops.CarriedDocument(
        path=path, name=name, hash=hash_, mime_type=mime, session=session, tags=json.loads(tags),
        metadata=json.loads(metadata), collections=json.loads(collections), created_ns=created_ns,
        modified_ns=modified_ns, indexed_ns=indexed_ns,
    )  # fmt: skip


def _work(db: apsw.Connection) -> ops.ExportedWork:
    watched: dict[str, list[ops.CarriedFolder]] = {}
    for session, folder, interval_ms in db.execute("SELECT session, folder, interval_ms FROM watched ORDER BY 1, 2"):
        watched.setdefault(session, []).append(ops.CarriedFolder(folder=folder, interval_ms=interval_ms))
    sessions = [
        ops.CarriedSession(
            id=id_, label=label, started_ns=started, stopped_ns=stopped, watches=watched.get(id_, [])
        )
        for id_, label, started, stopped in db.execute(
            "SELECT id, label, started_ns, stopped_ns FROM session ORDER BY number"
        )
    ]  # fmt: skip
    names = ops.CarriedSnapshot.__struct_fields__
    rows = db.execute(f"SELECT {', '.join(names)} FROM snapshot ORDER BY number")
    taken = [ops.CarriedSnapshot(**dict(zip(names, row, strict=True))) for row in rows]
    return ops.ExportedWork(sessions=sessions, snapshots=taken)


def _put_session(db: apsw.Connection, session: ops.CarriedSession) -> None:
    db.execute(
        "INSERT OR IGNORE INTO session(id, label, started_ns, stopped_ns) VALUES(?, ?, ?, ?)",
        (session.id, session.label, session.started_ns, session.stopped_ns),
    )
    # One that was stopped here watches no more.
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
    before = json.loads(str(stored))
    after = {**document.metadata, **before}
    if after != before:
        db.execute("UPDATE document SET metadata=? WHERE id=?", (json.dumps(after, ensure_ascii=False), id_))
    db.executemany("INSERT OR IGNORE INTO tag(document, tag) VALUES(?, ?)", ((id_, tag) for tag in document.tags))
    for name in document.collections:
        db.execute("INSERT OR IGNORE INTO collection(name) VALUES(?)", (name,))
        db.execute(
            "INSERT OR IGNORE INTO member(document, collection) SELECT ?, id FROM collection WHERE name=?", (id_, name)
        )


def _put_files(
    db: apsw.Connection, snapshot: ops.CarriedSnapshot, offset: int, files: Sequence[ops.CarriedFile]
) -> None:
    """Add files to a snapshot, which is made with the first of them."""
    row = db.execute("SELECT number FROM snapshot WHERE id=?", (snapshot.id,)).fetchone()
    listed = [] if row is None else list(snapshots.entries(db, snapshot.id))
    if len(listed) >= offset + len(files) and row is not None:
        return
    if len(listed) != offset:
        raise OperationError(f"snapshot {snapshot.id} has {len(listed)} files, and these begin at {offset}")
    for one in files:
        object_ = _stored(db, one.hash) if one.hash else 0
        listed.append(Entry(one.path, b"", object_, one.size, one.modified_ns, one.mode))
    listing = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(msgspec.msgpack.encode(listed))
    values = msgspec.structs.asdict(snapshot) | {"listing": listing}
    db.execute(
        f"INSERT INTO snapshot({', '.join(values)}) VALUES({', '.join('?' * len(values))})"
        " ON CONFLICT(id) DO UPDATE SET listing=excluded.listing",
        tuple(values.values()),
    )
    number = db.execute("SELECT number FROM snapshot WHERE id=?", (snapshot.id,)).get
    held = schema.ids(sorted({entry.object for entry in listed[offset:] if entry.object}))
    db.execute("INSERT OR IGNORE INTO held(object, snapshot) SELECT value, ? FROM carray(?)", (number, held))


def _stored(db: apsw.Connection, hash_: str) -> int:
    stored = objects.by_hash(db, bytes.fromhex(hash_))
    if stored is None:
        raise OperationError(f"the content {hash_} is not stored: import it first", field="contents")
    return stored.id
