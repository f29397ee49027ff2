"""Which cross-encoder is taken (the one that the settings name, or a known good one where it is here already), and how
it reads a query and a text: as one sequence of tokens.

The query keeps up to half of what the model reads, the text has the rest: a long query must not push the text out.
What was cut is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from linckia.proto.models import cross_encoder
from linckia.services.runtime.models.checkpoint import (
    Checkpoint,
    Ids,
    ModelMissing,
    encode_cut,
    open_tokenizer,
    read_checkpoint,
)
from linckia.services.runtime.models.folders import locate, not_cached

AUTO = "auto"
NONE = "none"


def resolve(model: str = AUTO, *, max_tokens: int | None = None) -> Checkpoint | None:
    """The files of `model`: `auto`, a folder, or an id in the local Hugging Face cache; None where it is `none`, or
    `auto` finds none.

    Args:
        max_tokens: read at most this many tokens of a query and its text, if the model reads that many.

    Raises:
        ModelMissing: there is no such model here, it has no safetensors, or it does not answer one score.
    """
    if model == NONE:
        return None
    # The smallest of those that are known to be good; searches wait for it.
    if model == AUTO and not (model := cross_encoder()):
        return None
    if (found := locate(model)) is None:
        raise not_cached(model)
    files = read_checkpoint(*found)
    # Without one, transformers would put a new head of random weights on an encoder.
    if not any(str(name).endswith("ForSequenceClassification") for name in files.config.get("architectures") or ()):
        raise ModelMissing(
            f"{files.folder} is no cross-encoder: its config.json names no sequence classifier", field="model"
        )
    if max_tokens is not None:
        files = msgspec.structs.replace(files, max_tokens=min(files.max_tokens, max_tokens))
    return files


class Pair(msgspec.Struct, frozen=True):
    """Token ids of one pair, special tokens included, and for each whether it is of the query (0) or the text (1)."""

    ids: Ids
    types: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


class Pairs(msgspec.Struct, frozen=True):
    """The pair of each text, the indices of the texts that were cut, and whether the query was."""

    pairs: list[Pair]
    truncated: list[int]
    query_truncated: bool


class PairTokenizer:
    """Safe to use from several threads; the work is done without the interpreter's lock."""

    def __init__(self, files: Checkpoint) -> None:
        self._max_tokens = files.max_tokens
        self._tokenizer = open_tokenizer(files, cut="only_second")
        self._query = open_tokenizer(msgspec.structs.replace(files, max_tokens=max(4, files.max_tokens // 2)))

    def cut_query(self, query: str) -> str:
        """As much of the query as is read."""
        # It has been bounded by its operation, so all of it may be looked at.
        encoding = self._query.encode(query)
        if not encoding.overflowing:
            return query
        return query[: max(end for _, end in encoding.offsets)]

    def encode(self, query: str, texts: Sequence[str]) -> Pairs:
        """The pairs of `query` with each text.  Blocks."""
        kept = self.cut_query(query)
        encodings = encode_cut(self._tokenizer, texts, self._max_tokens, before=kept)
        return Pairs(
            [
                Pair(np.array(encoding.ids, dtype=np.int32), np.array(encoding.type_ids, dtype=np.int32))
                for encoding in encodings
            ],
            [index for index, encoding in enumerate(encodings) if encoding.overflowing],
            kept != query,
        )
