"""A segment: vectors that no longer change, searched by one-bit codes and rescored on their exact rows.

Three files in a folder of their own: the item ids (sorted), the vectors as they lie in the database (float16, mapped
into memory), and FAISS's RaBitQ fast-scan codes (Gao and Long, SIGMOD 2024), of which a search fetches several times
more than it needs. Vectors that went are struck out in memory: which those are follows from the database.

It is written aside, synced and renamed, so that under its name it is whole; sizes and checksums, which the database
keeps, are compared before FAISS reads a byte of it.
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

from linckia.proto.durable import sync_folder
from linckia.services.retrieve.vectors import HalfMatrix, ItemIds, Matrix, Scored, best_first

RowNumbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ReadVectors = Callable[[ItemIds], tuple[ItemIds, HalfMatrix]]
"""Those of the ids, sorted, that the database has a vector of, and the vectors."""

ASIDE = ".new-"
_IDS, _ROWS, _CODES = "ids", "rows", "codes"

_BLOCK = 16384
_SAMPLE = 65536
"""Rows that the codes' centre is the mean of."""
_BESIDE = 1e-3
_READ_BYTES = 4 * 1024 * 1024
_PER_HIT = 4
"""Rows rescored for each one asked for, where that is more than the over-fetch."""
_WIDEN = 4


