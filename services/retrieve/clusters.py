"""Groups of a collection put together by what they are about.

The dice are always the same and ties end by the order of ids: the same vectors have the same clusters, so that an agent
can come back to one.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import trio

from services.retrieve.vectors import Matrix

BLOCK = 2048
"""Rows compared at once."""

MAX_ROUNDS = 50
_DRAWS = 4

Labels = npt.NDArray[np.int64]


def default_count(groups: int) -> int:
    """About the root of half the groups, the usual rule of thumb; at least one."""
    return max(1, min(1000, round(math.sqrt(groups / 2))))


def kmeans(matrix: Matrix, count: int) -> list[list[int]]:
    """Spherical k-means (Dhillon and Modha, 2001) on unit rows; blocks, in a thread of trio's.

    The first centre is the row nearest to the mean of all, the others are drawn as k-means++ does (Arthur and
    Vassilvitskii, 2007).
    """
    if not len(matrix):
        return []
    centres = _first_centres(matrix, min(count, len(matrix)))
    labels: Labels = np.full(len(matrix), -1, dtype=np.int64)
    for _ in range(MAX_ROUNDS):
        assigned, scores = _assign(matrix, centres)
        if np.array_equal(assigned, labels):
            break
        labels = assigned
        sums = np.zeros_like(centres)
        order = np.argsort(labels, kind="stable")
        present, starts = np.unique(labels[order], return_index=True)
        sums[present] = np.add.reduceat(matrix[order], starts, axis=0)
        norms = np.linalg.norm(sums, axis=1)
        # A centre that lost all its rows stays where it was.
        alive = norms > 1e-6
        centres[alive] = sums[alive] / norms[alive, None]
    labels, scores = _assign(matrix, centres)
    return _listed(labels, scores)


def chains(matrix: Matrix, threshold: float) -> list[list[int]]:
    """Connected components of the rows that are at least `threshold` near; blocks, in a thread of trio's."""
    count = len(matrix)
    roots: Labels = np.arange(count, dtype=np.int64)
    for top in range(0, count, BLOCK):
        for left in range(top, count, BLOCK):
            trio.from_thread.check_cancelled()
            near = matrix[top : top + BLOCK] @ matrix[left : left + BLOCK].T >= threshold - 5e-7
            for row in np.flatnonzero(near.any(axis=1)).tolist():
                around = roots[left : left + BLOCK][near[row]]
                if (around != roots[top + row]).any():
                    joined = np.union1d(around, roots[top + row])
                    roots[np.isin(roots, joined)] = joined[0]
    typical = np.empty(count, dtype=np.float32)
    for root in np.unique(roots):
        rows = np.flatnonzero(roots == root)
        centre = matrix[rows].sum(axis=0)
        typical[rows] = matrix[rows] @ (centre / max(float(np.linalg.norm(centre)), 1e-6))
    return _listed(roots, typical)


def _first_centres(matrix: Matrix, count: int) -> Matrix:
    dice = np.random.default_rng(0)
    chosen = [int(np.argmax(matrix @ matrix.mean(axis=0)))]
    nearest = matrix @ matrix[chosen[0]]
    while len(chosen) < count:
        trio.from_thread.check_cancelled()
        # Between unit vectors the squared distance is twice this.
        distance = np.maximum(0.0, 1.0 - nearest.astype(np.float64))
        distance[distance < 1e-6] = 0.0
        if not distance.any():
            # All that is left equals a centre.
            break
        drawn = np.searchsorted(np.cumsum(distance), dice.random(_DRAWS) * distance.sum())
        # Of a few draws the one that serves all best.
        draws = [int(row) for row in np.minimum(drawn, len(matrix) - 1)]
        best = max(draws, key=lambda row: (float(np.maximum(nearest, matrix @ matrix[row]).sum()), -row))
        chosen.append(best)
        nearest = np.maximum(nearest, matrix @ matrix[best])
    return matrix[chosen].copy()


def _assign(matrix: Matrix, centres: Matrix) -> tuple[Labels, Matrix]:
    labels: Labels = np.empty(len(matrix), dtype=np.int64)
    scores: Matrix = np.empty(len(matrix), dtype=np.float32)
    for start in range(0, len(matrix), BLOCK):
        trio.from_thread.check_cancelled()
        products = matrix[start : start + BLOCK] @ centres.T
        best = np.argmax(products, axis=1)
        labels[start : start + BLOCK] = best
        scores[start : start + BLOCK] = products[np.arange(len(products)), best]
    return labels, scores


def _listed(labels: Labels, typical: Matrix) -> list[list[int]]:
    """Rows by label, the most typical first; the largest cluster first."""
    rounded = np.rint(typical * 1e5)
    clusters: dict[int, list[int]] = {}
    for row in np.lexsort((np.arange(len(labels)), -rounded)).tolist():
        clusters.setdefault(int(labels[row]), []).append(row)
    return sorted(clusters.values(), key=lambda rows: (-len(rows), rows[0]))
