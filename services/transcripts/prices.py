"""Model prices: list prices in US dollars per million tokens, as published by the providers on `AS_OF`.

Surcharges for long contexts and discounts for batches are not included. Settings replace and add entries
(`[transcripts.prices]`). The price of an unlisted model is unknown, and never assumed to be 0.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

AS_OF = "2026-05-13"

Rate = Annotated[float, Meta(ge=0, le=1e6)]


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens. Cache reads and writes cost as much as `input` unless stated, and writes for an
    hour twice as much."""

    input: Rate
    output: Rate
    cache_read: Rate | None = None
    cache_write: Rate | None = None
    cache_write_1h: Rate | None = None


class Tokens(msgspec.Struct, kw_only=True):
    """Tokens of one model; `read` and `written` (cache) are part of `input`, and `written_1h` (for an hour) of
    `written`."""

    input: int = 0
    output: int = 0
    read: int = 0
    written: int = 0
    written_1h: int = 0


NOT_STATED = "not stated"
"""Used in place of a model's name."""

_ANTHROPIC = """
claude-opus-4-6 claude-opus-4-5: 5 25
claude-opus-4-1 claude-opus-4 claude-opus-4-0 claude-3-opus: 15 75
claude-sonnet-4-6 claude-sonnet-4-5 claude-sonnet-4 claude-sonnet-4-0 claude-3-7-sonnet claude-3-5-sonnet: 3 15
claude-haiku-4-5: 1 5
claude-3-5-haiku: 0.8 4
"""
"""Input and output prices. A cache read costs a tenth of the input price, a write 1.25 times (five minutes) or twice
(an hour)."""

_OTHERS = """
gpt-5.5: 5 30 0.5
gpt-5.4: 2.5 15 0.25
gpt-5.4-mini: 0.75 4.5 0.075
gpt-5.3-codex gpt-5.2-codex gpt-5.2: 1.75 14 0.175
gpt-5.1 gpt-5.1-codex gpt-5 gpt-5-codex: 1.25 10 0.125
gpt-5-mini: 0.25 2 0.025
gpt-5-nano: 0.05 0.4 0.005
gpt-4.1: 2 8 0.5
gpt-4.1-mini: 0.4 1.6 0.1
gpt-4.1-nano: 0.1 0.4 0.025
gpt-4o: 2.5 10 1.25
gpt-4o-mini: 0.15 0.6 0.075
o3: 2 8 0.5
o4-mini: 1.1 4.4 0.275
gemini-3-pro-preview: 2 12 0.2
gemini-2.5-pro: 1.25 10 0.125
gemini-2.5-flash: 0.3 2.5 0.03
gemini-2.5-flash-lite: 0.1 0.4 0.01
"""
"""Prices of input, output and cache reads."""

_VENDOR = re.compile(r"^(?:[a-z]+(?:-[a-z]+)*\.)?(?:anthropic|openai)\.")
"""The prefix of Bedrock's ids: `us.anthropic.claude-…`."""
_WINDOW = re.compile(r"\[[^\]]*\]$")
"""The context window that an agent asks for: `[1m]`."""
_ROUTE = re.compile(r":(?:beta|extended|thinking|nitro|floor|exacto|online)$")
_REVISION = re.compile(r"-v\d+(?::\d+(?::\w+)?)?$")
"""The revision in ids of Bedrock and Vertex: `-v1:0`, `-v2:0:200k`, `-v2`."""
_DATED = re.compile(r"(?:[-@]latest|@default|[-@]20\d{6}|-20\d\d-\d\d-\d\d)$")
_DOTTED = re.compile(r"(?<=\d)\.(?=\d)")


def _listed() -> dict[str, Price]:
    found: dict[str, Price] = {}
    for table in (_ANTHROPIC, _OTHERS):
        for line in table.strip().splitlines():
            names, _, figures = line.partition(":")
            input_, output, *read = map(float, figures.split())
            cached = (read[0], None) if read else (input_ / 10, input_ * 1.25)
            price = Price(input=input_, output=output, cache_read=cached[0], cache_write=cached[1])
            found |= dict.fromkeys(names.split(), price)
    return found


class Prices:
    """The price table; entries from the settings take precedence."""

    def __init__(self, given: Mapping[str, Price]) -> None:
        self._table = {**_listed(), **given}
        self.digest = hashlib.sha256(msgspec.json.encode(self._table, order="sorted")).hexdigest()[:16]
        """A digest of the table, which changes with its content."""

    def of(self, model: str) -> Price | None:
        """Return the price of a model, found by its full name or its name without vendor, route, revision and date."""
        return next((price for name in _names(model) if (price := self._table.get(name))), None)

    def cost(self, used: Mapping[str, Tokens]) -> tuple[float | None, list[str]]:
        """Return the cost in US dollars (None if no price is known), and the models without a price."""
        whole = 0.0
        unpriced: list[str] = []
        for model, tokens in used.items():
            price = self.of(model)
            if price is None:
                if tokens.input or tokens.output:
                    unpriced.append(model or NOT_STATED)
                continue
            read = price.input if price.cache_read is None else price.cache_read
            written = price.input if price.cache_write is None else price.cache_write
            written_1h = 2 * price.input if price.cache_write_1h is None else price.cache_write_1h
            long = min(tokens.written_1h, tokens.written)
            fresh = max(0, tokens.input - tokens.read - tokens.written)
            whole += fresh * price.input + tokens.read * read + tokens.output * price.output
            whole += (tokens.written - long) * written + long * written_1h
        known = len(unpriced) < len(used) or not used
        return (round(whole / 1e6, 6) if known else None), sorted(unpriced)


def _names(model: str) -> Iterator[str]:
    """Yield the names under which a model may be listed, from the most to the least specific."""
    name = model.rpartition("/")[2]
    yield from (model, name)
    name = _VENDOR.sub("", _ROUTE.sub("", _WINDOW.sub("", name.strip().lower())))
    yield name
    name = _DATED.sub("", _REVISION.sub("", name))
    yield name
    # Vertex: the revision precedes the date. Routers: `claude-sonnet-4.5`.
    name = _REVISION.sub("", name)
    yield name
    yield _DOTTED.sub("-", name)
