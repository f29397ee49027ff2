"""Convert the documents of client collections to groups, and their vectors to unit vectors.

Invalid input raises InvalidParams, which names the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import trio

from proto.errors import InvalidParams
from proto.ops.embed import EmbedResult, EmbedTexts, pack
from proto.ops.retrieve import Group, Item
from services.retrieve import item_store
from services.retrieve import operations as ops
from services.retrieve.collection import CLIENT_VECTORS
from services.retrieve.filters import check_metadata
from services.retrieve.ranking.queries import QueryCall
from services.shared.models.measure import Measure
from services.shared.text.cutting import split_line

_HALF = 2.0**-11
"""Relative rounding error of a float16."""


def groups_of(documents: Sequence[ops.Document], dimensions: int | None, measure: Callable[[], Measure]) -> list[Group]:
    """Convert documents with texts, or with vectors if `dimensions` is set.  Blocks.  Raises InvalidParams."""
    ids = [each.id for each in documents]
    for place, id_ in enumerate(ids):
        if (before := ids.index(id_)) != place:
            raise _wrong(f"documents[{place}].id", f"{id_!r} is a duplicate of documents[{before}].id")
    given = enumerate(documents)
    if dimensions is not None:
        return [_group(place, each, dimensions, [_given_piece(place, each, dimensions)]) for place, each in given]
    return [_group(place, each, None, _pieces(place, each, measure())) for place, each in given]


def takes(dimensions: int | None) -> str:
    return "takes text" if dimensions is None else f"takes vectors of {dimensions} numbers"


def _pieces(place: int, each: ops.Document, measure: Measure) -> list[Item]:
    """Cut a text into pieces that fit the model's window."""
    if each.vector is not None:
        raise _wrong(f"documents[{place}].vector", "the collection takes text and embeds it itself; leave this out")
    if not each.text.strip():
        raise _wrong(f"documents[{place}].text", "is blank; give the text to be searched")
    cut = split_line(0, each.text, measure.window, measure)
    return [Item(key=str(n), text=piece.text) for n, piece in enumerate(cut)]


def _given_piece(place: int, each: ops.Document, dimensions: int) -> Item:
    field = f"documents[{place}].vector"
    if each.vector is None:
        raise _wrong(field, f"is missing; the collection {takes(dimensions)}")
    return item_store.ItemWithVector(
        key="0", text=each.text, vector=_unit(each.vector, dimensions, field).astype("<f2").tobytes()
    )


def _group(place: int, each: ops.Document, dimensions: int | None, pieces: list[Item]) -> Group:
    check_metadata(each.payload, f"documents[{place}].payload")
    # The document's size is stored with its first piece.
    pieces[0] = msgspec.structs.replace(pieces[0], metadata={"bytes": size_of(each, dimensions)})
    return Group(id=each.id, items=pieces, metadata=each.payload)


def size_of(each: ops.Document, dimensions: int | None) -> int:
    given = (each.id.encode(), each.text.encode("utf-8", "surrogatepass"), msgspec.json.encode(each.payload))
    return sum(map(len, given)) + 2 * (dimensions or 0)


def _unit(vector: Sequence[float], dimensions: int, field: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Normalise `vector` to length 1.  Raises InvalidParams."""
    if len(vector) != dimensions:
        raise _wrong(field, f"has {len(vector)} numbers; the collection {takes(dimensions)}")
    given = np.array(vector, dtype=np.float64)
    # Scale by the largest component first, so that squares neither underflow nor overflow.
    most = float(np.abs(given).max())
    if not math.isfinite(most) or most == 0:
        raise _wrong(field, "must have only finite numbers, and not all of them 0")
    if most < 2 and abs(np.linalg.norm(given) - 1) <= _HALF:
        # Leave unit vectors unchanged, so that export and import round-trip bit for bit.
        return given.astype(np.float32)
    given /= most
    unit: np.ndarray[tuple[int], np.dtype[np.float32]] = (given / np.linalg.norm(given)).astype(np.float32)
    return unit


def given_query(vector: Sequence[float] | None, dimensions: int) -> QueryCall | None:
    """Return a replacement for the embedder that yields the client's vector; None without a vector."""
    if vector is None:
        return None
    unit = _unit(vector, dimensions, "vector")

    async def embed(query: EmbedTexts, timeout_s: float) -> EmbedResult:
        await trio.lowlevel.checkpoint()
        return EmbedResult(vectors=pack(unit[None, :]), fingerprint=f"{CLIENT_VECTORS}{dimensions}")

    return embed


def _wrong(field: str, why: str) -> InvalidParams:
    return InvalidParams(f"parameter `{field}`: {why}", field=field)
