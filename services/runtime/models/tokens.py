"""A model's own tokenizer: cut at the length the model reads, never padded.

A published `tokenizer.json` may carry settings of its own for both (one pads everything to 128 and cuts there);
neither is taken over. A text of megabytes is not tokenized to keep 256 tokens of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

from services.runtime.models.checkpoint import Checkpoint

Ids = npt.NDArray[np.int32]
"""Token ids of one text, special tokens included."""

TOKENIZE_AT_ONCE = 64
"""Texts of one call to the tokenizer: between two of them a call can be cancelled."""

_CHARACTERS_A_TOKEN = 16
"""First guess at how much of a long text suffices; three to five are usual, and a wrong guess only costs another
look."""


def open_tokenizer(files: Checkpoint, *, cut: str = "longest_first") -> Tokenizer:
    """The tokenizer of a model, set to cut (`only_second`: of a pair, the second text alone) and not to pad."""
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=files.max_tokens, strategy=cut)
    return tokenizer


def encode_cut(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, *, before: str | None = None
) -> list[Encoding]:
    """The encoding of each text, or of each pair (`before`, text), as if all of it had been tokenized.

    Blocks, without the interpreter's lock.
    """

    def given(text: str) -> str | tuple[str, str]:
        return text if before is None else (before, text)

    window = max_tokens * _CHARACTERS_A_TOKEN
    encodings: list[Encoding] = tokenizer.encode_batch_fast([given(text[:window]) for text in texts])
    for index, text in enumerate(texts):
        size = window
        while not encodings[index].overflowing and size < len(text):
            size *= 4
            encodings[index] = tokenizer.encode_batch_fast([given(text[:size])])[0]
    return encodings
