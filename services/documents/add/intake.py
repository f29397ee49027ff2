"""Files on their way into the store: which have changed, what was read of them, and how many are written at once.

A file that has not changed since it was last added (same size, times and inode) is not even opened.  Documents are
written many in one transaction and with few statements; what is known of a path is kept and added to.
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

from linckia.proto.ops.documents.change import AddResult
from linckia.services.documents.add.folders import Walk
from linckia.services.documents.store import kinds, objects, rows, schema
from linckia.services.documents.store.objects import CHUNKED_FROM_BYTES, Content
from linckia.services.documents.store.rows import Given
from linckia.services.documents.store.snapshots import Entry
from linckia.services.runtime.roots import Roots

GROUP_FILES = 1024
GROUP_BYTES = 8 * 1024 * 1024
"""Read at once, and written in one transaction; each thread may hold as much."""
READ_BYTES = 1024 * 1024
MAX_FAILED = 100
_RACY_NS = 20_000_000
"""Time stamps tick with the kernel's timer: shortly after a change, another may go unseen."""


class Raw(msgspec.Struct, frozen=True, gc=False):
    path: str
    stamp: str
    modified_ns: int
    mode: int
    hash: bytes
    data: bytes


class Taken(msgspec.Struct, frozen=True, gc=False):
    """A document, such as a file that was read, ready to be stored."""

    path: str
    stamp: str
    modified_ns: int
    mode: int
    content: Content
    name: str | None = None
    """Of the document; None: what its path ends with."""


@dataclass(slots=True)
class Progress:
    """What an `add` has done so far: documents by what has become of them, bytes, and the contents that are new."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    size: int = 0
    stored: int = 0
    objects: list[int] = field(default_factory=list)
    listing: list[Entry] = field(default_factory=list)
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


Held = tuple[str, int, int]
"""What the store knows of a path: its stamp, document and content."""
Same = tuple[int, Entry]
"""A document whose file is stored as it is already."""


def stamp_of(status: os.stat_result, now_ns: int) -> str:
    """What tells this version of a file from a later one; empty where a later one might look the same."""
    if now_ns - max(status.st_ctime_ns, status.st_mtime_ns) < _RACY_NS:
        return ""
    told = b"%d:%d:%d:%d" % (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return binascii.b2a_base64(hashlib.blake2b(told, digest_size=12).digest(), newline=False).decode()


def known(db: apsw.Connection, directory: str) -> dict[str, Held]:
    """What the store knows of each path below a directory."""
    base = directory.rstrip("/")
    query = "SELECT path, stamp, id, object FROM document WHERE path>=? AND path<? AND stamp <> ''"
    return {path: rest for path, *rest in db.execute(query, (base + "/", base + "0"))}


def groups(walk: Walk, held: Mapping[str, Held]) -> Iterator[tuple[list[Same], list[str]]]:
    """The files of a walk: some that are the same, and the names of some to be read; blocks while it looks at them."""
    base = walk.directory.rstrip("/") + "/"
    same: list[Same] = []
    names: list[str] = []
    size = 0
    now_ns = time.time_ns()
    for name, status in walk.files():
        stamp, document, object_ = held.get(base + name, ("", 0, 0))
        if stamp and stamp == stamp_of(status, now_ns):
            entry = Entry(base + name, b"", object_, status.st_size, status.st_mtime_ns, status.st_mode)
            same.append((document, entry))
        else:
            names.append(name)
            size += status.st_size
        if len(names) >= GROUP_FILES or size >= GROUP_BYTES or len(same) >= GROUP_FILES:
            yield same, names
            same, names, size, now_ns = [], [], 0, time.time_ns()
    yield same, names


def read(path: str, roots: Roots) -> Raw | None:
    """A file, unless it is large; blocks.  Raises OSError, OutsideRoots."""
    now_ns = time.time_ns()
    descriptor, status = roots.open(path)
    with open(descriptor, "rb", buffering=0) as file:
        if status.st_size >= CHUNKED_FROM_BYTES:
            return None
        # One byte more than there should be: a file that has grown meanwhile is seen to.
        data = file.read(status.st_size + 1) or b""
        while len(data) != status.st_size and (more := file.read(READ_BYTES)):
            data += more
            if len(data) >= CHUNKED_FROM_BYTES:
                return None
    stamp = stamp_of(status, now_ns) if len(data) == status.st_size else ""
    return Raw(path, stamp, status.st_mtime_ns, status.st_mode, hashlib.sha256(data).digest(), data)


def write(
    db: apsw.Connection, taken: Sequence[Taken], same: Sequence[Same], given: Given, progress: Progress
) -> list[str]:
    """Write documents, inside the caller's transaction; answers paths that have to be read (once more) by
    themselves."""
    before = db.total_changes()
    again: list[str] = []
    ids = _write_taken(db, taken, given, progress, again) if taken else []
    # Files that nothing was read of, as long as the store still has them so.
    query = "SELECT id, object FROM carray(?) AS one JOIN document ON id = one.value"
    now = dict(db.execute(query, (schema.ids(id_ for id_, _ in same),))) if same else {}
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
    db: apsw.Connection, taken: Sequence[Taken], given: Given, progress: Progress, again: list[str]
) -> list[int]:
    """Have each path hold its content; answers the documents."""
    objects_, new = objects.put_many(db, [one.content for one in taken])
    query = "SELECT path, id, object, stamp, indexed_ns FROM carray(?) AS one JOIN document ON path = one.value"
    held = {row[0]: row[1:] for row in db.execute(query, (apsw.carray(tuple(one.path for one in taken)),))}
    next_id = schema.next_id(db, "document") if len(held) < len(taken) else 0
    now_ns = time.time_ns()
    metadata = json.dumps(dict(given.metadata), ensure_ascii=False)
    arrived: list[tuple[apsw.SQLiteValue, ...]] = []
    changed: list[tuple[int, int, int, str, int]] = []
    ids: list[int] = []
    unseen = set(new)
    for one, object_ in zip(taken, objects_, strict=True):
        if object_ is None:
            # What has gone from the store while it was thought to be there.
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
        progress.listing.append(Entry(one.path, b"", object_, one.content.size, one.modified_ns, one.mode))
    progress.objects += new
    schema.insert(
        db,
        "document(id, path, name, extension, object, mime, session, metadata, created_ns, modified_ns, indexed_ns,"
        " stamp)",
        arrived,
    )
    db.executemany("UPDATE document SET object=?, modified_ns=?, indexed_ns=?, stamp=? WHERE id=?", changed)
    return ids


def _describe(db: apsw.Connection, ids: Sequence[int], given: Given) -> None:
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
        rows.join(db, given.collection, schema.ids(ids))
