"""Texts to token ids, by the model's own tokenizer: cut at the length the model reads, never padded.

A published `tokenizer.json` may carry settings of its own for both (one pads everything to 128 and cuts there);
neither is taken over. What was cut is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from proto.ops.embed import TextKind
from services.embed.weights import ModelFiles

Ids = npt.NDArray[np.int32]
"""Token ids of one text, special tokens included."""

_CHARACTERS_A_TOKEN = 16
"""First guess at how much of a long text suffices; three to five are usual, and a wrong guess only costs another
look."""


class Tokens(msgspec.Struct, frozen=True):
    """The ids of each text and the indices of those that were cut."""

    ids: list[Ids]
    truncated: list[int]


class TextTokenizer:
    """Safe to use from several threads; the work is done without the interpreter's lock."""

    def __init__(self, files: ModelFiles) -> None:
        self._max_tokens = files.max_tokens
        self._prefix = {TextKind.QUERY: files.query_prefix, TextKind.PASSAGE: files.passage_prefix}
        self._tokenizer = Tokenizer.from_file(str(files.tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=files.max_tokens)

    def encode(self, texts: Sequence[str], kind: TextKind) -> Tokens:
        """Token ids of each text with the model's prefix for `kind` before it."""
        prefix = self._prefix[kind]
        full = [prefix + text for text in texts]
        ids: list[Ids] = []
        truncated: list[int] = []
        # A text of megabytes is not tokenized to keep 256 tokens of it.
        window = self._max_tokens * _CHARACTERS_A_TOKEN
        for index, encoding in enumerate(self._tokenizer.encode_batch_fast([text[:window] for text in full])):
            size = window
            while not encoding.overflowing and size < len(full[index]):
                size *= 4
                encoding = self._tokenizer.encode(full[index][:size])
            ids.append(np.array(encoding.ids, dtype=np.int32))
            if encoding.overflowing:
                truncated.append(index)
        return Tokens(ids, truncated)
