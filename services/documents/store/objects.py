"""Contents in the store: written once, verified on reading, and garbage-collected when unreferenced.

The functions take a connection and run inside the caller's transaction. A small content is one block, stored alone or
in a pack with others added at the same time. A large one consists of the chunks cut by `Incoming`, which contents can
share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import apsw
import msgspec

from services.documents.store import tables
from services.documents.store.compress import DamagedContent
from services.documents.store.kinds import Nature

CHUNKED_FROM_BYTES = 4 * 1024 * 1024
"""Smaller contents are compressed and stored whole."""
PACK_BYTES = 64 * 1024
"""Large enough that little of the last page is wasted, small enough to be read for a single content."""
PACKED_UP_TO_BYTES = 32 * 1024
PACK_IDS = 4096
"""The ids of a pack's contents lie in a range of this size from its own id, so they are found without an index."""


class Block(msgspec.Struct, frozen=True, gc=False):
    """A compressed content; `data` is None if the content is expected to be stored already."""

    dictionary: int
    data: bytes | None


class PackedContent(msgspec.Struct, frozen=True, gc=False):
    """A content ready to be stored: a block, or the parts (offset, chunk id) of a large one."""

    hash: bytes
    size: int
    nature: Nature
    block: Block | None = None
    parts: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """The row of a stored content."""

    id: int
    hash: bytes
    size: int
    chunked: bool
    mime: str
    is_text: bool
    text_state: int


COLUMNS = "object.id, object.hash, object.size, object.chunked, object.mime, object.is_text, object.text_state"


def by_hash(db: apsw.Connection, hash_: bytes) -> Stored | None:
    row = db.execute(f"SELECT {COLUMNS} FROM object WHERE hash=?", (hash_,)).fetchone()
    return None if row is None else Stored(*row)


def by_id(db: apsw.Connection, id_: int) -> Stored | None:
    """Return a content by its id; None if it does not exist.  Raises DamagedContent."""
    with isolating_damage(f"content {id_}"):
        row = db.execute(f"SELECT {COLUMNS} FROM object WHERE id=?", (id_,)).fetchone()
    return None if row is None else Stored(*row)


@contextlib.contextmanager
def isolating_damage(what: str) -> Iterator[None]:
    """Turn an unreadable database page into damage of this one content."""
    try:
        yield
    except apsw.CorruptError as error:
        raise DamagedContent(f"{what} is on an unreadable page: {error}") from error


def stored_ids(db: apsw.Connection, hashes: Iterable[bytes]) -> dict[bytes, int]:
    """Map the hashes of stored contents to their ids; others are omitted."""
    wanted = tuple(hashes)
    if not wanted:
        return {}
    query = "SELECT hash, id FROM carray(?) AS wanted JOIN object ON object.hash = wanted.value"
    return dict(db.execute(query, (apsw.carray(wanted),)))


def put_many(db: apsw.Connection, contents: Sequence[PackedContent]) -> tuple[list[int | None], list[int]]:
    """Store contents, small ones in packs.

    Returns the id of each content (None if it was expected to be stored but is not), and the ids of the new ones.
    """
    ids = stored_ids(db, {content.hash for content in contents})
    fresh = {
        one.hash: one for one in contents if one.hash not in ids and (one.block is None or one.block.data is not None)
    }
    new = list(enumerate(fresh.values(), tables.next_id(db, "object"))) if fresh else []
    ids |= {one.hash: id_ for id_, one in new}
    tables.insert(
        db,
        "object(id, hash, size, chunked, mime, is_text, text_state)",
        [(id_, one.hash, one.size, one.block is None, one.nature.mime, one.nature.is_text, one.nature.text_state)
         for id_, one in new],
    )  # fmt: skip
    alone: list[tuple[int, int, int, bytes]] = []
    packs: list[tuple[int, bytearray]] = []
    packed: list[tuple[int, int, int, int, int]] = []
    for id_, one in new:
        if one.block is None:
            tables.insert(db, "part(object, position, chunk)", [(id_, *part) for part in one.parts])
            continue
        data = one.block.data
        assert data is not None
        if len(data) > PACKED_UP_TO_BYTES or len(new) == 1:
            alone.append((id_, len(data), one.block.dictionary, data))
            continue
        if not packs or len(packs[-1][1]) >= PACK_BYTES or id_ - packs[-1][0] >= PACK_IDS:
            packs.append((id_, bytearray()))
        pack, frames = packs[-1]
        packed.append((id_, pack, len(frames), len(data), one.block.dictionary))
        frames += data
    tables.insert(db, "block(object, stored, dictionary, data)", alone)
    tables.insert(db, "pack(id, data)", packs)
    tables.insert(db, "packed(object, pack, start, stored, dictionary)", packed)
    return [ids.get(content.hash) for content in contents], [id_ for id_, _ in new]


def put_chunk(db: apsw.Connection, hash_: bytes, size: int, data: bytes) -> int:
    """Store a chunk unless it exists.  Returns its id."""
    number: int | None = db.execute("SELECT id FROM chunk WHERE hash=?", (hash_,)).get
    if number is None:
        db.execute("INSERT INTO chunk(hash, size, stored, data) VALUES(?, ?, ?, ?)", (hash_, size, len(data), data))
        number = db.last_insert_rowid()
    return number


