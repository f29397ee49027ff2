"""Exact similarity search, similar pairs and clusters among the groups of a collection.

A group's vector is the normalised mean of its items' vectors. It represents the whole group, not one passage that many
groups share. Group vectors are computed from the database and cached until the collection changes.

Products are computed in blocks in a worker thread. This bounds memory, and a cancelled call ends between two blocks.
Clustering is deterministic, so an agent can refer to a cluster again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import faiss
import numpy as np
import numpy.typing as npt
import trio

from proto.ops.retrieve import Clustering, Grouping, Neighbour, Neighbours, Pair, Pairs, RetrieveClusters
from services.retrieve.collection import Collection
from services.retrieve.index.vectors import Matrix
from services.retrieve.store import Snapshot

BLOCK = 2048
"""Rows per block; a block has 16 MB of cosines."""

STRIP = 256
"""Rows compared with all others at a time; with 100,000 others that is 100 MB of cosines."""

MAX_CACHED_BYTES = 512 * 1024 * 1024
"""Larger sets of vectors are not cached."""

_MILLION = 1_000_000
"""Similarities are rounded to six decimal places.  Smaller differences are rounding errors of the products."""

_SLACK = 1e-4
_ROUNDS = 25
_FITTED_ROWS = 200_000
"""Rows used to fit the centres of k-means, but at least 256 per centre."""

Integers = npt.NDArray[np.int64]


class GroupVectors(NamedTuple):
    """Unit vectors of the groups that have one, ordered by id."""

    ids: list[str]
    matrix: Matrix
    waiting: int


class GroupNeighbours:
    """The group vectors of one collection, and queries on them."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._cached: tuple[object, GroupVectors] | None = None
        # One at a time: each call keeps a core busy.
        self._turn = trio.CapacityLimiter(1)

    async def vectors(self) -> GroupVectors:
        """Return the vectors as they are stored now."""
        # Read before the snapshot, so that a concurrent commit makes the cached vectors stale.
        version = await self.collection.version()
        if self._cached is not None and self._cached[0] == version:
            return self._cached[1]
        self._cached = None
        loaded = await self.collection.read(load)
        if loaded.matrix.nbytes <= MAX_CACHED_BYTES:
            self._cached = (version, loaded)
        return loaded

    async def similar(self, group: str, limit: int, threshold: float) -> Neighbours:
        """See `RetrieveSimilar`."""
        vectors = await self.vectors()
        found = await trio.to_thread.run_sync(_nearest, vectors, group, limit, threshold, limiter=self._turn)
        return Neighbours(neighbours=found or [], has_vector=found is not None, vectors_waiting=vectors.waiting)

    async def pairs(self, threshold: float, limit: int, nearest: int | None = None) -> Pairs:
        """See `RetrievePairs`.  Cancellation: takes effect after the block that is being compared."""
        vectors = await self.vectors()
        matrix, ids = vectors.matrix, vectors.ids

        work = partial(
            best_pairs if nearest is None else partial(nearest_pairs, each=nearest), matrix, threshold, limit
        )
        found, more = await trio.to_thread.run_sync(work, limiter=self._turn)
        return Pairs(
            pairs=[Pair(first=ids[i], second=ids[j], similarity=similarity) for i, j, similarity in found],
            more=more,
            groups=len(ids),
            vectors_waiting=vectors.waiting,
        )

    async def clusters(self, params: RetrieveClusters) -> Grouping:
        """See `RetrieveClusters`.  Cancellation: takes effect after the block that is being compared."""
        vectors = await self.vectors()
        work = (
            partial(chains, vectors.matrix, params.threshold)
            if params.method is Clustering.SIMILAR
            else partial(kmeans, vectors.matrix, params.count or default_count(len(vectors.ids)))
        )
        rows = await trio.to_thread.run_sync(work, limiter=self._turn)
        return Grouping(
            clusters=[[vectors.ids[row] for row in cluster] for cluster in rows],
            groups=len(vectors.ids),
            vectors_waiting=vectors.waiting,
        )


