"""Contents in the packs: written once, read back with their checksum verified, collected when nothing holds them.

Functions on a connection, inside the caller's transaction.  A small content is one block; a large one is the chunks
that `Incoming` has cut, each of which other contents may share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import apsw

from services.documents.compress import Codec, Damaged
from services.documents.kinds import Nature

CHUNKED_FROM_BYTES = 4 * 1024 * 1024
"""Below this, a content is compressed and stored whole."""


@dataclass(frozen=True, slots=True)
class Block:
    """A packed content, or None for `data` where the content is thought to be there already."""

    dictionary: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Content:
    """A content ready to be stored: either a block, or parts (offset, number of the chunk) of a large one."""

    hash: bytes
    size: int
    nature: Nature
    block: Block | None = None
    parts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """A content as its row says."""

    id: int
    hash: bytes
    size: int
    chunked: bool
    mime: str
    is_text: bool
    text_state: int


class Vanished(Exception):
    """The content was thought to be there, and is not any more: it has to be read once more."""


_COLUMNS = "object.id, object.hash, object.size, object.chunked, object.mime, object.is_text, object.text_state"


def _stored(row: Sequence[object]) -> Stored:
    id_, hash_, size, chunked, mime, is_text, text_state = row
    assert isinstance(id_, int)
    assert isinstance(hash_, bytes)
    assert isinstance(size, int)
    assert isinstance(text_state, int)
    return Stored(id_, hash_, size, bool(chunked), str(mime), bool(is_text), text_state)


def by_hash(db: apsw.Connection, hash_: bytes) -> Stored | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM object WHERE hash=?", (hash_,)).fetchone()
    return None if row is None else _stored(row)


def by_id(db: apsw.Connection, id_: int) -> Stored | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM object WHERE id=?", (id_,)).fetchone()
    return None if row is None else _stored(row)


def there(db: apsw.Connection, hashes: Sequence[bytes]) -> set[bytes]:
    """Those of the contents that are stored."""
    query = "SELECT hash FROM object WHERE hash=?"
    return {hash_ for hash_ in hashes if db.execute(query, (hash_,)).fetchone() is not None}


def put(db: apsw.Connection, content: Content) -> tuple[int, bool]:
    """Store a content; answers its id, and whether it is new.  Raises Vanished."""
    row = db.execute("SELECT id FROM object WHERE hash=?", (content.hash,)).fetchone()
    if row is not None:
        assert isinstance(row[0], int)
        return row[0], False
    if content.block is not None and content.block.data is None:
        raise Vanished
    nature = content.nature
    db.execute(
        "INSERT INTO object(hash, size, chunked, mime, is_text, text_state) VALUES(?, ?, ?, ?, ?, ?)",
        (content.hash, content.size, content.block is None, nature.mime, nature.is_text, nature.text_state),
    )
    id_ = db.last_insert_rowid()
    if content.block is not None:
        data = content.block.data
        assert data is not None
        db.execute(
            "INSERT INTO block(object, stored, dictionary, data) VALUES(?, ?, ?, ?)",
            (id_, len(data), content.block.dictionary, data),
        )
    else:
        db.executemany(
            "INSERT INTO part(object, position, chunk) VALUES(?, ?, ?)",
            ((id_, position, chunk) for position, chunk in content.parts),
        )
    return id_, True


def put_chunk(db: apsw.Connection, hash_: bytes, size: int, data: bytes) -> int:
    """Store a chunk, unless it is there; answers its number."""
    row = db.execute("SELECT id FROM chunk WHERE hash=?", (hash_,)).fetchone()
    if row is None:
        db.execute("INSERT INTO chunk(hash, size, stored, data) VALUES(?, ?, ?, ?)", (hash_, size, len(data), data))
        return db.last_insert_rowid()
    assert isinstance(row[0], int)
    return row[0]


def read(db: apsw.Connection, codec: Codec, stored: Stored) -> bytes:
    """All bytes of a content.  Raises Damaged."""
    data = b"".join(stream(db, codec, stored))
    if stored.chunked and hashlib.sha256(data).digest() != stored.hash:
        raise Damaged(f"content {stored.hash.hex()} is not what was stored")
    return data


def stream(
    db: apsw.Connection, codec: Codec, stored: Stored, offset: int = 0, length: int | None = None
) -> Iterator[bytes]:
    """The bytes of a content from `offset`, in pieces of 4 MiB at most, each verified.  Raises Damaged."""
    end = stored.size if length is None else min(stored.size, offset + length)
    if not stored.chunked:
        row = db.execute("SELECT dictionary, data FROM block WHERE object=?", (stored.id,)).fetchone()
        if row is None:
            raise Damaged(f"content {stored.hash.hex()} has lost its block")
        data = _unpacked(codec, row, stored.size, stored.hash, "content")
        if offset < end:
            yield data if (offset, end) == (0, stored.size) else data[offset:end]
        return
    (first,) = db.execute(
        "SELECT coalesce(max(position), 0) FROM part WHERE object=? AND position<=?", (stored.id, offset)
    ).fetchall()[0]
    reached: int = offset
    rows = db.execute(
        "SELECT position, chunk.hash, size, data FROM part LEFT JOIN chunk ON chunk.id = part.chunk"
        " WHERE object=? AND position >= ? AND position < ? ORDER BY position",
        (stored.id, first, end),
    )
    for position, hash_, size, data in rows:
        assert isinstance(position, int)
        if data is None or position > reached:
            raise Damaged(f"content {stored.hash.hex()} has lost a chunk, at byte {reached}")
        assert isinstance(size, int)
        assert isinstance(hash_, bytes)
        chunk = _unpacked(codec, (0, data), size, hash_, "chunk")
        yield chunk[max(0, offset - position) : end - position]
        reached = position + size
    if reached < end:
        raise Damaged(f"content {stored.hash.hex()} ends at byte {reached} instead of {stored.size}")


def _unpacked(codec: Codec, row: Sequence[object], size: int, hash_: bytes, what: str) -> bytes:
    number, block = row
    assert isinstance(number, int)
    assert isinstance(block, bytes)
    try:
        data = codec.unpack(number, block, size)
    except Damaged as error:
        raise Damaged(f"{what} {hash_.hex()}: {error}") from None
    if hashlib.sha256(data).digest() != hash_:
        raise Damaged(f"{what} {hash_.hex()} is not what was stored")
    return data


def collect(db: apsw.Connection, limit: int, *, chunks: bool) -> int:
    """Remove contents that nothing holds; answers how many candidates were looked at.

    With `chunks`, also chunks that no content is made of: only while nothing is being received, whose chunks are not
    part of a content yet.
    """
    rows = db.execute("SELECT object FROM loose ORDER BY object LIMIT ?", (limit,)).fetchall()
    for (object_,) in rows:
        assert isinstance(object_, int)
        held = db.execute(
            "SELECT EXISTS(SELECT 1 FROM document WHERE object=?1) OR EXISTS(SELECT 1 FROM held WHERE object=?1)",
            (object_,),
        ).fetchall()[0][0]
        if not held:
            numbers = db.execute("SELECT DISTINCT chunk FROM part WHERE object=?", (object_,)).fetchall()
            db.execute("DELETE FROM object WHERE id=?", (object_,))
            if chunks:
                db.executemany(
                    "DELETE FROM chunk WHERE id=?1 AND NOT EXISTS(SELECT 1 FROM part WHERE chunk=?1)", numbers
                )
        db.execute("DELETE FROM loose WHERE object=?", (object_,))
    return len(rows)


def collect_chunks(db: apsw.Connection) -> int:
    """Remove every chunk that no content is made of: what an upload left that was never finished."""
    db.execute("DELETE FROM chunk WHERE NOT EXISTS(SELECT 1 FROM part WHERE chunk=chunk.id)")
    return db.changes()