class Damaged(Exception):
    """The files are missing, torn, or not those that the database knows; their content is to be rebuilt."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What the database keeps of a segment: its folder's name, and what must lie there."""

    name: str
    count: int
    ids_crc: int
    rows_crc: int
    codes_crc: int
    codes_bytes: int


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What of `[services.retrieve]` is about vectors."""

    # 32,768 are compared in a few milliseconds, and made a segment in less than a second.
    flat_vectors: Annotated[int, Meta(ge=1, description="Vectors compared one by one before they make a segment")] = (
        32_768
    )
    # Nothing of the first ten is lost; below 100 a good deal is.
    overfetch: Annotated[int, Meta(ge=1, description="Vectors that the codes fetch at least, to be ranked exactly")] = (
        400
    )
    # To compare more takes longer than the codes do.
    exact_rows: Annotated[int, Meta(ge=0, description="Vectors that a filter may leave to be all compared")] = 20_000
    # Until then searches fetch that much more.
    struck_share: Annotated[float, Meta(gt=0, le=1, description="Share whose removal has a segment rewritten")] = 0.25


DEFAULT_LIMITS = Limits()


class Segment:
    """An opened segment.  Searches may run in any number of threads beside one that strikes ids out."""

    def __init__(self, folder: Path, record: Record, dimensions: int) -> None:
        """Blocks while all of it is read and compared with its checksums, a second a million.

        Raises:
            Damaged: it is not what was written, or cannot be read.
        """
        self.record = record
        self._folder = folder / record.name
        self._dimensions = dimensions
        ids = self._checked(_IDS, record.count * 8, record.ids_crc)
        rows = self._checked(_ROWS, record.count * dimensions * 2, record.rows_crc)
        codes = self._checked(_CODES, record.codes_bytes, record.codes_crc)
        self._rows: HalfMatrix = np.memmap(rows, np.dtype("<f2"), "r", shape=self._shape)
        self.ids: ItemIds = np.fromfile(ids, dtype="<i8")
        """Sorted; of those that were struck out as well."""
        try:
            self._codes = faiss.deserialize_index(np.fromfile(codes, dtype=np.uint8))
        except RuntimeError as error:
            # Another version of FAISS wrote it.
            raise Damaged(f"{codes} is not understood: {error}") from None
        if (self._codes.ntotal, self._codes.d) != self._shape:
            raise Damaged(f"{self._folder / _CODES} is of {self._codes.ntotal} vectors of {self._codes.d} numbers")
        self._struck: Mask = np.zeros(record.count, dtype=np.bool_)
        self._live = record.count

    @property
    def _shape(self) -> tuple[int, int]:
        return self.record.count, self._dimensions

    @property
    def size_bytes(self) -> int:
        """Of its files."""
        return self.record.count * (8 + 2 * self._dimensions) + self.record.codes_bytes

    @property
    def struck(self) -> int:
        """Vectors that went."""
        return self.record.count - self._live

    def __len__(self) -> int:
        return self._live

    def strike(self, ids: Sequence[int] | ItemIds) -> None:
        """Find these no more; ids that are not here count for nothing."""
        rows = np.unique(self._live_rows(np.asarray(ids, dtype=np.int64)))
        self._struck[rows] = True
        self._live -= len(rows)

    def holds(self, ids: ItemIds) -> Mask:
        """Which of `ids` are found here."""
        rows = np.minimum(np.searchsorted(self.ids, ids), self.record.count - 1)
        found: Mask = (self.ids[rows] == ids) & ~self._struck[rows]
        return found

    def search(self, query: Matrix, limit: int, allowed: ItemIds | None, limits: Limits) -> Scored:
        """The nearest (among `allowed`, where given) and their cosines, best first.

        Exact where few enough come into question; else those that the codes hold for the nearest, in their exact
        order. However many of the nearest are struck out or not allowed, `limit` are answered where there are so many.
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
        # In the order of the file, so that the rows of one page are read together.
        return self._rescore(query, np.sort(rows[:wanted]), limit)

    def cosines(self, query: Matrix, ids: ItemIds) -> dict[int, float]:
        """Cosines of those of `ids` that are here and not struck out."""
        rows = self._live_rows(ids)
        return dict(self._rescore(query, rows, len(rows)))

    def remove_files(self) -> None:
        """Searches under way go on: what is mapped stays until they end."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _live_rows(self, ids: ItemIds) -> RowNumbers:
        """Of those that are here and not struck out."""
        return np.searchsorted(self.ids, ids)[self.holds(ids)]

    def _rescore(self, query: Matrix, rows: RowNumbers, limit: int) -> Scored:
        # FAISS multiplies float16 as it lies, several times faster than numpy makes float32 of it first.
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
        # Read, not mapped: a disk that fails is then an error, not a signal that ends the process.
        path = self._folder / name
        found = (0, 0)
        try:
            with path.open("rb", buffering=0) as file:
                while part := file.read(_READ_BYTES):
                    found = (found[0] + len(part), zlib.crc32(part, found[1]))
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error}") from None
        if found != (size, crc):
            raise Damaged(f"{path} is not what was written")
        return path


def write(
    folder: Path, ids: ItemIds, read: ReadVectors, dimensions: int, checkpoint: Callable[[], None]
) -> Record | None:
    """Write the vectors of `ids` (sorted) as a segment below `folder`; None where none of them is there any more.

    Blocks; on disk when it returns.

    Args:
        checkpoint: called every few thousand vectors; may raise, to end this early.

    Raises:
        OSError: the disk is full or failing; nothing is left of it.
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
        record = Record(
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
    """Remove all but one segment: what a crash, or another model, left behind."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


def _encode(rows: HalfMatrix, checkpoint: Callable[[], None]) -> faiss.Index:
    """Codes of rotated vectors: a rotation spreads what a few numbers of a vector say over all of them, without which
    one bit a number finds too few of the nearest."""
    count, dimensions = rows.shape
    _one_thread()
    codes = faiss.IndexRaBitQFastScan(dimensions, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexPreTransform(faiss.RandomRotationMatrix(dimensions, dimensions), codes)
    index.train(rows[:: -(-count // _SAMPLE)].astype(np.float32))
    # A vector that lies on the very centre has no direction from it, and FAISS 1.15 never finds it: there must be none.
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
    # The setting is each thread's own. One query is no work for two, and searches and the embedder need the other
    # cores while a segment is built.
    faiss.omp_set_num_threads(1)
