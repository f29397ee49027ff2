"""Vectors for tests of indexes, and what a search must answer, by comparing with every one of them."""

from __future__ import annotations

import apsw
import numpy as np

from services.retrieve.index.segment import VectorLimits
from services.retrieve.index.vectors import HalfMatrix, ItemIds, Matrix, Scored
from services.retrieve.local_collection import LocalCollection
from tests.unit.retrieve.rig import near, vector

TINY = VectorLimits(flat_vectors=8, overfetch=1000, exact_rows=0, struck_share=0.25)
"""Every switch within a few dozen vectors; the codes fetch so many that nothing is lost, and filters use them too."""


def half(seed: int, count: int, dimensions: int) -> HalfMatrix:
    """Unit vectors as the database has them."""
    rows = np.random.default_rng(seed).standard_normal((count, dimensions))
    halves: HalfMatrix = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    return halves


def query(seed: int, dimensions: int) -> Matrix:
    asked: Matrix = half(seed, 1, dimensions)[0].astype(np.float32)
    return asked


def clustered(seed: int, count: int, dimensions: int) -> Matrix:
    """Unit vectors in clusters, a few of their numbers far larger than the others, as models make them."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(8, count // 200), dimensions)).astype(np.float32)
    rows = centres[rng.integers(0, len(centres), count)]
    rows += 0.7 * rng.standard_normal((count, dimensions)).astype(np.float32)
    rows *= np.exp(0.7 * rng.standard_normal(dimensions)).astype(np.float32)
    unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def assert_nearest(
    found: Scored, truth: dict[int, Matrix], asked: Matrix, limit: int, allowed: ItemIds | None = None
) -> None:
    """`found` is what a comparison with all of `truth` (those allowed) finds, best first, each with its cosine."""
    wanted = {
        item_id: float(row @ asked) for item_id, row in truth.items() if allowed is None or item_id in allowed.tolist()
    }
    best = sorted(wanted.values(), reverse=True)[:limit]
    assert {item_id for item_id, _ in found} <= wanted.keys()
    assert len({item_id for item_id, _ in found}) == len(found) == len(best)
    assert np.allclose([score for _, score in found], best, atol=1e-4)
    assert all(abs(wanted[item_id] - score) < 1e-4 for item_id, score in found)


async def assert_searches_as_the_database_says(collection: LocalCollection) -> None:
    """Vector searches answer as a comparison with every vector in the database does."""

    def stored(db: apsw.Connection) -> dict[int, Matrix]:
        rows = db.execute(
            "SELECT vectors.item_id, vector FROM vectors JOIN items ON items.item_id = vectors.item_id "
            "WHERE model_id = (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'model')"
        )
        return {int(i): np.frombuffer(vector, dtype="<f2").astype(np.float32) for i, vector in rows}

    truth = await collection.on_reader(stored)
    assert len(collection.vectors) == len(truth)
    for word in ("alpha", "round3 piece1", "omega"):
        asked = vector(word)
        assert_nearest(await near(collection, asked, 10, None), truth, asked, 10)
        assert_nearest(await near(collection, asked, len(truth) + 5, None), truth, asked, len(truth) + 5)
        cosines = collection.vectors.index.cosines(asked, list(truth)) if collection.vectors.index else {}
        assert all(abs(cosines[i] - float(row @ asked)) < 1e-4 for i, row in truth.items())


async def tended(collection: LocalCollection) -> None:
    """All that is due is done."""
    while await collection.vectors.write_due_segment(collection):
        pass
