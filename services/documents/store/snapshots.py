"""Snapshots: the files that an `add` of a directory found, so that the directory can be restored.

The listing is one compressed record. A snapshot holds a reference to each content in it, which protects the content
from garbage collection.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence

import apsw
import msgspec

from proto.errors import OperationError
from proto.ops.documents.reading import Snapshot, SnapshotDifference, SnapshotFile, Version
from proto.suggestions import did_you_mean
from services.documents.store import tables
from services.documents.store.rows import instant
from services.shared import zstd


class SnapshotEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of the directory, with its absolute path.  `hash` is empty in a listing whose contents are held."""

    path: str
    hash: bytes
    object: int
    size: int
    modified_ns: int
    mode: int


_decoder = msgspec.msgpack.Decoder(list[SnapshotEntry])


def take(
    db: apsw.Connection, directory: str, label: str | None, collection: str | None, entries: Sequence[SnapshotEntry]
) -> str:
    now_ns = time.time_ns()
    id_ = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_ns // 1_000_000_000))}-{secrets.token_hex(4)}"
    listing = packed(sorted(entries, key=lambda entry: entry.path))
    db.execute(
        "INSERT INTO snapshot(id, label, directory, collection, created_ns, files, bytes, listing)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
        (id_, label or "", directory, collection, now_ns, len(entries), sum(entry.size for entry in entries), listing),
    )
    number = db.last_insert_rowid()
    # Contents deleted during this add are gone; a restore reports that.
    db.execute(
        "INSERT OR IGNORE INTO held(object, snapshot)"
        " SELECT id, ? FROM object WHERE id IN (SELECT value FROM carray(?))",
        (number, tables.ids(sorted({entry.object for entry in entries}))),
    )
    return id_


def packed(entries: Sequence[SnapshotEntry]) -> bytes:
    return zstd.Compressor(3, checksum=True).compress(msgspec.msgpack.encode(entries))


_COLUMNS = "SELECT id, label, directory, collection, created_ns, files, bytes FROM snapshot"


def _snapshot(
    id_: str, label: str, directory: str, collection: str | None, created_ns: int, files: int, size: int
) -> Snapshot:
    return Snapshot(
        id=id_, label=label, directory=directory, collection=collection, created=instant(created_ns), files=files,
        bytes=size,
    )  # fmt: skip


def latest(db: apsw.Connection, limit: int, offset: int) -> list[Snapshot]:
    return [_snapshot(*row) for row in db.execute(f"{_COLUMNS} ORDER BY number DESC LIMIT ? OFFSET ?", (limit, offset))]


def find(db: apsw.Connection, id_: str) -> Snapshot:
    """Return a snapshot by its id, or the latest with that label.  Raises OperationError."""
    for condition in ("id=?", "label=? AND label <> '' ORDER BY number DESC LIMIT 1"):
        row = db.execute(f"{_COLUMNS} WHERE {condition}", (id_,)).fetchone()
        if row is not None:
            return _snapshot(*row)
    labels = (label for (label,) in db.execute("SELECT DISTINCT label FROM snapshot WHERE label <> '' LIMIT 5000"))
    raise OperationError(f"Snapshot not found: {id_}{did_you_mean(id_, labels)}", field="snapshot_id")


def difference(db: apsw.Connection, before: str, after: str, limit: int) -> SnapshotDifference:
    """Compare two snapshots by their files' relative paths.  Raises OperationError."""
    old, new = (_relative(db, find(db, id_)) for id_ in (before, after))
    added = [
        SnapshotFile(path=path, after_bytes=new[path].size, after_hash=_hash(new[path])) for path in new.keys() - old
    ]
    removed = [
        SnapshotFile(path=path, before_bytes=old[path].size, before_hash=_hash(old[path])) for path in old.keys() - new
    ]
    both = old.keys() & new.keys()
    changed = [
        SnapshotFile(
            path=path, before_bytes=old[path].size, after_bytes=new[path].size, before_hash=_hash(old[path]),
            after_hash=_hash(new[path]),
        )
        for path in both
        if old[path].hash != new[path].hash
    ]  # fmt: skip
    lists = [sorted(each, key=lambda file: file.path) for each in (added, removed, changed)]
    cut = [each[:limit] for each in lists]
    return SnapshotDifference(
        added=cut[0], removed=cut[1], changed=cut[2], unchanged=len(both) - len(changed), truncated=cut != lists
    )


def _relative(db: apsw.Connection, snapshot: Snapshot) -> dict[str, SnapshotEntry]:
    base = snapshot.directory.rstrip("/") + "/"
    return {entry.path.removeprefix(base): entry for entry in entries(db, snapshot.id)}


def _hash(entry: SnapshotEntry) -> str:
    return entry.hash.hex()


def versions(db: apsw.Connection, path: str) -> list[Version]:
    """Return the contents that the file had in the snapshots, latest first."""
    found: dict[bytes, tuple[SnapshotEntry, list[str]]] = {}
    listed = list(db.execute("SELECT id, directory FROM snapshot ORDER BY number"))
    for id_, directory in listed:
        if not path.startswith(directory.rstrip("/") + "/"):
            continue
        for entry in entries(db, id_):
            if entry.path == path:
                found.setdefault(entry.hash, (entry, []))[1].append(id_)
    return [
        Version(hash=_hash(entry), size=entry.size, modified=instant(entry.modified_ns), snapshots=ids)
        for entry, ids in reversed(found.values())
    ]


def entry_of(db: apsw.Connection, snapshot: str, path: str) -> SnapshotEntry:
    """Return a file of a snapshot, by its absolute path or by that within the snapshot's directory. Raises
    OperationError."""
    found = find(db, snapshot)
    wanted = {path, f"{found.directory.rstrip('/')}/{path}"}
    entry = next((each for each in entries(db, found.id) if each.path in wanted), None)
    if entry is None:
        raise OperationError(f"the snapshot {found.id} of {found.directory} has no file {path[:1000]!r}", field="path")
    return entry


def entries(db: apsw.Connection, id_: str) -> Iterator[SnapshotEntry]:
    listing = db.execute("SELECT listing FROM snapshot WHERE id=?", (id_,)).get
    listed = _decoder.decode(zstd.decompress(listing))
    query = "SELECT id, hash FROM carray(?) AS wanted JOIN object ON object.id = wanted.value"
    hashes: dict[int, bytes] = dict(db.execute(query, (tables.ids(one.object for one in listed),)))
    for one in listed:
        yield msgspec.structs.replace(one, hash=one.hash or hashes.get(one.object, b""))
