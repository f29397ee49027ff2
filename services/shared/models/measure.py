"""Measures texts in tokens of the embedding model, for services that cut texts into pieces that the model reads whole.

The model's own tokenizer counts, without its weights and in the process that cuts: 16 MB and a tenth of a second once
for the packaged model. Without a model on this machine, an estimate is used that is too high rather than too low.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.shared.models.folders import AUTO, ModelMissing, locate_embedder, most_tokens, read_json

SETTING = "embedder"
"""Key under which a service that cuts texts finds the settings of `embed` in its own settings."""

LONGEST = 512
"""Most tokens of a piece, even if the model reads more: one vector for several pages represents none of them well."""

_SPARE = 10
"""Tokens reserved for special tokens and a prefix such as `passage: `."""

_CHARS_PER_TOKEN = 8
"""Longest token assumed: to some tokenizers, a word of a thousand letters is one token that carries no meaning."""

_LONG_WORD = 64
"""Length in characters from which a word is not cached, because it is unlikely to recur."""

_WORDS = re.compile(r"[^\W\d_]+|\S")
_ASCII_CHARS_PER_TOKEN = 2


class EmbedderSettings(msgspec.Struct):
    """The settings from `[services.embed]` that matter here."""

    model: str = AUTO
    max_tokens: int | None = None


class Measure:
    """Counts the tokens of texts; usable from any thread.

    Attributes:
        window: how many tokens of title, heading and text the model reads per piece.
        signature: a different signature means that the same text would be cut in different places.
    """

    def __init__(self, window: int, signature: str, load: Callable[[], Callable[[str], int]]) -> None:
        self.window = window
        self.signature = f"{signature}-{window}"
        self._load = load

    def __call__(self, text: str) -> int:
        """Return the number of tokens in `text`."""
        return max(self._count(text), len(text) // _CHARS_PER_TOKEN)

    @functools.cached_property
    def _count(self) -> Callable[[str], int]:
        # Loaded at the first text: a service that only answers queries does not need it.
        return self._load()


ROUGH = Measure(256 - _SPARE, "rough", lambda: lambda text: len(text) // 4)
"""A measure for pieces that are shown but not embedded."""


def measure(settings: Mapping[str, Any]) -> Measure:
    """Return the measure for the model in a service's `settings` under `SETTING`. Blocks on disk reads."""
    wanted = msgspec.convert(settings.get(SETTING, {}), EmbedderSettings)
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
    except Exception:  # noqa: BLE001  # its errors have no specific type; loading the model reports the cause
        return estimate
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    if count("a\n\n    b") > count("a b"):
        return count
    # White space is not a token, so a text is as long as its words, most of which are already cached.
    known = functools.lru_cache(65_536)(count)
    return lambda text: sum(known(word) if len(word) <= _LONG_WORD else count(word) for word in text.split())


def estimate(text: str) -> int:
    """Return at least as many tokens as nearly any tokenizer produces for `text`."""
    return sum(
        -(-len(word) // _ASCII_CHARS_PER_TOKEN) if word.isascii() else len(word.encode())
        for word in _WORDS.findall(text)
    )
