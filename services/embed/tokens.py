"""Texts to token ids, by the model's own tokenizer and with its prefixes; what was cut is reported."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from proto.errors import InvalidParams
from proto.ops.embed import TextKind
from services.embed.weights import ModelFiles
from services.runtime.models.checkpoint import Ids, encode_cut, open_tokenizer


class Tokens(msgspec.Struct, frozen=True):
    """The ids of each text and the indices of those that were cut."""

    ids: list[Ids]
    truncated: list[int]


class TextTokenizer:
    """Safe to use from several threads; the work is done without the interpreter's lock."""

    def __init__(self, files: ModelFiles) -> None:
        self._max_tokens = files.max_tokens
        self._prefix = {TextKind.QUERY: files.query_prefix, TextKind.PASSAGE: files.passage_prefix}
        self._tokenizer = open_tokenizer(files)
        self._empty: list[int] = self._tokenizer.encode("").ids
        self._vocabulary: int = self._tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str], kind: TextKind) -> Tokens:
        """Token ids of each text with the model's prefix for `kind` before it."""
        prefix = self._prefix[kind]
        encodings = encode_cut(self._tokenizer, [prefix + text for text in texts], self._max_tokens)
        return Tokens(
            [np.array(encoding.ids, dtype=np.int32) for encoding in encodings],
            [index for index, encoding in enumerate(encodings) if encoding.overflowing],
        )

    def check(self, given: Sequence[Sequence[int]]) -> list[Ids]:
        """Token ids that a caller made, as they go into the model.

        Raises:
            InvalidParams: they are not what this model's tokenizer makes: ids of another vocabulary would give vectors
                that look right and mean nothing.
        """
        checked: list[Ids] = []
        for index, ids in enumerate(given):
            field = f"tokens[{index}]"
            if not ids or min(ids) < 0 or max(ids) >= self._vocabulary:
                raise InvalidParams(
                    f"parameter `{field}`: ids of the model's own vocabulary are from 0 to {self._vocabulary - 1}, and "
                    "at least one",
                    field=field,
                )
            if self._empty and (ids[0], ids[-1]) != (self._empty[0], self._empty[-1]):
                raise InvalidParams(
                    f"parameter `{field}`: ids of the model's own tokenizer start with {self._empty[0]} and end with "
                    f"{self._empty[-1]} (its special tokens), these do not; those of another tokenizer cannot be used: "
                    "send the text instead",
                    field=field,
                )
            if len(ids) > self._max_tokens:
                raise InvalidParams(
                    f"parameter `{field}`: {len(ids)} tokens; the model reads at most {self._max_tokens}", field=field
                )
            checked.append(np.array(ids, dtype=np.int32))
        return checked
