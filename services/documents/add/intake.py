"""The intake of files: detect changes, read files in groups and write each group in one transaction.

A file that has not changed since it was last added (same size, times and inode) is not opened. Many documents are
written in one transaction with few statements. Metadata and tags of a known path are kept and extended.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import apsw
import msgspec

from proto.ops.documents.change import AddResult
from services.documents.add.folders import Walk
from services.documents.store import kinds, objects, rows, tables
from services.documents.store.objects import CHUNKED_FROM_BYTES, PackedContent
from services.documents.store.rows import DocumentAttributes
from services.documents.store.snapshots import SnapshotEntry
from services.runtime.roots import Roots

GROUP_FILES = 1024
GROUP_BYTES = 8 * 1024 * 1024
"""Size of a group, which is read together and written in one transaction.  Each thread may hold one group."""
READ_BYTES = 1024 * 1024
MAX_FAILED = 100
_RACY_NS = 20_000_000
"""File times have the resolution of the kernel's timer, so a second change within this time may go unnoticed."""


class RawFile(msgspec.Struct, frozen=True, gc=False):
    path: str
    stamp: str
    modified_ns: int
    mode: int
    hash: bytes
    data: bytes


class ReadDocument(msgspec.Struct, frozen=True, gc=False):
    """A document, such as a file, that has been read and is ready to be stored."""

    path: str
    stamp: str
    modified_ns: int
    mode: int
    content: PackedContent
    name: str | None = None
    """Name of the document; if None, the last part of the path."""


@dataclass(slots=True)
class Progress:
    """What an `add` has done so far: counts of documents and bytes, and the new contents."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    size: int = 0
    stored: int = 0
    objects: list[int] = field(default_factory=list)
    listing: list[SnapshotEntry] = field(default_factory=list)
    changed: bool = False
    """Whether any row was written, so that there is background work to do."""
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


StoredState = tuple[str, int, int]
"""The stored state of a path: stamp, document id and content id."""
Unchanged = tuple[int, SnapshotEntry]
"""A document id whose file is unchanged, with its snapshot entry."""


def stamp_of(status: os.stat_result, now_ns: int) -> str:
    """Return a stamp that identifies this version of a file; empty if a later version might have the same."""
    if now_ns - max(status.st_ctime_ns, status.st_mtime_ns) < _RACY_NS:
        return ""
    told = b"%d:%d:%d:%d" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return binascii.b2a_base64(hashlib.blake2b(told, digest_size=12).digest(), newline=False).decode()


def known(db: apsw.Connection, directory: str) -> dict[str, StoredState]:
    """Return the stored state of each path below a directory."""
    base = directory.rstrip("/")
    query = "SELECT path, stamp, id, object FROM document WHERE path>=? AND path<? AND stamp <> ''"
    return {path: rest for path, *rest in db.execute(query, (base + "/", base + "0"))}


def groups(walk: Walk, held: Mapping[str, StoredState]) -> Iterator[tuple[list[Unchanged], list[str]]]:
    """Yield the files of a walk in groups: unchanged files, and the names of files to read.  Blocks."""
    base = walk.directory.rstrip("/") + "/"
    same: list[Unchanged] = []
    names: list[str] = []
    size = 0
    now_ns = time.time_ns()
    for name, status in walk.files():
        stamp, document, object_ = held.get(base + name, ("", 0, 0))
        if stamp and stamp == stamp_of(status, now_ns):
            entry = SnapshotEntry(base + name, b"", object_, status.st_size, status.st_mtime_ns, status.st_mode)
            same.append((document, entry))
        else:
            names.append(name)
            size += status.st_size
        if len(names) >= GROUP_FILES or size >= GROUP_BYTES or len(same) >= GROUP_FILES:
            yield same, names
            same, names, size, now_ns = [], [], 0, time.time_ns()
    yield same, names


def read(path: str, roots: Roots) -> RawFile | None:
    """Read a file; None if it is large.  Blocks.  Raises OSError, OutsideRoots."""
    now_ns = time.time_ns()
    descriptor, status = roots.open(path)
    with open(descriptor, "rb", buffering=0) as file:
        if status.st_size >= CHUNKED_FROM_BYTES:
            return None
        # Ask for one byte more than expected, to notice that the file has grown.
        data = file.read(status.st_size + 1) or b""
        while len(data) != status.st_size and (more := file.read(READ_BYTES)):
            data += more
            if len(data) >= CHUNKED_FROM_BYTES:
                return None
    stamp = stamp_of(status, now_ns) if len(data) == status.st_size else ""
    return RawFile(path, stamp, status.st_mtime_ns, status.st_mode, hashlib.sha256(data).digest(), data)


def write(
    db: apsw.Connection,
    taken: Sequence[ReadDocument],
    same: Sequence[Unchanged],
    given: DocumentAttributes,
    progress: Progress,
) -> list[str]:
    """Write documents inside the caller's transaction.  Returns paths that have to be read again individually."""
    before = db.total_changes()
    again: list[str] = []
    ids = _write_taken(db, taken, given, progress, again) if taken else []
    # Unchanged files were not read, so check that the store still has them.
    query = "SELECT id, object FROM carray(?) AS one JOIN document ON id = one.value"
    now = dict(db.execute(query, (tables.ids(id_ for id_, _ in same),))) if same else {}
    for id_, entry in same:
        if now.get(id_) != entry.object:
            # Deleted or replaced while the directory was being looked at.
            again.append(entry.path)
            continue
        ids.append(id_)
        progress.unchanged += 1
        progress.size += entry.size
        progress.listing.append(entry)
        rows.merge(db, id_, given.metadata)
    _describe(db, ids, given)
    progress.changed |= db.total_changes() > before
    return again


