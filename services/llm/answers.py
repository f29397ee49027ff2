"""Parses a model's answer: the numbers that were given to it, each once, and short plain sentences.

Models wrap JSON in fences and thoughts, write numbers as text and ids for numbers, and repeat themselves; all of that
is accepted. What was not asked for is left out: an unknown number, an unknown type of link, a control character, the
rest of an overlong sentence. An answer in which nothing remains is a failure.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proto.errors import Unavailable
from proto.ops.llm import Candidate, LinkKind, Placed, Refinement, SuggestedLink, Unlinked
from services.llm.prompts import CONTEXTS

SENTENCE_CHARACTERS = 400
ANALYSIS_CHARACTERS = 1200

_THOUGHTS = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_NUMBER = ("n", "number", "index", "id", "result", "pair")
_SCORE = ("score", "relevance", "relevance_score")


def refinement(answer: str, candidates: Sequence[Candidate], model: str) -> Refinement:
    """The answer of `model` to `REFINE` on these candidates.

    Raises:
        Unavailable: it holds nothing that was asked for.
    """
    said = _object(answer)
    intent = _sentence(said.get("intent"), SENTENCE_CHARACTERS)
    analysis = _sentence(said.get("analysis"), ANALYSIS_CHARACTERS)
    order = _order(_list(said, "ranking", "results", "order", "ranked"), candidates)
    if intent is None and analysis is None and not order:
        raise Unavailable("the language model's answer has nothing that was asked for")
    return Refinement(intent=intent, analysis=analysis, order=order, model=model)


def links(answer: str, pairs: Sequence[Unlinked]) -> list[SuggestedLink]:
    """The answer to `LINK` on these pairs.

    Raises:
        Unavailable: it holds nothing that was asked for.
    """
    found: dict[int, SuggestedLink] = {}
    for entry in _list(_object(answer), "links", "pairs", "suggestions"):
        if not isinstance(entry, Mapping):
            continue
        index = _numbered(entry, {}, len(pairs))
        kind = _kind(entry.get("type", entry.get("kind")))
        if index is None or index in found or kind is None:
            continue
        reason = _sentence(entry.get("reason"), SENTENCE_CHARACTERS) or ""
        found[index] = SuggestedLink(
            index=index, kind=kind, reversed=str(entry.get("from", "a")).strip().lower() == "b", reason=reason
        )
    if not found:
        raise Unavailable("the language model's answer has nothing that was asked for")
    return list(found.values())


def _order(entries: Sequence[object], candidates: Sequence[Candidate]) -> list[Placed]:
    by_id = {candidate.id: index for index, candidate in enumerate(candidates)}
    placed: dict[int, Placed] = {}
    for entry in entries:
        given = entry if isinstance(entry, Mapping) else {"n": entry}
        index = _numbered(given, by_id, len(candidates))
        if index is None or index in placed:
            continue
        placed[index] = Placed(
            index=index,
            score=_score(next((given[name] for name in _SCORE if name in given), None)),
            context=_sentence(given.get("context"), SENTENCE_CHARACTERS) or "",
        )
    order = list(placed.values())
    if order and all(each.score is not None for each in order):
        # It gave scores and listed the texts in another order: the scores count.
        order.sort(key=lambda each: -(each.score or 0.0))
    else:
        order = [msgspec.structs.replace(each, score=None) for each in order]
    return [
        each if position < CONTEXTS else msgspec.structs.replace(each, context="")
        for position, each in enumerate(order)
    ]


def _object(answer: str) -> Mapping[str, Any]:
    text = _THOUGHTS.sub("", answer)
    start, end = text.find("{"), text.rfind("}")
    try:
        # A model may put anything into its object; whoever reads a member checks its form.
        found: Mapping[str, Any] = msgspec.json.decode(text[start : end + 1].encode(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise Unavailable("the language model's answer is not the JSON object that was asked for") from None
    return found


def _list(said: Mapping[str, Any], *names: str) -> Sequence[object]:
    return next((said[name] for name in names if isinstance(said.get(name), list)), [])


def _numbered(entry: Mapping[Any, object], by_id: Mapping[str, int], count: int) -> int | None:
    """The index (from 0) of the text that an entry is about; None where it is about none of them."""
    for name in _NUMBER:
        value = entry.get(name)
        if isinstance(value, str) and value in by_id:
            return by_id[value]
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal():
            value = int(value.strip()[:9])
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= count:
            return value - 1
    return None


def _score(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(1.0, max(0.0, float(value)))


def _kind(value: object) -> LinkKind | None:
    names = [kind.value for kind in LinkKind]
    name = value.strip().lower() if isinstance(value, str) else ""
    return LinkKind(name) if name in names else None


def _sentence(value: object, longest: int) -> str | None:
    """Plain text on one line, cut at a word; None where there is none."""
    if not isinstance(value, str):
        return None
    text = " ".join(_visible(value[: 8 * longest]).split())
    if len(text) > longest:
        text = text[: longest - 2].rsplit(" ", 1)[0] + " …"
    return text or None


def _visible(text: str) -> str:
    # No control characters, and none that reverse or hide the text beside them.
    return "".join(" " if char.isspace() else char for char in text if char.isspace() or _is_shown(char))


def _is_shown(char: str) -> bool:
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn")
