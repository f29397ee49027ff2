"""Snapshots: what one `add` of a directory found there, path by path, to be restored as it was.

The listing is one compressed record; each content in it is held, so that it is not collected while the snapshot is
there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec
import zstandard

from proto.ops.documents.reading import Snapshot
from services.documents.store import statements
from services.documents.store.rows import instant


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file of the directory, with its absolute path; `hash` is empty in a listing whose contents are held."""

    path: str
    hash: bytes
    object: int
    size: int
    modified_ns: int
    mode: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Entry])


def take(
    db: apsw.Connection,
    directory: str,
    label: str | None,
    collection: str | None,
    entries: Sequence[Entry],
    now_ns: int,
) -> str:
    """Write a snapshot; answers its id."""
    id_ = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_ns // 1_000_000_000))}-{secrets.token_hex(4)}"
    listing = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(
        _encoder.encode(sorted(entries, key=lambda entry: entry.path))
    )
    db.execute(
        "INSERT INTO snapshot(id, label, directory, collection, created_ns, files, bytes, listing)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
        (id_, label or "", directory, collection, now_ns, len(entries), sum(entry.size for entry in entries), listing),
    )
    number = db.last_insert_rowid()
    # Contents that were deleted while this add was under way are gone, and the restore will say so.
    db.execute(
        "INSERT OR IGNORE INTO held(object, snapshot)"
        " SELECT id, ? FROM object WHERE id IN (SELECT value FROM carray(?))",
        (number, statements.ids(sorted({entry.object for entry in entries}))),
    )
    return id_


_COLUMNS = "SELECT id, label, directory, collection, created_ns, files, bytes FROM snapshot"


def _snapshot(row: Sequence[Any]) -> Snapshot:
    id_, label, directory, collection, created_ns, files, size = row
    return Snapshot(
        id=str(id_), label=str(label), directory=str(directory), collection=collection, created=instant(created_ns),
        files=int(files), bytes=int(size),
    )  # fmt: skip


def all_of(db: apsw.Connection, limit: int = -1, offset: int = 0) -> list[Snapshot]:
    """The latest first."""
    rows = db.execute(f"{_COLUMNS} ORDER BY number DESC LIMIT ? OFFSET ?", (limit, offset))
    return [_snapshot(row) for row in rows]


def count(db: apsw.Connection) -> int:
    return int(str(db.execute("SELECT count(*) FROM snapshot").fetchall()[0][0]))


def find(db: apsw.Connection, id_: str) -> Snapshot | None:
    """By its id, or else the latest of that label."""
    for condition in ("id=?", "label=? AND label <> '' ORDER BY number DESC LIMIT 1"):
        row = db.execute(f"{_COLUMNS} WHERE {condition}", (id_,)).fetchone()
        if row is not None:
            return _snapshot(row)
    return None


def entries(db: apsw.Connection, id_: str) -> Iterator[Entry]:
    """The files of a snapshot."""
    rows = db.execute("SELECT listing FROM snapshot WHERE id=?", (id_,)).fetchall()
    for (listing,) in rows:
        assert isinstance(listing, bytes)
        listed = _decoder.decode(zstandard.ZstdDecompressor().decompress(listing))
        query = "SELECT id, hash FROM carray(?) AS wanted JOIN object ON object.id = wanted.value"
        hashes = dict(db.execute(query, (statements.ids(one.object for one in listed),)))
        for one in listed:
            hash_ = one.hash or hashes.get(one.object, b"")
            assert isinstance(hash_, bytes)
            yield msgspec.structs.replace(one, hash=hash_)


def remove(db: apsw.Connection, ids: Iterable[str]) -> int:
    """Delete snapshots; answers how many were there."""
    gone = 0
    for id_ in ids:
        db.execute("DELETE FROM snapshot WHERE id=?", (id_,))
        gone += db.changes()
    return gone
