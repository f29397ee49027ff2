"""A segment: vectors that no longer change, searched by one-bit codes and rescored on their exact rows.

Three files in a folder of their own: the item ids (sorted), the vectors as they lie in the database (float16, mapped
into memory, not read), and FAISS's RaBitQ fast-scan codes. A search fetches several times more codes than it needs
and ranks what it fetched by the exact vectors (RaBitQ: Gao and Long, SIGMOD 2024). Vectors that went are only struck
out in memory: which those are follows from the database whenever a segment is opened.

A segment is written aside, synced and renamed, so that under its name it is whole; sizes and checksums, which are
kept in the database, are compared before FAISS reads a byte of it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import faiss
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from services.retrieve.vectors import HalfMatrix, ItemIds, Matrix, Scored, best_first
from services.runtime.storage import sync_folder

RowNumbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

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


class Source(NamedTuple):
    """Vectors to write: ids, and where each one's vector lies in `rows`."""

    ids: ItemIds
    rows: HalfMatrix
    at: RowNumbers


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What of `[services.retrieve]` is about vectors."""

    flat_vectors: Annotated[
        int,
        Meta(
            ge=1,
            description="Vectors searched one by one before they are made a segment; at the default that takes a few "
            "milliseconds, and building the segment less than a second",
        ),
    ] = 32_768
    overfetch: Annotated[
        int,
        Meta(
            ge=1,
            description="Vectors that each segment's one-bit codes fetch at least, to be ranked by the exact ones; at "
            "the default nothing of the first ten is lost, below 100 a good deal is",
        ),
    ] = 400
    exact_rows: Annotated[
        int,
        Meta(
            ge=0,
            description="Where a filter leaves a segment no more vectors than this, they are all compared; more take "
            "longer than the codes do",
        ),
    ] = 20_000
    struck_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Share of a segment's vectors whose removal has it rewritten; until then searches fetch "
            "that much more",
        ),
    ] = 0.25


DEFAULT_LIMITS = Limits()


class Segment:
    """An opened segment.  Searches may run in any number of threads beside one that strikes ids out."""

    def __init__(self, folder: Path, record: Record, dimensions: int) -> None:
        """Blocks while ids and codes are read.  Raises Damaged, or OSError where the disk fails."""
        self.record = record
        self._folder = folder / record.name
        self._dimensions = dimensions
        rows_bytes = record.count * dimensions * 2
        ids = self._read(_IDS, record.count * 8, record.ids_crc)
        codes = self._read(_CODES, record.codes_bytes, record.codes_crc)
        try:
            if (size := (self._folder / _ROWS).stat().st_size) != rows_bytes:
                raise Damaged(f"{self._folder / _ROWS} has {size} bytes instead of {rows_bytes}")
            self._rows: HalfMatrix = np.memmap(self._folder / _ROWS, np.dtype("<f2"), "r", shape=self._shape)
        except FileNotFoundError as error:
            raise Damaged(f"{error.filename} is missing") from None
        self._ids: ItemIds = np.frombuffer(ids, dtype="<i8")
        try:
            self._codes = faiss.deserialize_index(np.frombuffer(codes, dtype=np.uint8))
        except RuntimeError as error:
            # Another version of FAISS wrote it.
            raise Damaged(f"{self._folder / _CODES} is not understood: {error}") from None
        if (self._codes.ntotal, self._codes.d) != self._shape:
            raise Damaged(f"{self._folder / _CODES} is of {self._codes.ntotal} vectors of {self._codes.d} numbers")
        self._struck: Mask = np.zeros(record.count, dtype=np.bool_)
        self._live = record.count
        self.checked = False
        """Whether the rows were compared with their checksum."""

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

    def check_rows(self, checkpoint: Callable[[], None]) -> None:
        """Compare the rows with their checksum; blocks for a second a million.

        Read, not mapped: a disk that fails is then an error, not a signal that ends the process.

        Args:
            checkpoint: called every few megabytes; may raise, to end this early.

        Raises:
            Damaged: they differ, or cannot be read.
        """
        crc = 0
        try:
            with (self._folder / _ROWS).open("rb", buffering=0) as file:
                while part := file.read(_READ_BYTES):
                    checkpoint()
                    crc = zlib.crc32(part, crc)
        except OSError as error:
            raise Damaged(f"{self._folder / _ROWS} cannot be read: {error}") from None
        if crc != self.record.rows_crc:
            raise Damaged(f"{self._folder / _ROWS} is not what was written")
        self.checked = True

    def strike(self, ids: Sequence[int] | ItemIds) -> None:
        """Find these no more; ids that are not here count for nothing."""
        rows = np.unique(self._rows_of(np.asarray(ids, dtype=np.int64)))
        rows = rows[~self._struck[rows]]
        self._struck[rows] = True
        self._live -= len(rows)

    def holds(self, ids: ItemIds) -> Mask:
        """Which of `ids` are found here."""
        rows = np.minimum(np.searchsorted(self._ids, ids), self.record.count - 1)
        found: Mask = (self._ids[rows] == ids) & ~self._struck[rows]
        return found

    def source(self) -> Source:
        """What is still found, as it is now; rows are read only when they are rewritten."""
        at = np.flatnonzero(~self._struck)
        return Source(self._ids[at], self._rows, at)

    def search(self, query: Matrix, limit: int, allowed: ItemIds | None, limits: Limits) -> Scored:
        """The nearest (among `allowed`, where given) and their cosines, best first.

        Exact where few enough come into question; else those that the codes hold for the nearest, in their exact
        order. However many of the nearest are struck out or not allowed, `limit` are answered where there are so many.
        """
        admitted: Mask | None = None
        if allowed is not None:
            rows = self._rows_of(allowed)
            rows = rows[~self._struck[rows]]
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
        rows = self._rows_of(ids)
        rows = rows[~self._struck[rows]]
        return dict(self._rescore(query, rows, len(rows)))

    def remove_files(self) -> None:
        """Searches under way go on: what is mapped stays until they end."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _rows_of(self, ids: ItemIds) -> RowNumbers:
        rows = np.searchsorted(self._ids, ids)
        here = rows < len(self._ids)
        here[here] = self._ids[rows[here]] == ids[here]
        return rows[here]

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
            ids = self._ids[some[places[0]]]
            found.extend(zip(ids.tolist(), scores[0].tolist(), strict=True))
        return best_first(found, limit)

    def _read(self, name: str, size: int, crc: int) -> bytes:
        path = self._folder / name
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise Damaged(f"{path} is missing") from None
        if len(content) != size:
            raise Damaged(f"{path} has {len(content)} bytes instead of {size}")
        if zlib.crc32(content) != crc:
            raise Damaged(f"{path} is not what was written")
        return content