def load(store: Snapshot) -> GroupVectors:
    """Read the vectors of the current model and compute each group's mean.  Blocks; runs in a trio worker thread."""
    waiting = store.progress().lacking
    model = store.current_model()
    if model is None:
        return GroupVectors([], np.empty((0, 0), dtype=np.float32), waiting)
    numbers: list[Integers] = []
    sums: list[Matrix] = []
    for groups, packed in store.group_vectors(model):
        trio.from_thread.check_cancelled()
        vectors = packed.astype(np.float32)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), _SLACK)
        starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
        partial: Matrix = np.add.reduceat(vectors, starts, axis=0)
        own = groups[starts]
        if numbers and numbers[-1][-1] == own[0]:
            # The group spans two chunks.
            sums[-1][-1] += partial[0]
            own, partial = own[1:], partial[1:]
        if len(own):
            numbers.append(own)
            sums.append(partial)
    if not numbers:
        return GroupVectors([], np.empty((0, model.dimensions), dtype=np.float32), waiting)
    matrix: Matrix = np.concatenate(sums)
    norms = np.linalg.norm(matrix, axis=1)
    names = store.group_names()
    order = sorted(
        (names[int(number)], row) for row, number in enumerate(np.concatenate(numbers)) if norms[row] > _SLACK
    )
    rows = np.fromiter((row for _, row in order), dtype=np.int64, count=len(order))
    unit: Matrix = matrix[rows] / norms[rows, None]
    return GroupVectors([name for name, _ in order], unit, waiting)


def _nearest(vectors: GroupVectors, group: str, limit: int, threshold: float) -> list[Neighbour] | None:
    """Return the nearest groups; None if the group has no vector."""
    row = int(np.searchsorted(np.array(vectors.ids, dtype=object), group)) if vectors.ids else 0
    if row == len(vectors.ids) or vectors.ids[row] != group:
        return None
    scores = _millionths(vectors.matrix @ vectors.matrix[row])
    keys = _keys(scores, np.zeros(len(scores), dtype=np.int64), np.arange(len(scores)), len(scores))
    keys = np.sort(np.delete(keys, row)[np.delete(scores, row) >= _least(threshold)])[:limit]
    return [Neighbour(group=vectors.ids[j], similarity=score) for _, j, score in _unpack(keys, len(scores))]


