"""A segment: immutable vectors, searched by one-bit codes and rescored with the exact vectors.

It is a folder with three files: the item ids (sorted), the vectors as in the database (float16, memory-mapped), and
FAISS RaBitQ fast-scan codes (Gao and Long, SIGMOD 2024), which a search over-fetches several times. Removed vectors are
only marked in memory; the database tells which they are.

A segment is written under a temporary name, synced and renamed, so it is complete under its final name. Its sizes and
checksums are stored in the database and verified before FAISS reads any of it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import faiss
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from proto.host.durable import sync_folder
from services.retrieve.index.vectors import HalfMatrix, ItemIds, Matrix, Scored, best_first

RowNumbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ReadVectors = Callable[[ItemIds], tuple[ItemIds, HalfMatrix]]
"""Returns those of the ids (sorted) that have a vector in the database, and the vectors."""

ASIDE = ".new-"
_IDS, _ROWS, _CODES = "ids", "rows", "codes"

_BLOCK = 16384
_SAMPLE = 65536
"""Number of rows whose mean is the centre of the codes."""
FAST_DIMENSIONS = 2048
"""Most dimensions for which FAISS's fast scan and a rotation by a matrix are used.

The 16-bit sums of the fast scan of FAISS 1.15 overflow with more than about 2,900 dimensions: almost nothing that it
finds is near. The matrix takes time that grows with the third power of the dimensions, minutes with 8,192 of them.
"""
_BESIDE = 1e-3
_READ_BYTES = 4 * 1024 * 1024
_PER_HIT = 4
"""Rows rescored per requested row, if that is more than the over-fetch."""
_WIDEN = 4


class SegmentDamaged(Exception):
    """The files are missing, incomplete, or do not match the database; the segment has to be rebuilt."""


class SegmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The database's record of a segment: its folder name, and the expected sizes and checksums."""

    name: str
    count: int
    ids_crc: int
    rows_crc: int
    codes_crc: int
    codes_bytes: int


class VectorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in `[services.retrieve]` that concern vectors."""

    # 32,768 are compared in a few milliseconds, and written as a segment in less than a second.
    flat_vectors: Annotated[int, Meta(ge=1, description="Vectors compared one by one before they make a segment")] = (
        32_768
    )
    # This loses none of the top ten; fewer than 100 lose many.
    overfetch: Annotated[int, Meta(ge=1, description="Vectors that the codes fetch at least, to be ranked exactly")] = (
        400
    )
    # The codes are faster for more vectors.
    exact_rows: Annotated[int, Meta(ge=0, description="Vectors that a filter may leave to be all compared")] = 20_000
    # Searches fetch correspondingly more until then.
    struck_share: Annotated[float, Meta(gt=0, le=1, description="Share whose removal has a segment rewritten")] = 0.25


DEFAULT_LIMITS = VectorLimits()


class Segment:
    """An open segment.  Any number of threads may search while one strikes out ids."""

    def __init__(self, folder: Path, record: SegmentRecord, dimensions: int) -> None:
        """Open and verify a segment.  Blocks, for a second per million vectors.

        Raises:
            SegmentDamaged: the files cannot be read or do not match their checksums.
        """
        self.record = record
        self._folder = folder / record.name
        self._dimensions = dimensions
        ids = self._checked(_IDS, record.count * 8, record.ids_crc)
        rows = self._checked(_ROWS, record.count * dimensions * 2, record.rows_crc)
        codes = self._checked(_CODES, record.codes_bytes, record.codes_crc)
        self._rows: HalfMatrix = np.memmap(rows, np.dtype("<f2"), "r", shape=self._shape)
        self.ids: ItemIds = np.fromfile(ids, dtype="<i8")
        """All ids, sorted, including those struck out."""
        try:
            self._codes = faiss.deserialize_index(np.fromfile(codes, dtype=np.uint8))
        except RuntimeError as error:
            # Another version of FAISS wrote it.
            raise SegmentDamaged(f"{codes} cannot be decoded: {error}") from None
        if dimensions > FAST_DIMENSIONS and isinstance(self._inner(), faiss.IndexRaBitQFastScan):
            raise SegmentDamaged(
                f"{codes} was written by a version that found wrong neighbours in {dimensions} dimensions"
            )
        if (self._codes.ntotal, self._codes.d) != self._shape:
            raise SegmentDamaged(f"{self._folder / _CODES} has the wrong shape: {self._codes.ntotal} x {self._codes.d}")
        self._struck: Mask = np.zeros(record.count, dtype=np.bool_)
        self._live = record.count

    @property
    def _shape(self) -> tuple[int, int]:
        return self.record.count, self._dimensions

    @property
    def size_bytes(self) -> int:
        """The size of its files."""
        return self.record.count * (8 + 2 * self._dimensions) + self.record.codes_bytes

    @property
    def struck(self) -> int:
        """The number of removed vectors."""
        return self.record.count - self._live

    def __len__(self) -> int:
        return self._live

    def _inner(self) -> faiss.Index:
        index = faiss.downcast_index(self._codes)
        return faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index

    def strike(self, ids: Sequence[int] | ItemIds) -> None:
        """Exclude these ids from searches; unknown ones are ignored."""
        rows = np.unique(self._live_rows(np.asarray(ids, dtype=np.int64)))
        self._struck[rows] = True
        self._live -= len(rows)

    def holds(self, ids: ItemIds) -> Mask:
        """Return a mask of those of `ids` that are here and not struck out."""
        rows = np.minimum(np.searchsorted(self.ids, ids), self.record.count - 1)
        found: Mask = (self.ids[rows] == ids) & ~self._struck[rows]
        return found

    def search(self, query: Matrix, limit: int, allowed: ItemIds | None, limits: VectorLimits) -> Scored:
        """Return the nearest ids and their cosines, best first, limited to `allowed` if given.

        The search is exact if there are few candidates; otherwise the codes choose candidates, which are rescored
        exactly. It returns `limit` results if there are that many, even if the nearest are struck out or not allowed.
        """
        admitted: Mask | None = None
        if allowed is not None:
            rows = self._live_rows(allowed)
            if len(rows) <= limits.exact_rows:
                return self._rescore(query, rows, limit)
            admitted = np.zeros(self.record.count, dtype=np.bool_)
            admitted[rows] = True
            candidates = len(rows)
        else:
            candidates = self._live
            if self.struck:
                admitted = ~self._struck
        wanted = min(max(limits.overfetch, _PER_HIT * limit), candidates)
        if not wanted:
            return []
        share = candidates / self.record.count
        fetch = min(self.record.count, int(wanted / share) + wanted if admitted is not None else wanted)
        _one_thread()
        while True:
            rows = self._codes.search(query[None], fetch)[1][0]
            rows = rows[rows >= 0]
            if admitted is not None:
                rows = rows[admitted[rows]]
            if len(rows) >= wanted or fetch >= self.record.count:
                break
            fetch = min(_WIDEN * fetch, self.record.count)
        # Sort into file order, so that rows of one page are read together.
        return self._rescore(query, np.sort(rows[:wanted]), limit)

    def cosines(self, query: Matrix, ids: ItemIds) -> dict[int, float]:
        """Return the cosines of those of `ids` that are here and not struck out."""
        rows = self._live_rows(ids)
        return dict(self._rescore(query, rows, len(rows)))

    def remove_files(self) -> None:
        """Delete the files.  Running searches can finish, because the mapping stays valid."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _live_rows(self, ids: ItemIds) -> RowNumbers:
        """Return the rows of those of `ids` that are here and not struck out."""
        return np.searchsorted(self.ids, ids)[self.holds(ids)]

    def _rescore(self, query: Matrix, rows: RowNumbers, limit: int) -> Scored:
        # FAISS multiplies float16 directly, several times faster than numpy, which converts to float32 first.
        found: Scored = []
        _one_thread()
        for start in range(0, len(rows), _BLOCK):
            some = rows[start : start + _BLOCK]
            exact = faiss.IndexScalarQuantizer(
                self._dimensions, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
            )
            exact.add_sa_codes(np.ascontiguousarray(self._rows[some]).view(np.uint8))
            scores, places = exact.search(query[None], min(limit, len(some)))
            ids = self.ids[some[places[0]]]
            found.extend(zip(ids.tolist(), scores[0].tolist(), strict=True))
        return best_first(found, limit)

    def _checked(self, name: str, size: int, crc: int) -> Path:
        # Read, not mapped, so that a failing disk raises an error and does not kill the process with a signal.
        path = self._folder / name
        found = (0, 0)
        try:
            with path.open("rb", buffering=0) as file:
                while part := file.read(_READ_BYTES):
                    found = (found[0] + len(part), zlib.crc32(part, found[1]))
        except OSError as error:
            raise SegmentDamaged(f"{path} cannot be read: {error}") from None
        if found != (size, crc):
            raise SegmentDamaged(f"{path} is corrupted (size or checksum mismatch)")
        return path


