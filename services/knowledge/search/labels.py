"""Labels of clusters: the terms that set a cluster's notes apart from all others.

Class-based TF-IDF (Grootendorst, "BERTopic", 2022) over words and pairs of adjacent words, of titles, tags, headings
and the beginnings of texts, without code and addresses. Like BERTopic's own, the labels are made diverse: no word is in
two terms of a label. A term stands as most notes write it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from services.knowledge.search.words import telling
from services.runtime.text.markdown import outline

LABEL_TERMS = 3
READ_CHARS = 20_000
"""Of a text."""

_TITLE_WEIGHT, _HEADING_WEIGHT = 3, 2
_PAIR_SHARE = 0.5
"""Of a word's occurrences beside one and the same other word, from which on the two are one term."""

_ADDRESS = re.compile(r"\]\([^()\s]*\)|(?:https?://|www\.)[^\s<>()]+|<[^<>\n]*>|&[a-z]+;|`[^`\n]*[/=(\\][^`\n]*`")
_NO_NOUN = re.compile(r"(?:ly|ed|able|ible|ful)$")
"""Adverbs, participles and adjectives: half of a term, but none by themselves."""

Term = tuple[str, ...]


class Said(NamedTuple):
    """A note's words for its label; `body` is Markdown."""

    title: str
    tags: Sequence[str]
    body: str


class _Counts:
    """The terms of one cluster."""

    def __init__(self) -> None:
        self.terms: Counter[Term] = Counter()
        self.notes: Counter[Term] = Counter()
        self.forms: dict[str, Counter[str]] = {}

    def add(self, note: Said) -> None:
        before = self.terms.copy()
        self._text(note.title, _TITLE_WEIGHT, is_prose=False)
        for tag in note.tags:
            self._text(tag.replace("-", " ").replace("/", " "), _HEADING_WEIGHT, is_prose=False)
        plan = outline(note.body)
        for heading in plan.headings[1:]:
            self._text(heading, _HEADING_WEIGHT, is_prose=False)
        lines = note.body.split("\n")
        for first, end in plan.code:
            lines[first:end] = [""] * (end - first)
        self._text(_ADDRESS.sub(" ", "\n".join(line for line in lines if not line.startswith("#"))), 1, is_prose=True)
        self.notes.update((self.terms - before).keys())

    def _text(self, text: str, weight: int, *, is_prose: bool) -> None:
        last: tuple[str, int] | None = None
        for key, word, start in telling(text):
            self.terms[(key,)] += weight
            if last is not None and last[0] != key and text[last[1] : start] in (" ", "\n"):
                self.terms[last[0], key] += weight
            last = key, start + len(word)
            # In titles most words have a capital: how a word is written otherwise says more.
            self.forms.setdefault(key, Counter())[word] += 4 if is_prose else 1

    def written(self, term: Term) -> str:
        return " ".join(_form(self.forms[key]) for key in term)


def _form(forms: Counter[str]) -> str:
    """How a word is written: an acronym or a name as it is, any other one small."""
    small = sum(count for form, count in forms.items() if form.islower())
    best = min(forms, key=lambda form: (-forms[form], form))
    is_name = best[1:] != best[1:].lower() or (not small and forms[best] >= 2 * 4)
    if is_name:
        return best
    return min((form.lower() for form in forms), key=lambda form: (-forms[form], len(form), form))


def labels(clusters: Sequence[Iterable[Said]], checkpoint: Callable[[], None]) -> list[str]:
    """For each cluster its label, empty where nothing sets it apart; no two are the same, but for the empty ones."""
    counts: list[_Counts] = []
    for notes in clusters:
        own = _Counts()
        for note in notes:
            checkpoint()
            own.add(note)
        counts.append(own)
    total: Counter[Term] = Counter()
    for own in counts:
        total.update(own.terms)
    average = sum(total.values()) / max(1, len(counts))
    taken: set[str] = set()
    made: list[str] = []
    for own in counts:
        terms = [own.written(term) for term in _chosen(own, total, average)]
        size = LABEL_TERMS
        while (label := ", ".join(terms[:size])) in taken and size < len(terms):
            size += 1
        taken.add(label)
        made.append(label)
    return made


def _chosen(own: _Counts, total: Counter[Term], average: float) -> list[Term]:
    """The best terms, a few more than a label has."""
    several = max(own.notes.values(), default=0) > 1
    weight: dict[Term, float] = {}
    for term, count in own.terms.items():
        # What one note alone says is no topic of several; and a pair must come up to be a phrase.
        if (several and own.notes[term] < 2) or (len(term) > 1 and count < 2 * _HEADING_WEIGHT):
            continue
        weight[term] = math.sqrt(count) * own.notes[term] ** 0.5 * math.log(1 + average / total[term])
    words = sorted((term for term in weight if len(term) == 1), key=lambda term: (-round(weight[term], 9), term))
    pairs: dict[str, list[Term]] = {}
    for term in weight:
        for key in term if len(term) > 1 else ():
            pairs.setdefault(key, []).append(term)
    chosen: list[Term] = []
    used: set[str] = set()
    for word in words:
        if word[0] in used:
            continue
        frequent = [pair for pair in pairs.get(word[0], ()) if own.terms[pair] >= _PAIR_SHARE * own.terms[word]]
        free = [pair for pair in frequent if not used.intersection(pair)]
        best = max(free, key=lambda pair: (own.terms[pair], pair), default=word)
        if best == word and _NO_NOUN.search(word[0]):
            continue
        chosen.append(best)
        used.update(best)
        if len(chosen) == 2 * LABEL_TERMS:
            break
    return chosen
