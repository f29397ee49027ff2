"""Labels of clusters: the terms that most notes of a cluster have, and that set it apart from all others.

Terms are words and pairs of adjacent words, of titles, tags, headings and the beginnings of texts, without code and
addresses. They are weighed by how many notes of the cluster speak of them (each note's count saturates, as in BM25) and
how exclusive they are to it (FREX: Bischof and Airoldi, 2012). As with BERTopic (Grootendorst, 2022) labels are
diverse: no word is in two terms of one. A term stands as most notes write it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from linckia.services.knowledge.search.words import telling, without_addresses
from linckia.services.runtime.text.markdown import outline

LABEL_TERMS = 3
READ_CHARS = 20_000
"""Of a text."""

_TITLE_WEIGHT, _HEADING_WEIGHT = 4, 2
_TITLED = 0.5
"""What a term in a title or a tag counts beyond its occurrences, of which any number counts less than 1."""

_SATURATED = 2.0
"""Occurrences that count half of what any number of them counts."""

_EXCLUSIVE = 1.0
"""Power of the share of a term that is the cluster's own."""

_WITHIN_WEIGHT = 4
"""Of how a word is written within a sentence."""

_PAIR_SHARE = 0.5
"""Of a word's occurrences beside one and the same other word, from which on the two are one term."""

_WITHIN = re.compile(r"[\w,;)][ \n]\Z")
_NO_NOUN = re.compile(r"(?:ly|ed|able|ible|ful)$")
"""Adverbs, participles and adjectives: half of a term, but none by themselves."""

Term = tuple[str, ...]


class Said(NamedTuple):
    """A note's words for its label; `body` is Markdown."""

    title: str
    tags: Sequence[str]
    body: str


class _Counts:
    """The terms of one cluster: what they count, and in how many notes they are."""

    def __init__(self) -> None:
        self.weight: dict[Term, float] = defaultdict(float)
        self.notes: Counter[Term] = Counter()
        self.forms: dict[str, Counter[str]] = defaultdict(Counter)
        self.read = 0

    def add(self, note: Said) -> None:
        self.read += 1
        plan = outline(note.body)
        lines = note.body.split("\n")
        for first, end in plan.code:
            lines[first:end] = [""] * (end - first)
        prose = without_addresses("\n".join(line for line in lines if not line.startswith("#")))
        names = (note.title, *note.tags)
        named = Counter(term for name in names for term in self._terms(_parted(name), is_prose=False))
        counts: Counter[Term] = Counter(self._terms(prose, is_prose=True))
        for heading in plan.headings[1:]:
            counts.update(dict.fromkeys(self._terms(heading, is_prose=False), _HEADING_WEIGHT))
        for term, times in named.items():
            counts[term] += _TITLE_WEIGHT * times
        for term, count in counts.items():
            self.weight[term] += count / (count + _SATURATED) + (_TITLED if term in named else 0.0)
        self.notes.update(counts.keys())

    def _terms(self, text: str, *, is_prose: bool) -> list[Term]:
        found: list[Term] = []
        last: tuple[str, int] | None = None
        for key, word, start in telling(text):
            found.append((key,))
            if last is not None and last[0] != key and text[last[1] : start] in (" ", "\n"):
                found.append((last[0], key))
            last = key, start + len(word)
            # In titles, and where a sentence begins, most words have a capital: within one it is the writer's choice.
            is_within = is_prose and _WITHIN.search(text, max(0, start - 3), start) is not None
            self.forms[key][word] += _WITHIN_WEIGHT if is_within else 1
        return found

    def written(self, term: Term) -> str:
        return " ".join(_form(self.forms[key]) for key in term)


def _parted(name: str) -> str:
    """The words of a title or a tag that is written as one, as those of files are."""
    return name if " " in name.strip() else name.replace("-", " ").replace("_", " ").replace("/", " ")


def _form(forms: Counter[str]) -> str:
    """How a word is written: an acronym or a name as it is, any other one small."""
    small = sum(count for form, count in forms.items() if form.islower())
    best = min(forms, key=lambda form: (-forms[form], form))
    is_name = best[1:] != best[1:].lower() or (not small and forms[best] > _WITHIN_WEIGHT)
    if is_name:
        return best
    return min((form.lower() for form in forms), key=lambda form: (-forms[form], len(form), form))


def labels(clusters: Sequence[Iterable[Said]], checkpoint: Callable[[], None]) -> list[str]:
    """For each cluster its label, empty where nothing sets it apart; no two are the same, but for the empty ones."""
    counts = [_Counts() for _ in clusters]
    total: dict[Term, float] = defaultdict(float)
    for own, notes in zip(counts, clusters, strict=True):
        for note in notes:
            checkpoint()
            own.add(note)
        for term, weight in own.weight.items():
            total[term] += weight
    made: list[str] = []
    for own in counts:
        terms = [own.written(term) for term in _chosen(own, total)]
        size = LABEL_TERMS
        while (label := ", ".join(terms[:size])) in made and size < len(terms):
            size += 1
        made.append(label)
    return made


def _is_akin(one: str, other: str) -> bool:
    """Whether both are of one stem: `mock`, `mocking`."""
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return same >= max(4, 0.7 * min(len(one), len(other))) or one == other


def _chosen(own: _Counts, total: Mapping[Term, float]) -> list[Term]:
    """The best terms, a few more than a label has."""
    # What one note alone says is no topic of several.
    least = 1 if own.read < 2 else max(2, own.read // 10)
    weight = {
        term: count * (count / total[term]) ** _EXCLUSIVE
        for term, count in own.weight.items()
        if own.notes[term] >= least
    }
    words = sorted((term for term in weight if len(term) == 1), key=lambda term: (-round(weight[term], 9), term))
    pairs: dict[str, list[Term]] = defaultdict(list)
    for pair in (term for term in weight if len(term) > 1):
        for key in pair:
            pairs[key].append(pair)
    chosen: list[Term] = []
    used: set[str] = set()
    for word in words:
        if any(_is_akin(word[0], other) for other in used):
            continue
        # A word that mostly stands beside the same other one is a part of a phrase.
        frequent = [pair for pair in pairs[word[0]] if own.weight[pair] >= _PAIR_SHARE * own.weight[word]]
        free = [pair for pair in frequent if not any(_is_akin(key, other) for key in pair for other in used)]
        best = max(free, key=lambda pair: (own.weight[pair], pair), default=word)
        if best == word and _NO_NOUN.search(word[0]):
            continue
        chosen.append(best)
        used.update(best)
        if len(chosen) == 2 * LABEL_TERMS:
            break
    return chosen