def write(
    folder: Path, ids: ItemIds, read: ReadVectors, dimensions: int, checkpoint: Callable[[], None]
) -> SegmentRecord | None:
    """Write the vectors of `ids` (sorted) as a segment below `folder`; None if none of them exists any more.

    Blocks until the segment is on disk.

    Args:
        checkpoint: called every few thousand vectors; may raise to abort.

    Raises:
        OSError: the disk is full or failing; no partial segment remains.
    """
    name = secrets.token_hex(8)
    aside = folder / f"{ASIDE}{name}"
    aside.mkdir(parents=True)
    try:
        found = [ids[:0]]

        def blocks() -> Iterator[bytes]:
            for start in range(0, len(ids), _BLOCK):
                checkpoint()
                there, rows = read(ids[start : start + _BLOCK])
                found.append(there)
                yield rows.tobytes()

        rows_crc = _write(aside / _ROWS, blocks())
        there: ItemIds = np.concatenate(found)
        if not len(there):
            aside.joinpath(_ROWS).unlink()
            aside.rmdir()
            return None
        rows: HalfMatrix = np.memmap(aside / _ROWS, np.dtype("<f2"), "r", shape=(len(there), dimensions))
        codes = faiss.serialize_index(_encode(rows, checkpoint)).tobytes()
        record = SegmentRecord(
            name=name,
            count=len(there),
            ids_crc=_write(aside / _IDS, (there.astype("<i8").tobytes(),)),
            rows_crc=rows_crc,
            codes_crc=_write(aside / _CODES, (codes,)),
            codes_bytes=len(codes),
        )
        sync_folder(aside)
        aside.rename(folder / name)
        sync_folder(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return record


def remove_others(folder: Path, keep: str | None) -> None:
    """Remove all segments but one, such as those left behind by a crash or another model."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


def _encode(rows: HalfMatrix, checkpoint: Callable[[], None]) -> faiss.Index:
    """Encode randomly rotated vectors.

    The rotation spreads the information evenly over all components. Without it, one bit per component finds too few of
    the nearest vectors.
    """
    count, dimensions = rows.shape
    _one_thread()
    rotation: faiss.VectorTransform
    codes: faiss.Index
    if dimensions <= FAST_DIMENSIONS:
        rotation = faiss.RandomRotationMatrix(dimensions, dimensions)
        codes = faiss.IndexRaBitQFastScan(dimensions, faiss.METRIC_INNER_PRODUCT)
    else:
        rotation = faiss.HadamardRotation(dimensions)
        codes = faiss.IndexRaBitQ(rotation.d_out, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexPreTransform(rotation, codes)
    index.train(rows[:: -(-count // _SAMPLE)].astype(np.float32))
    # FAISS 1.15 never finds a vector equal to the centre, as it has no direction from it. Shift the centre slightly.
    centre = faiss.vector_to_array(codes.center)
    centre[0] += _BESIDE
    faiss.copy_array_to_vector(centre, codes.center)
    for start in range(0, count, _BLOCK):
        checkpoint()
        index.add(rows[start : start + _BLOCK].astype(np.float32))
    return index


def _write(path: Path, parts: Iterable[bytes]) -> int:
    crc = 0
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
            crc = zlib.crc32(part, crc)
        file.flush()
        os.fsync(file.fileno())
    return crc


def _one_thread() -> None:
    # The setting is per thread. A query is too small for two threads, and searches and the embedder need the other
    # cores while a segment is built.
    faiss.omp_set_num_threads(1)
