"""Operations of `embed`: texts to vectors."""

from __future__ import annotations

import enum
import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import CLIENT, Family, Params, Role
from proto.wire.front import SERVICE as FRONT

internal = Family("embed", role=Role.INTERNAL, callers=("retrieve", CLIENT), within_roots=True)

MODEL_MISSING = "model_missing"
"""Key in `Failure.data` of calls that fail because no model is installed; its value is the command that installs it, or
""."""

ITEM_BYTES = {"|u1": 1, "|i1": 1, "<f2": 2, "<f4": 4, "<f8": 8, "<i4": 4, "<i8": 8, "<u4": 4, "<u8": 8}
"""Bytes per item of the permitted dtypes (little-endian), by numpy's names."""


class Array(msgspec.Struct, frozen=True, array_like=True):
    """A numeric array in C order: a list of floats costs fifteen times more than its bytes at 1 MB.

    This module does not import numpy: unpack with `np.frombuffer(a.data, a.dtype).reshape(a.shape)`. `data` is a view
    of the message it arrived in, so copy whatever must outlive it.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def check(self) -> None:
        """Raises InvalidParams if dtype, shape and the number of bytes do not match."""
        if self.dtype not in ITEM_BYTES:
            raise InvalidParams(f"array of dtype {self.dtype!r}; expected one of {', '.join(ITEM_BYTES)}")
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if any(n < 0 for n in self.shape) or len(self.data) != expected:
            raise InvalidParams(f"array of shape {self.shape} needs {expected} bytes, has {len(self.data)}")


def pack(array: Any) -> Array:
    """Convert a numpy array to an `Array`, with one copy, in C order."""
    packed = Array(array.dtype.str, tuple(array.shape), memoryview(array.tobytes()))
    packed.check()
    return packed


class TextKind(enum.StrEnum):
    """Selects the model's text prefix and the queue: queries never wait behind passages."""

    QUERY = "query"
    PASSAGE = "passage"


class EmbedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One vector for each text, in their order."""

    vectors: Annotated[Array, Meta(description="float32, shape (texts, dimensions), each row of length 1")]
    fingerprint: Annotated[str, Meta(description="Of model, weights and pooling; never compare vectors of two")]
    truncated: Annotated[list[int], Meta(description="Indices of texts that were longer than the model reads")] = []
    tokens: Annotated[int, Meta(description="Tokens that went through the model")] = 0
    tokens_per_letter: Annotated[
        float, Meta(description="Of the texts' letters and digits; above 0.5, the model hardly knows the language")
    ] = 0.0
    background: (
        Annotated[
            tuple[float, float],
            Meta(description="Mean and standard deviation of the cosines of unrelated texts"),
        ]
        | None
    ) = None


@internal.read("embed_texts", deadline_s=120, callers=("knowledge", "retrieve", FRONT, CLIENT))
class EmbedTexts(Params[EmbedResult], frozen=True, kw_only=True):
    """Turn texts into unit vectors with the embedding model in use."""

    texts: Annotated[list[str], Meta(max_length=4096, description="The texts, without any prefix of the model's")] = []
    kind: Annotated[TextKind, Meta(description="Whether these are queries or passages")] = TextKind.PASSAGE
    tokens: Annotated[
        list[list[int]],
        Meta(
            max_length=4096, description="Instead of texts: token ids of the model's tokenizer, special tokens included"
        ),
    ] = []
    fingerprint: Annotated[str, Meta(description="Of an earlier model to use; empty: the current one")] = ""


class MaxSimResult(msgspec.Struct, frozen=True, kw_only=True):
    """How well each text matches the query."""

    scores: Annotated[
        list[float],
        Meta(description="In [-1, 1], of the first texts, as far as time allowed; comparable within one query only"),
    ]


@internal.read("embed_maxsim", deadline_s=60)
class EmbedMaxSim(Params[MaxSimResult], frozen=True, kw_only=True):
    """Compare a query with texts token by token (late interaction): slower than vectors of whole texts, and finer."""

    query: Annotated[str, Meta(min_length=1, max_length=65536, description="The query")]
    texts: Annotated[list[str], Meta(min_length=1, max_length=4096, description="Candidates, the likeliest first")]
    within_ms: (
        Annotated[int, Meta(ge=1, description="Time limit; as many texts as the model's speed here allows")] | None
    ) = None


class EmbedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model in use."""

    model: str
    fingerprint: str
    dimensions: int
    max_tokens: int
    device: str
    precision: str


@internal.read("embed_model", deadline_s=120)
class EmbedModelParams(Params[EmbedModel], frozen=True, kw_only=True):
    """Return the embedding model in use, its device, and the fingerprint of its vectors."""
