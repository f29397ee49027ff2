"""Finds the cross-encoder, and tokenizes pairs of a query and a text.

The model is the one named in the settings, or a known good one that is already on this machine. A query and a text form
one sequence of tokens. The query gets up to half of the model's maximum, the text the rest: a long query must not push
the text out. Truncation is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from proto.host.models import cross_encoder, known
from services.shared.models.checkpoint import Checkpoint, Ids, ModelMissing, encode_cut, open_tokenizer, read_checkpoint
from services.shared.models.folders import locate, not_cached

AUTO = "auto"
NONE = "none"


def resolve(model: str = AUTO, *, max_tokens: int | None = None) -> Checkpoint | None:
    """Return the files of `model`: `auto`, a folder, or an id in the local Hugging Face cache; None if it is `none`, or
    `auto` finds none.

    Args:
        max_tokens: read at most this many tokens of a query and its text, if the model reads that many.

    Raises:
        ModelMissing: the model is not here, has no safetensors, or does not return a single score.
    """
    if model == NONE:
        return None
    # The smallest of the known good ones, since searches wait for it.
    if model == AUTO and not (model := cross_encoder()):
        return None
    if (found := locate(model)) is None:
        raise not_cached(model)
    files = read_checkpoint(*found)
    # Otherwise transformers would add a new head with random weights to an encoder.
    classifies = any(
        str(name).endswith("ForSequenceClassification") for name in files.config.get("architectures") or ()
    )
    if not classifies and not is_judge(files):
        raise ModelMissing(
            f"{files.folder} is not a cross-encoder: its config.json names no sequence classifier", field="model"
        )
    if max_tokens is not None:
        files = msgspec.structs.replace(files, max_tokens=min(files.max_tokens, max_tokens))
    return files


def is_judge(files: Checkpoint) -> bool:
    """Return whether the model is a known language model that answers whether a text is relevant."""
    listed = known(files.name)
    return listed is not None and listed.judges


class Pair(msgspec.Struct, frozen=True):
    """Token ids of a pair, including special tokens, and for each whether it belongs to the query (0) or the text
    (1)."""

    ids: Ids
    types: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


class Pairs(msgspec.Struct, frozen=True):
    """The pair of each text, the indices of truncated texts, and whether the query was truncated."""

    pairs: list[Pair]
    truncated: list[int]
    query_truncated: bool


class PairTokenizer:
    """A thread-safe tokenizer; it releases the interpreter lock while it works."""

    def __init__(self, files: Checkpoint) -> None:
        self._max_tokens = files.max_tokens
        self._tokenizer = open_tokenizer(files, cut="only_second")
        self._query = open_tokenizer(msgspec.structs.replace(files, max_tokens=max(4, files.max_tokens // 2)))

    def cut_query(self, query: str) -> str:
        """Return the part of the query that is read."""
        # The operation limits its length, so the whole query may be tokenized.
        encoding = self._query.encode(query)
        if not encoding.overflowing:
            return query
        return query[: max(end for _, end in encoding.offsets)]

    def encode(self, query: str, texts: Sequence[str]) -> Pairs:
        """Return the pairs of `query` with each text. Blocks."""
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
