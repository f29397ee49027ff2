"""Exact nearest-neighbour search: the vector index of small collections, and the tail of large ones.

Rows of a matrix are only appended or marked as deleted, so searches need no lock against the writer. Copying reclaims
space. FAISS's flat index is as fast (`python -m tests.bench.vectors`), but removing a row moves all rows after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]
HalfMatrix = npt.NDArray[np.float16]
ItemIds = npt.NDArray[np.int64]
Scored: TypeAlias = list[tuple[int, float]]
"""Item ids and cosines."""

_STRUCK = -1
_COMPACT_ABOVE = 0.25


class FlatIndex:
    """Exact search over a float32 matrix of unit vectors.  Supports one writer and concurrent searches."""

    def __init__(self, dimensions: int, room: int = 0) -> None:
        self._dimensions = dimensions
        self._matrix: Matrix = np.empty((max(256, room), dimensions), dtype=np.float32)
        self._ids: ItemIds = np.full(len(self._matrix), _STRUCK, dtype=np.int64)
        self._used = 0
        self._row_of: dict[int, int] = {}
        # Searches read this tuple. It is replaced as a whole; only ids are changed in place, to mark deletions.
        self._seen = (self._matrix, self._ids, 0)

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, ids: Sequence[int], vectors: Matrix) -> None:
        """Add vectors of shape (ids, dimensions), replacing those of existing ids."""
        if vectors.shape != (len(ids), self._dimensions):
            raise ValueError(f"{len(ids)} ids and vectors of shape {vectors.shape}; dimensions are {self._dimensions}")
        self.remove(ids)
        start, end = self._used, self._used + len(ids)
        if end > len(self._matrix):
            self._copy(max(end, 2 * len(self._row_of) + len(ids)))
            start, end = self._used, self._used + len(ids)
        self._matrix[start:end] = vectors
        self._ids[start:end] = ids
        self._row_of.update(zip(ids, range(start, end), strict=True))
        self._used = end
        self._seen = (self._matrix, self._ids, end)

    def remove(self, ids: Sequence[int]) -> None:
        """Remove ids; unknown ones are ignored."""
        rows = [row for item_id in ids if (row := self._row_of.pop(item_id, None)) is not None]
        self._ids[rows] = _STRUCK
        if self._used - len(self._row_of) > max(256, self._used * _COMPACT_ABOVE):
            self._copy(2 * len(self._row_of))

    def search(self, query: Matrix, limit: int, allowed: ItemIds | None) -> Scored:
        """Return the nearest ids and their cosines, best first, limited to `allowed` if given."""
        matrix, all_ids, used = self._seen
        if not used:
            return []
        # Copied before the product: an id removed meanwhile may still be returned, but it resolves to no item.
        ids = all_ids[:used].copy()
        if allowed is None:
            scores = matrix[:used] @ query
            scores[ids == _STRUCK] = -np.inf
        else:
            rows = np.flatnonzero(np.isin(ids, allowed))
            ids = ids[rows]
            scores = matrix[rows] @ query
        best = np.argpartition(scores, -limit)[-limit:] if len(scores) > limit else np.arange(len(scores))
        found = zip(ids[best].tolist(), scores[best].tolist(), strict=True)
        return best_first([pair for pair in found if pair[1] > -np.inf], limit)

    def cosines(self, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        """Return the cosines of those of `ids` that exist."""
        matrix, all_ids, used = self._seen
        rows = [(item_id, row) for item_id in ids if (row := self._row_of.get(item_id, used)) < used]
        if not rows:
            return {}
        picked = np.array([row for _, row in rows])
        scores = matrix[picked] @ query
        held = all_ids[picked]
        return {
            item_id: float(score)
            for (item_id, _), score, holder in zip(rows, scores, held, strict=True)
            if item_id == holder
        }

    def _copy(self, capacity: int) -> None:
        kept = np.flatnonzero(self._ids[: self._used] != _STRUCK)
        matrix: Matrix = np.empty((max(256, capacity), self._dimensions), dtype=np.float32)
        ids: ItemIds = np.full(len(matrix), _STRUCK, dtype=np.int64)
        matrix[: len(kept)] = self._matrix[kept]
        ids[: len(kept)] = self._ids[kept]
        self._row_of = {int(item_id): row for row, item_id in enumerate(ids[: len(kept)])}
        self._matrix, self._ids, self._used = matrix, ids, len(kept)
        self._seen = (matrix, ids, self._used)


def best_first(found: Scored, limit: int) -> Scored:
    """Return the best `limit`.  Ties are ordered by id, so that results are deterministic."""
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:limit]
