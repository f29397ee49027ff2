"""Contents in the store: written once, read back with their checksum verified, collected when nothing holds them.

Functions on a connection, inside the caller's transaction.  A small content is one block, by itself or in a pack with
those that came with it; a large one is the chunks that `Incoming` has cut, each of which other contents may share.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw
import msgspec

from services.documents.store import statements
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.kinds import Nature

CHUNKED_FROM_BYTES = 4 * 1024 * 1024
"""Below this, a content is compressed and stored whole."""
PACK_BYTES = 64 * 1024
"""Long enough that the end of its last page is little; short enough to be read for one of the contents in it."""
PACKED_UP_TO_BYTES = 32 * 1024
PACK_IDS = 4096
"""The contents of a pack have ids from its own to this far on, so that they are found without an index."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """A packed content, or None for `data` where the content is thought to be there already."""

    dictionary: int
    data: bytes | None


class Content(msgspec.Struct, frozen=True, gc=False):
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


COLUMNS = "object.id, object.hash, object.size, object.chunked, object.mime, object.is_text, object.text_state"


def of_row(row: Sequence[Any]) -> Stored:
    """A row of `COLUMNS`."""
    return Stored(*row)


def by_hash(db: apsw.Connection, hash_: bytes) -> Stored | None:
    row = db.execute(f"SELECT {COLUMNS} FROM object WHERE hash=?", (hash_,)).fetchone()
    return None if row is None else of_row(row)


def by_id(db: apsw.Connection, id_: int) -> Stored | None:
    """Raises DamagedContent."""
    with legible(f"content {id_}"):
        row = db.execute(f"SELECT {COLUMNS} FROM object WHERE id=?", (id_,)).fetchone()
    return None if row is None else of_row(row)


@contextlib.contextmanager
def legible(what: str) -> Iterator[None]:
    """For one content of many: a page of the database that cannot be read is damage of this content alone."""
    try:
        yield
    except apsw.CorruptError as error:
        raise DamagedContent(f"{what} is on a page that cannot be read: {error}") from error


def there(db: apsw.Connection, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """Those of the contents that are stored, with their ids."""
    wanted = tuple(hashes)
    if not wanted:
        return {}
    query = "SELECT hash, id FROM carray(?) AS wanted JOIN object ON object.hash = wanted.value"
    return {bytes(hash_): int(id_) for hash_, id_ in db.execute(query, (apsw.carray(wanted),))}


def _put_parts(db: apsw.Connection, id_: int, content: Content) -> None:
    db.executemany(
        "INSERT INTO part(object, position, chunk) VALUES(?, ?, ?)",
        ((id_, position, chunk) for position, chunk in content.parts),
    )


def put_many(db: apsw.Connection, contents: Sequence[Content]) -> tuple[list[int | None], list[int]]:
    """Store contents, the small ones in packs; answers the id of each (None: it has vanished), and the new ones."""
    held = there(db, {content.hash for content in contents})
    first = next_id = statements.next_id(db, "object")
    ids: list[int | None] = []
    new: list[tuple[int, Content]] = []
    for content in contents:
        id_ = held.get(content.hash)
        if id_ is None and (content.block is None or content.block.data is not None):
            id_ = held[content.hash] = next_id
            next_id += 1
            new.append((id_, content))
        ids.append(id_)
    statements.insert(
        db,
        "object(id, hash, size, chunked, mime, is_text, text_state)",
        [(id_, one.hash, one.size, one.block is None, one.nature.mime, one.nature.is_text, one.nature.text_state)
         for id_, one in new],
    )  # fmt: skip
    alone: list[tuple[int, int, int, bytes]] = []
    packs: list[tuple[int, bytes]] = []
    packed: list[tuple[int, int, int, int, int]] = []
    frames: list[bytes] = []
    pack = size = 0
    for id_, one in new:
        if one.block is None:
            _put_parts(db, id_, one)
            continue
        data = one.block.data
        assert data is not None
        if len(data) > PACKED_UP_TO_BYTES or len(new) == 1:
            alone.append((id_, len(data), one.block.dictionary, data))
            continue
        if frames and (size >= PACK_BYTES or id_ - pack >= PACK_IDS):
            packs.append((pack, b"".join(frames)))
            frames, size = [], 0
        pack = pack if frames else id_
        packed.append((id_, pack, size, len(data), one.block.dictionary))
        frames.append(data)
        size += len(data)
    if frames:
        packs.append((pack, b"".join(frames)))
    statements.insert(db, "block(object, stored, dictionary, data)", alone)
    statements.insert(db, "pack(id, data)", packs)
    statements.insert(db, "packed(object, pack, start, stored, dictionary)", packed)
    return ids, list(range(first, next_id))


def put_chunk(db: apsw.Connection, hash_: bytes, size: int, data: bytes) -> int:
    """Store a chunk, unless it is there; answers its number."""
    row = db.execute("SELECT id FROM chunk WHERE hash=?", (hash_,)).fetchone()
    if row is None:
        db.execute("INSERT INTO chunk(hash, size, stored, data) VALUES(?, ?, ?, ?)", (hash_, size, len(data), data))
        return db.last_insert_rowid()
    assert isinstance(row[0], int)
    return row[0]


def read(db: apsw.Connection, codec: Codec, stored: Stored) -> bytes:
    """All bytes of a content.  Raises DamagedContent."""
    data = b"".join(stream(db, codec, stored))
    if stored.chunked and hashlib.sha256(data).digest() != stored.hash:
        raise DamagedContent(f"content {stored.hash.hex()} is not what was stored")
    return data


def stream(
    db: apsw.Connection,
    codec: Codec,
    stored: Stored,
    offset: int = 0,
    length: int | None = None,
    *,
    hashed: bool = True,
) -> Iterator[bytes]:
    """The bytes of a content from `offset`, in pieces of 4 MiB at most, each verified by its checksum and its hash.

    Raises DamagedContent.
    """
    with legible(f"content {stored.hash.hex()}"):
        yield from _stream(db, codec, stored, offset, length, hashed=hashed)


def _stream(
    db: apsw.Connection, codec: Codec, stored: Stored, offset: int, length: int | None, *, hashed: bool
) -> Iterator[bytes]:
    end = stored.size if length is None else min(stored.size, offset + length)
    if not stored.chunked:
        row = (
            db.execute("SELECT dictionary, data FROM block WHERE object=?", (stored.id,)).fetchone()
            or db.execute(
                "SELECT dictionary, substr(data, start + 1, stored) FROM packed JOIN pack ON pack.id = packed.pack"
                " WHERE object=?",
                (stored.id,),
            ).fetchone()
        )
        if row is None:
            raise DamagedContent(f"content {stored.hash.hex()} has lost its block")
        data = _unpacked(codec, row, stored.size, stored.hash, "content", hashed=hashed)
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
            raise DamagedContent(f"content {stored.hash.hex()} has lost a chunk, at byte {reached}")
        assert isinstance(size, int)
        assert isinstance(hash_, bytes)
        chunk = _unpacked(codec, (0, data), size, hash_, "chunk", hashed=hashed)
        yield chunk[max(0, offset - position) : end - position]
        reached = position + size
    if reached < end:
        raise DamagedContent(f"content {stored.hash.hex()} ends at byte {reached} instead of {stored.size}")


def _unpacked(codec: Codec, row: Sequence[object], size: int, hash_: bytes, what: str, *, hashed: bool) -> bytes:
    number, block = row
    assert isinstance(number, int)
    assert isinstance(block, bytes)
    try:
        data = codec.unpack(number, block, size)
    except DamagedContent as error:
        raise DamagedContent(f"{what} {hash_.hex()}: {error}") from None
    if hashed and hashlib.sha256(data).digest() != hash_:
        raise DamagedContent(f"{what} {hash_.hex()} is not what was stored")
    return data


def collect(db: apsw.Connection, limit: int, *, chunks: bool) -> int:
    """Remove contents that nothing holds; answers how many candidates were looked at.

    With `chunks`, also chunks that no content is made of: only while nothing is being received, whose chunks are not
    part of a content yet.
    """
    rows = db.execute("SELECT object FROM loose ORDER BY object LIMIT ?", (limit,)).fetchall()
    packs: set[int] = set()
    for (object_,) in rows:
        assert isinstance(object_, int)
        held = db.execute(
            "SELECT EXISTS(SELECT 1 FROM document WHERE object=?1) OR EXISTS(SELECT 1 FROM held WHERE object=?1)",
            (object_,),
        ).fetchall()[0][0]
        if not held:
            numbers = db.execute("SELECT DISTINCT chunk FROM part WHERE object=?", (object_,)).fetchall()
            packs |= {int(str(id_)) for (id_,) in db.execute("SELECT pack FROM packed WHERE object=?", (object_,))}
            db.execute("DELETE FROM object WHERE id=?", (object_,))
            if chunks:
                db.executemany(
                    "DELETE FROM chunk WHERE id=?1 AND NOT EXISTS(SELECT 1 FROM part WHERE chunk=?1)", numbers
                )
        db.execute("DELETE FROM loose WHERE object=?", (object_,))
    for pack in sorted(packs):
        _repack(db, pack)
    return len(rows)


def _repack(db: apsw.Connection, pack: int) -> None:
    """Rewrite a pack without its deleted contents, once these are half of it."""
    whole = db.execute("SELECT length(data) FROM pack WHERE id=?", (pack,)).get
    if whole is None:
        # It was lost; what was in it says so when it is read.
        return
    left = db.execute(
        "SELECT object, start, stored FROM packed WHERE object >= ?1 AND object < ?1 + ?2 AND pack=?1 ORDER BY object",
        (pack, PACK_IDS),
    ).fetchall()
    if not left:
        db.execute("DELETE FROM pack WHERE id=?", (pack,))
    elif 2 * sum(int(str(stored)) for _, _, stored in left) < int(str(whole)):
        data = db.execute("SELECT data FROM pack WHERE id=?", (pack,)).get
        assert isinstance(data, bytes)
        frames: list[bytes] = []
        size = 0
        for object_, start, stored in left:
            assert isinstance(start, int)
            assert isinstance(stored, int)
            db.execute("UPDATE packed SET start=? WHERE object=?", (size, object_))
            frames.append(data[start : start + stored])
            size += stored
        db.execute("UPDATE pack SET data=? WHERE id=?", (b"".join(frames), pack))


def collect_chunks(db: apsw.Connection) -> int:
    """Remove every chunk that no content is made of: what an upload left that was never finished."""
    db.execute("DELETE FROM chunk WHERE NOT EXISTS(SELECT 1 FROM part WHERE chunk=chunk.id)")
    return db.changes()