def best_pairs(matrix: Matrix, threshold: float, limit: int) -> tuple[list[tuple[int, int, float]], bool]:
    """Return the `limit` most similar pairs of rows at or above `threshold`, and whether there are more.

    Pairs are ordered by similarity, then by ids. Blocks; runs in a trio worker thread. A pair and its similarity are
    packed into one number (smaller is better), so that even millions of equal similarities (notes made from one
    template) are selected quickly.
    """
    count, least, more = len(matrix), _least(threshold), False
    keys: Integers = np.empty(0, dtype=np.int64)
    for top, left in _blocks(count):
        products = matrix[top : top + BLOCK] @ matrix[left : left + BLOCK].T
        places = np.flatnonzero(products >= (least - 1) / _MILLION)
        first, second = places // products.shape[1] + top, places % products.shape[1] + left
        scores = _millionths(products.reshape(-1)[places])
        fits = (first < second) & (scores >= least)
        keys = np.concatenate((keys, _keys(scores[fits], first[fits], second[fits], count)))
        if len(keys) > limit:
            more = True
            keys = np.partition(keys, limit - 1)[:limit]
            least = _MILLION - int(keys.max() // count**2)
    return list(_unpack(np.sort(keys), count)), more


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    """Yield the first rows of every pair of blocks."""
    for top in range(0, count, BLOCK):
        for left in range(top, count, BLOCK):
            trio.from_thread.check_cancelled()
            yield top, left


def nearest_pairs(matrix: Matrix, threshold: float, limit: int, each: int) -> tuple[list[tuple[int, int, float]], bool]:
    """Like `best_pairs`, but only with pairs where one row is among the `each` nearest of the other."""
    count = len(matrix)
    found: list[Integers] = [np.empty(0, dtype=np.int64)]
    for top in range(0, count, STRIP):
        trio.from_thread.check_cancelled()
        products = matrix[top : top + STRIP] @ matrix.T
        rows = np.arange(len(products))
        products[rows, top + rows] = -2.0
        near = np.argpartition(-products, min(each, count) - 1, axis=1)[:, :each].reshape(-1)
        own = np.repeat(rows, near.size // max(1, len(rows)))
        cosines, own = products[own, near], own + top
        scores = _millionths(cosines)
        enough = (scores >= _least(threshold)) & (cosines > -1.5)
        first, second = np.minimum(own, near)[enough], np.maximum(own, near)[enough]
        found.append(_keys(scores[enough], first, second, count))
    keys = np.unique(np.concatenate(found))
    # A pair has two products, which may round differently; the higher one counts.
    _, first_of_pair = np.unique(keys % count**2, return_index=True)
    keys = keys[np.sort(first_of_pair)]
    return list(_unpack(keys[:limit], count)), len(keys) > limit


def _least(threshold: float) -> int:
    return int(np.ceil(round(threshold * _MILLION, 3)))


def _millionths(products: Matrix) -> Integers:
    """Convert cosines to integer millionths."""
    rounded: Integers = np.rint(np.clip(products, -1.0, 1.0).astype(np.float64) * _MILLION).astype(np.int64)
    return rounded


def _keys(scores: Integers, first: Integers, second: Integers, count: int) -> Integers:
    # Fits into 63 bits for up to two million groups.
    return (_MILLION - scores) * count**2 + first * count + second


def _unpack(keys: Integers, count: int) -> Iterator[tuple[int, int, float]]:
    for key in keys.tolist():
        score, pair = divmod(key, count**2)
        yield pair // count, pair % count, (_MILLION - score) / _MILLION


def default_count(groups: int) -> int:
    """Return about sqrt(groups / 2), a common rule of thumb, and at least 1."""
    return max(1, min(1000, round(math.sqrt(groups / 2))))


def kmeans(matrix: Matrix, count: int) -> list[list[int]]:
    """Spherical k-means (Dhillon and Modha, 2001) on unit rows, initialised by k-means++ (Arthur and Vassilvitskii,
    2007).  Blocks; runs in a trio worker thread."""
    if not len(matrix):
        return []
    count = min(count, len(matrix))
    fitted = faiss.Kmeans(
        matrix.shape[1],
        count,
        niter=1,
        spherical=True,
        seed=0,
        init_method=faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        min_points_per_centroid=1,
        max_points_per_centroid=max(256, _FITTED_ROWS // count),
    )
    for _ in range(_ROUNDS):
        trio.from_thread.check_cancelled()
        fitted.train(matrix, init_centroids=fitted.centroids)
    scores, labels = fitted.index.search(matrix, 1)
    return _listed(labels[:, 0], scores[:, 0])


def chains(matrix: Matrix, threshold: float) -> list[list[int]]:
    """Connected components of rows whose similarity is at least `threshold`.  Blocks; runs in a trio worker thread."""
    count = len(matrix)
    roots: Integers = np.arange(count, dtype=np.int64)
    for top, left in _blocks(count):
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


def _listed(labels: Integers, typical: Matrix) -> list[list[int]]:
    """Group rows by label: largest cluster first, most typical row first."""
    rounded = np.rint(typical * 1e5)
    clusters: dict[int, list[int]] = {}
    for row in np.lexsort((np.arange(len(labels)), -rounded)).tolist():
        clusters.setdefault(int(labels[row]), []).append(row)
    return sorted(clusters.values(), key=lambda rows: (-len(rows), rows[0]))