def write(folder: Path, sources: Sequence[Source], dimensions: int, checkpoint: Callable[[], None]) -> Record:
    """Write all vectors of `sources`, which share no id and are not empty, as one segment below `folder`.

    Blocks; on disk when it returns. The codes are made of the rotated vectors: a rotation spreads what a few numbers
    of a vector say over all of them, without which one bit a number finds too few of the nearest.

    Args:
        checkpoint: called every few thousand vectors; may raise, to end this early.

    Raises:
        OSError: the disk is full or failing; nothing is left of it.
    """
    name = secrets.token_hex(8)
    aside = folder / f"{ASIDE}{name}"
    aside.mkdir(parents=True)
    try:
        record = _write_files(aside, name, sources, dimensions, checkpoint)
        sync_folder(aside)
        aside.rename(folder / name)
        sync_folder(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return record


def remove_others(folder: Path, keep: set[str]) -> None:
    """Remove what a crash, or another model, left behind."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)


def _write_files(
    aside: Path, name: str, sources: Sequence[Source], dimensions: int, checkpoint: Callable[[], None]
) -> Record:
    ids: ItemIds = np.concatenate([source.ids for source in sources])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    rows_crc = _write(aside / _ROWS, _merged(sources, order, dimensions, checkpoint))
    rows: HalfMatrix = np.memmap(aside / _ROWS, np.dtype("<f2"), "r", shape=(len(ids), dimensions))
    codes = faiss.serialize_index(_encode(rows, checkpoint)).tobytes()
    return Record(
        name=name,
        count=len(ids),
        ids_crc=_write(aside / _IDS, iter((ids.astype("<i8").tobytes(),))),
        rows_crc=rows_crc,
        codes_crc=_write(aside / _CODES, iter((codes,))),
        codes_bytes=len(codes),
    )


def _merged(
    sources: Sequence[Source], order: RowNumbers, dimensions: int, checkpoint: Callable[[], None]
) -> Iterator[bytes]:
    starts = np.cumsum([0, *(len(source.ids) for source in sources)])
    for first in range(0, len(order), _BLOCK):
        checkpoint()
        places = order[first : first + _BLOCK]
        part_of = np.searchsorted(starts, places, side="right") - 1
        block = np.empty((len(places), dimensions), dtype="<f2")
        for part in np.unique(part_of):
            here = part_of == part
            block[here] = sources[part].rows[sources[part].at[places[here] - starts[part]]]
        yield block.tobytes()


def _encode(rows: HalfMatrix, checkpoint: Callable[[], None]) -> faiss.Index:
    count, dimensions = rows.shape
    _one_thread()
    # The same for every segment of this size; it is stored with the codes, so it need not be so everywhere.
    gauss = np.random.default_rng(dimensions).standard_normal((dimensions, dimensions))
    rotation = np.ascontiguousarray(np.linalg.qr(gauss)[0], dtype=np.float32)
    codes = faiss.IndexRaBitQFastScan(dimensions, faiss.METRIC_INNER_PRODUCT)
    sample = rows[:: -(-count // _SAMPLE)].astype(np.float32)
    codes.train(sample @ rotation)
    # A vector that lies on the very centre has no direction from it, and FAISS 1.15 never finds it: there must be none.
    beside = faiss.vector_to_array(codes.center) + np.float32(_BESIDE) * rotation[0]
    faiss.copy_array_to_vector(beside, codes.center)
    for start in range(0, count, _BLOCK):
        checkpoint()
        codes.add(rows[start : start + _BLOCK].astype(np.float32) @ rotation)
    transform = faiss.LinearTransform(dimensions, dimensions, False)
    faiss.copy_array_to_vector(np.ascontiguousarray(rotation.T).ravel(), transform.A)
    transform.is_trained = True
    return faiss.IndexPreTransform(transform, codes)


def _write(path: Path, parts: Iterator[bytes]) -> int:
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
