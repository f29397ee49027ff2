"""How long a text is to the embedding model, for those that cut texts so that the model reads all of each piece.

The model's own tokenizer counts, without its weights and in the process that cuts: 16 MB and a tenth of a second once
for the packaged model. Where no model is on this machine an estimate counts, which is too high rather than too low.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from linckia.services.runtime.models.folders import AUTO, ModelMissing, locate_embedder, most_tokens, read_json

SETTING = "embedder"
"""Under which a service that cuts texts finds the settings of `embed` among its own."""

LONGEST = 512
"""Tokens of a piece, however many the model reads: a vector of pages stands for none of them."""

_SPARE = 10
"""Of the model's tokens: the special ones, and a prefix such as `passage: `."""

_CHARS_PER_TOKEN = 8
"""At most: to some tokenizers a word of a thousand letters is one token, by which nothing is said."""

_LONG_WORD = 64
"""Characters; such a one is not met again."""

_WORDS = re.compile(r"[^\W\d_]+|\S")
_ASCII_CHARS_PER_TOKEN = 2


class Settings(msgspec.Struct):
    """Those of `[services.embed]` that count here."""

    model: str = AUTO
    max_tokens: int | None = None


class Measure:
    """Counts the tokens of texts; usable from any thread.

    Attributes:
        window: tokens of title, heading and text that the model reads of one piece.
        signature: another one would cut the same text in other places.
    """

    def __init__(self, window: int, signature: str, load: Callable[[], Callable[[str], int]]) -> None:
        self.window = window
        self.signature = f"{signature}-{window}"
        self._load = load

    def __call__(self, text: str) -> int:
        """How many tokens `text` is."""
        return max(self._count(text), len(text) // _CHARS_PER_TOKEN)

    @functools.cached_property
    def _count(self) -> Callable[[str], int]:
        # At the first text: a service that only answers needs none.
        return self._load()


ROUGH = Measure(256 - _SPARE, "rough", lambda: lambda text: len(text) // 4)
"""For pieces that are looked at and not embedded."""


def measure(settings: Mapping[str, Any]) -> Measure:
    """By the model that a service's `settings` name under `SETTING`.  Blocks on the disk."""
    wanted = msgspec.convert(settings.get(SETTING, {}), Settings)
    most = min(wanted.max_tokens or LONGEST, LONGEST)
    try:
        _, folder = locate_embedder(wanted.model)
        most = min(most, most_tokens(folder, read_json(folder / "config.json")))
        mark = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()[:16]
    except (ModelMissing, OSError):
        return Measure(max(16, min(most, 256) - _SPARE), "estimate", lambda: estimate)
    return Measure(max(16, most - _SPARE), mark, functools.partial(_tokenizer, folder / "tokenizer.json"))


def _tokenizer(path: Path) -> Callable[[str], int]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001  # it raises nothing more telling; the model says what is wrong with it
        return estimate
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    if count("a\n\n    b") > count("a b"):
        return count
    # White space is no token: a text is as long as its words, of which most were counted before.
    known = functools.lru_cache(65_536)(count)
    return lambda text: sum(known(word) if len(word) <= _LONG_WORD else count(word) for word in text.split())


def estimate(text: str) -> int:
    """At least as many tokens as nearly any tokenizer makes of `text`."""
    return sum(
        -(-len(word) // _ASCII_CHARS_PER_TOKEN) if word.isascii() else len(word.encode())
        for word in _WORDS.findall(text)
    )
