"""Converts texts to token ids, with the model's own tokenizer and prefixes; truncation is reported."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import numpy as np

from proto.errors import InvalidParams
from proto.ops.embed import TextKind
from services.embed.weights import ModelFiles
from services.shared.models.checkpoint import Ids, encode_cut, open_tokenizer


class Tokens(msgspec.Struct, frozen=True):
    """The ids of each text, and the indices of truncated texts."""

    ids: list[Ids]
    truncated: list[int]


class TextTokenizer:
    """A thread-safe tokenizer; it releases the interpreter lock while it works."""

    def __init__(self, files: ModelFiles) -> None:
        self._max_tokens = files.max_tokens
        self._prefix = {TextKind.QUERY: files.query_prefix, TextKind.PASSAGE: files.passage_prefix}
        self._tokenizer = open_tokenizer(files)
        probe = self._tokenizer.encode("a")
        added: list[int] = probe.special_tokens_mask
        before, after = (len(list(itertools.takewhile(bool, side))) for side in (added, reversed(added)))
        self.special = before, after
        """How many special tokens stand before and after a text: some models have none before it."""
        self._first: list[int] = probe.ids[:before]
        self._last: list[int] = probe.ids[len(probe.ids) - after :]
        self._around = {kind: len(self._tokenizer.encode(prefix).ids) for kind, prefix in self._prefix.items()}
        self._vocabulary: int = self._tokenizer.get_vocab_size()

    def encode(self, texts: Sequence[str], kind: TextKind) -> Tokens:
        """Return the token ids of each text, preceded by the model's prefix for `kind`."""
        prefix = self._prefix[kind]
        encodings = encode_cut(self._tokenizer, [prefix + text for text in texts], self._max_tokens)
        return Tokens(
            [np.array(encoding.ids, dtype=np.int32) for encoding in encodings],
            [index for index, encoding in enumerate(encodings) if encoding.overflowing],
        )

    def check(self, given: Sequence[Sequence[int]]) -> list[Ids]:
        """Validate token ids made by a caller, and convert them to the model's input.

        Raises:
            InvalidParams: this model's tokenizer would not produce them: ids of another vocabulary would give vectors
                that look right and mean nothing.
        """
        for index, ids in enumerate(given):
            wrong = ""
            if not ids or min(ids) < 0 or max(ids) >= self._vocabulary:
                wrong = f"at least one id is needed, all of the model's own vocabulary: 0 to {self._vocabulary - 1}"
            elif not self._is_framed(ids):
                parts = ("start with", self._first), ("end with", self._last)
                frame = " and ".join(f"{how} {', '.join(map(str, some))}" for how, some in parts if some)
                wrong = (
                    f"must {frame} (the model's special tokens); ids of other tokenizers cannot be used: send the "
                    "text instead"
                )
            elif len(ids) > self._max_tokens:
                wrong = f"{len(ids)} tokens; the model reads at most {self._max_tokens}"
            if wrong:
                raise InvalidParams(f"parameter `tokens[{index}]`: {wrong}", field=f"tokens[{index}]")
        return [np.array(ids, dtype=np.int32) for ids in given]

    def per_letter(self, texts: Sequence[str], ids: Sequence[Ids], kind: TextKind) -> float:
        """Return how many tokens the texts have per letter or digit, without prefixes and special tokens.

        A tokenizer splits words of languages that it was not made for into their letters.
        """
        own = sum(map(len, ids)) - len(texts) * self._around[kind]
        return own / max(1, sum(character.isalnum() for text in texts for character in text))

    def _is_framed(self, ids: Sequence[int]) -> bool:
        before, after = self.special
        return list(ids[:before]) == self._first and list(ids[max(before, len(ids) - after) :]) == self._last
