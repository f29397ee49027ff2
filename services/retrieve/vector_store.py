"""What the database says about vectors, and the index that follows from it.

The vectors' truth are the rows of `vectors`; which segments belong to them stands in `meta`, so that one commit
switches both the rows and the files that stand for them. An id is never used twice and never changes its text, so a
segment's vector is right exactly as long as the database has a vector of that id and model: what was removed or added
since a segment was written is the difference of two sets of ids, however the process ended. A file that is missing,
damaged or of another model is left out, and its vectors are read from the database again.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec
import numpy as np

from services.retrieve import id_sets, segment
from services.retrieve.segment import Damaged, Limits, Record, Segment
from services.retrieve.segmented import SegmentedIndex
from services.retrieve.store import Model, meta
from services.retrieve.vectors import FlatIndex, HalfMatrix, ItemIds

FORMAT = 1
"""Of the segments' files; others are rebuilt."""

CHECKED_AT_ONCE_BYTES = 128 * 1024 * 1024
"""Rows of a segment up to this size are compared with their checksum before the first search: a tenth of a second."""

_TAILS = 2
"""A tail that a crash kept from becoming a segment is still read at once: all is found from the start."""

_KEY = "segments"
_AT_ONCE = 500


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The segments in use, as `meta` has them."""

    format: int
    fingerprint: str
    dimensions: int
    segments: list[Record]


def load(db: apsw.Connection, folder: Path, model: Model, limits: Limits) -> SegmentedIndex:
    """The index of the vectors of `model`, with the segments that are there and right; blocks, a second a million.

    Where much more than a tail's worth of vectors is in no segment, these are `missing` from the index until jobs have
    made segments of them.
    """
    ids = vector_ids(db, model)
    opened = _open_segments(db, folder, model)
    segment.remove_others(folder, {each.record.name for each in opened})
    elsewhere = np.ones(len(ids), dtype=np.bool_)
    for each in opened:
        known = each.source().ids
        each.strike(np.setdiff1d(known, ids, assume_unique=True))
        elsewhere &= ~each.holds(ids)
    rest = ids[elsewhere]
    tail = FlatIndex(model.dimensions)
    if len(rest) <= _TAILS * limits.flat_vectors:
        found, rows = vectors_by_id(db, model, rest)
        tail.add(found.tolist(), rows.astype(np.float32))
        rest = rest[:0]
    return SegmentedIndex(folder, model.dimensions, limits, opened, tail, rest)


def save(db: apsw.Connection, model: Model, records: list[Record]) -> None:
    """Make these the segments in use; within the caller's transaction."""
    saved = Saved(format=FORMAT, fingerprint=model.fingerprint, dimensions=model.dimensions, segments=records)
    db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (_KEY, msgspec.json.encode(saved).decode()))


def vector_ids(db: apsw.Connection, model: Model) -> ItemIds:
    """Ids that have a vector of `model`, sorted."""
    return id_sets.select(db, "SELECT item_id FROM vectors WHERE model_id = ?", (model.model_id,))


def vectors_by_id(db: apsw.Connection, model: Model, ids: ItemIds) -> tuple[ItemIds, HalfMatrix]:
    """Those of `ids` (sorted) that have a vector of `model`, and the vectors."""
    found: list[int] = []
    vectors: list[bytes] = []
    for start in range(0, len(ids), _AT_ONCE):
        some = ids[start : start + _AT_ONCE].tolist()
        rows = db.execute(
            f"SELECT item_id, vector FROM vectors WHERE item_id IN ({', '.join('?' * len(some))}) AND +model_id = ? "
            "ORDER BY item_id",
            (*some, model.model_id),
        )
        for item_id, vector in rows:
            found.append(item_id)
            vectors.append(vector)
    matrix: HalfMatrix = np.frombuffer(b"".join(vectors), dtype="<f2").reshape(len(found), model.dimensions)
    return np.array(found, dtype=np.int64), matrix


def _open_segments(db: apsw.Connection, folder: Path, model: Model) -> list[Segment]:
    if (kept := meta(db, _KEY)) is None:
        return []
    try:
        saved = msgspec.json.decode(kept, type=Saved)
    except msgspec.DecodeError:
        return []
    if (saved.format, saved.fingerprint, saved.dimensions) != (FORMAT, model.fingerprint, model.dimensions):
        return []
    opened: list[Segment] = []
    for record in saved.segments:
        try:
            each = Segment(folder, record, model.dimensions)
            if record.count * model.dimensions * 2 <= CHECKED_AT_ONCE_BYTES:
                each.check_rows(lambda: None)
        except (Damaged, OSError):
            continue
        opened.append(each)
    return opened