def stream(db: apsw.Connection, stored: Stored, offset: int = 0, length: int | None = None, *,
           hashed: bool = True) -> Iterator[bytes]:  # fmt: skip
    """Yield the bytes of a content from `offset` in pieces of at most 4 MiB, verified by checksum and hash.

    Raises DamagedContent.
    """
    name = f"content {stored.hash.hex()}"
    end = stored.size if length is None else min(stored.size, offset + length)
    with isolating_damage(name):
        if not stored.chunked:
            row = db.execute(_BLOCK, (stored.id, stored.size, stored.hash if hashed else None, name)).fetchone()
            if row is None:
                raise DamagedContent(f"{name}: its block is missing")
            if offset < end:
                yield row[0][offset:end]
            return
        reached = offset
        for position, size, chunk in db.execute(_CHUNKS, (stored.id, offset, end, hashed)):
            if chunk is None or position > reached:
                raise DamagedContent(f"{name}: the chunk at byte {reached} is missing")
            yield chunk[max(0, offset - position) : end - position]
            reached = position + size
        if reached < end:
            raise DamagedContent(f"{name} ends at byte {reached}, not {stored.size}")


_BLOCK = (
    "SELECT unpacked(dictionary, data, ?2, ?3, ?4) FROM block WHERE object=?1"
    " UNION ALL SELECT unpacked(dictionary, substr(data, start + 1, stored), ?2, ?3, ?4)"
    " FROM packed JOIN pack ON pack.id = packed.pack WHERE object=?1"
)
_CHUNKS = (
    "SELECT position, size, unpacked(0, data, size, iif(?4, hash, NULL), 'chunk ' || lower(hex(hash)))"
    " FROM part LEFT JOIN chunk ON chunk.id = part.chunk WHERE object=?1 AND position < ?3 AND position >="
    " (SELECT coalesce(max(position), 0) FROM part WHERE object=?1 AND position <= ?2) ORDER BY position"
)

HELD = (
    "(EXISTS(SELECT 1 FROM document WHERE document.object=object.id)"
    " OR EXISTS(SELECT 1 FROM held WHERE held.object=object.id))"
)
"""SQL condition: a document or snapshot refers to the content."""


def collect(db: apsw.Connection, limit: int, *, chunks: bool) -> int:
    """Remove unreferenced contents.  Returns how many candidates were examined.

    Args:
        chunks: also remove their chunks.  Only safe while nothing is being received, as chunks of incoming contents are
            not referenced yet.
    """
    candidates = [object_ for (object_,) in db.execute("SELECT object FROM loose ORDER BY object LIMIT ?", (limit,))]
    query = f"SELECT id FROM carray(?) AS one JOIN object ON id = one.value WHERE NOT {HELD}"
    gone = [(id_,) for (id_,) in db.execute(query, (tables.ids(candidates),))]
    packs: set[tuple[int]] = set(db.executemany("SELECT pack FROM packed WHERE object=?", gone))
    numbers = set(db.executemany("SELECT chunk FROM part WHERE object=?", gone))
    db.executemany("DELETE FROM object WHERE id=?", gone)
    if chunks:
        query = "DELETE FROM chunk WHERE id=?1 AND NOT EXISTS(SELECT 1 FROM part WHERE chunk=?1)"
        db.executemany(query, numbers)
    db.executemany("DELETE FROM loose WHERE object=?", ((object_,) for object_ in candidates))
    for (pack,) in sorted(packs):
        _repack(db, pack)
    return len(candidates)


def _repack(db: apsw.Connection, pack: int) -> None:
    """Rewrite a pack without its deleted contents, once they make up half of it."""
    whole = db.execute("SELECT length(data) FROM pack WHERE id=?", (pack,)).get
    if whole is None:
        # The pack is missing; reading its contents reports that.
        return
    query = "SELECT object, start, stored FROM packed WHERE object >= ?1 AND object < ?1 + ?2 AND pack=?1"
    left = list(db.execute(f"{query} ORDER BY object", (pack, PACK_IDS)))
    if not left:
        db.execute("DELETE FROM pack WHERE id=?", (pack,))
    elif 2 * sum(stored for _, _, stored in left) < whole:
        data = db.execute("SELECT data FROM pack WHERE id=?", (pack,)).get
        kept = bytearray()
        for object_, start, stored in left:
            db.execute("UPDATE packed SET start=? WHERE object=?", (len(kept), object_))
            kept += data[start : start + stored]
        db.execute("UPDATE pack SET data=? WHERE id=?", (bytes(kept), pack))


def collect_chunks(db: apsw.Connection) -> int:
    """Remove all unreferenced chunks, which unfinished uploads leave behind."""
    db.execute("DELETE FROM chunk WHERE NOT EXISTS(SELECT 1 FROM part WHERE chunk=chunk.id)")
    return db.changes()
