"""What clients give their collections, as the search holds it: documents as groups, vectors as unit vectors.

What does not fit is an InvalidParams that names the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import trio

from linckia.proto.errors import InvalidParams
from linckia.proto.ops import collections as ops
from linckia.proto.ops.embed import EmbedResult, EmbedTexts, pack
from linckia.proto.ops.retrieve import Group, Item
from linckia.services.retrieve import store
from linckia.services.retrieve.collection import GIVEN
from linckia.services.retrieve.filters import check_metadata
from linckia.services.retrieve.queries import QueryCall
from linckia.services.runtime.models.measure import Measure
from linckia.services.runtime.text.cutting import bites

_HALF = 2.0**-11
"""What a number of 16 bits may differ by from what it stands for, as a part of it."""


def groups_of(documents: Sequence[ops.Document], dimensions: int | None, measure: Callable[[], Measure]) -> list[Group]:
    """Of texts, or of vectors of so many numbers; blocks.  Raises InvalidParams that names the field."""
    ids = [each.id for each in documents]
    for place, id_ in enumerate(ids):
        if (before := ids.index(id_)) != place:
            raise _wrong(f"documents[{place}].id", f"{id_!r} stands twice, at {before} as well")
    given = enumerate(documents)
    if dimensions is not None:
        return [_group(place, each, dimensions, [_given_piece(place, each, dimensions)]) for place, each in given]
    return [_group(place, each, None, _pieces(place, each, measure())) for place, each in given]


def takes(dimensions: int | None) -> str:
    return "takes text" if dimensions is None else f"takes vectors of {dimensions} numbers"


def _pieces(place: int, each: ops.Document, measure: Measure) -> list[Item]:
    """Of a text, each as long as the model reads, and together all of it."""
    if each.vector is not None:
        raise _wrong(f"documents[{place}].vector", "the collection takes text, which is embedded here")
    if not each.text.strip():
        raise _wrong(f"documents[{place}].text", "is blank; say what is to be found")
    cut = bites(0, each.text, measure.window, measure)
    return [Item(key=str(n), text=piece.text) for n, piece in enumerate(cut)]


def _given_piece(place: int, each: ops.Document, dimensions: int) -> Item:
    field = f"documents[{place}].vector"
    if each.vector is None:
        raise _wrong(field, f"is not there; the collection {takes(dimensions)}")
    return store.Given(key="0", text=each.text, vector=_unit(each.vector, dimensions, field).astype("<f2").tobytes())


def _group(place: int, each: ops.Document, dimensions: int | None, pieces: list[Item]) -> Group:
    check_metadata(each.payload, f"documents[{place}].payload")
    # What the document counts for stands with its first piece.
    pieces[0] = msgspec.structs.replace(pieces[0], metadata={"bytes": size_of(each, dimensions)})
    return Group(id=each.id, items=pieces, metadata=each.payload)


def size_of(each: ops.Document, dimensions: int | None) -> int:
    given = (each.id.encode(), each.text.encode("utf-8", "surrogatepass"), msgspec.json.encode(each.payload))
    return sum(map(len, given)) + 2 * (dimensions or 0)


def _unit(vector: Sequence[float], dimensions: int, field: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """As a vector of length 1.  Raises InvalidParams that names the field."""
    if len(vector) != dimensions:
        raise _wrong(field, f"has {len(vector)} numbers; the collection {takes(dimensions)}")
    given = np.array(vector, dtype=np.float64)
    # Of the largest, so that the squares of very small or large ones are no nought and not infinite.
    most = float(np.abs(given).max())
    if not math.isfinite(most) or most == 0:
        raise _wrong(field, "has no direction: a number in it is not finite, or all are 0")
    if most < 2 and abs(np.linalg.norm(given) - 1) <= _HALF:
        # As it is stored, so that what was exported and is taken in is the same to the bit.
        return given.astype(np.float32)
    given /= most
    unit: np.ndarray[tuple[int], np.dtype[np.float32]] = (given / np.linalg.norm(given)).astype(np.float32)
    return unit


def given_query(vector: Sequence[float] | None, dimensions: int) -> QueryCall | None:
    """What answers a query's vector in the embedder's place."""
    if vector is None:
        return None
    unit = _unit(vector, dimensions, "vector")

    async def embed(query: EmbedTexts, timeout_s: float) -> EmbedResult:
        await trio.lowlevel.checkpoint()
        return EmbedResult(vectors=pack(unit[None, :]), fingerprint=f"{GIVEN}{dimensions}")

    return embed


def _wrong(field: str, why: str) -> InvalidParams:
    return InvalidParams(f"parameter `{field}`: {why}", field=field)