def _write_taken(
    db: apsw.Connection, taken: Sequence[ReadDocument], given: DocumentAttributes, progress: Progress, again: list[str]
) -> list[int]:
    """Store the documents and their contents.  Returns the document ids."""
    objects_, new = objects.put_many(db, [one.content for one in taken])
    query = "SELECT path, id, object, stamp, indexed_ns FROM carray(?) AS one JOIN document ON path = one.value"
    held = {row[0]: row[1:] for row in db.execute(query, (apsw.carray(tuple(one.path for one in taken)),))}
    next_id = tables.next_id(db, "document") if len(held) < len(taken) else 0
    now_ns = time.time_ns()
    metadata = json.dumps(dict(given.metadata), ensure_ascii=False)
    arrived: list[tuple[apsw.SQLiteValue, ...]] = []
    changed: list[tuple[int, int, int, str, int]] = []
    ids: list[int] = []
    unseen = set(new)
    for one, object_ in zip(taken, objects_, strict=True):
        if object_ is None:
            # The content was expected in the store but has been removed meanwhile.
            again.append(one.path)
            continue
        if object_ in unseen:
            unseen.remove(object_)
            progress.stored += one.content.size
        progress.size += one.content.size
        id_, before, stamp, indexed_ns = held.get(one.path, (next_id, None, "", now_ns))
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
            if (before, stamp) != (object_, one.stamp):
                since_ns = indexed_ns if before == object_ else now_ns
                changed.append((object_, one.modified_ns, since_ns, one.stamp, id_))
            rows.merge(db, id_, given.metadata)
        ids.append(id_)
        progress.listing.append(SnapshotEntry(one.path, b"", object_, one.content.size, one.modified_ns, one.mode))
    progress.objects += new
    tables.insert(
        db,
        "document(id, path, name, extension, object, mime, session, metadata, created_ns, modified_ns, indexed_ns,"
        " stamp)",
        arrived,
    )
    db.executemany("UPDATE document SET object=?, modified_ns=?, indexed_ns=?, stamp=? WHERE id=?", changed)
    return ids


def _describe(db: apsw.Connection, ids: Sequence[int], given: DocumentAttributes) -> None:
    if not ids:
        return
    if given.mime is not None or given.session is not None:
        db.execute(
            "UPDATE document SET mime=coalesce(?1, mime), session=coalesce(?2, session)"
            " WHERE id IN (SELECT value FROM carray(?3))"
            " AND (mime IS NOT coalesce(?1, mime) OR session IS NOT coalesce(?2, session))",
            (given.mime, given.session, tables.ids(ids)),
        )
    for tag in given.tags:
        db.execute("INSERT OR IGNORE INTO tag(document, tag) SELECT value, ? FROM carray(?)", (tag, tables.ids(ids)))
    if given.collection is not None:
        rows.join(db, given.collection, tables.ids(ids))
