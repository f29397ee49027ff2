"""Labels of clusters: terms that most notes of a cluster share and that distinguish it from the others.

Terms are words and pairs of adjacent words in titles, tags, headings and the beginnings of texts, without code and
addresses. They are weighted by the number of notes of the cluster that use them (each note's count saturates, as in
BM25) and by how exclusive they are to it (FREX: Bischof and Airoldi, 2012). As in BERTopic (Grootendorst, 2022), labels
are diverse: no word occurs in two terms of a label. A term is spelled as most notes spell it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from services.knowledge.search.words import telling, without_addresses
from services.shared.text.markdown import outline

LABEL_TERMS = 3
READ_CHARS = 20_000
"""Number of characters read per note."""

_TITLE_WEIGHT, _HEADING_WEIGHT = 4, 2
_TITLED = 0.5
"""Bonus for a term in a title or tag; occurrences alone count less than 1."""

_SATURATED = 2.0
"""Number of occurrences that yield half of the maximum weight."""

_EXCLUSIVE = 1.0
"""Exponent of the cluster's share of a term."""

_WITHIN_WEIGHT = 4
"""Weight of a word's spelling within a sentence."""

_PAIR_SHARE = 0.5
"""Share of a word's occurrences next to the same other word from which the two form one term."""

_WITHIN = re.compile(r"[\w,;)][ \n]\Z")
_NO_NOUN = re.compile(r"(?:ly|ed|able|ible|ful)$")
"""Adverbs, participles and adjectives, which can be part of a term but not a term by themselves."""

Term = tuple[str, ...]


class LabelSource(NamedTuple):
    """The parts of a note that are used for labels; `body` is Markdown."""

    title: str
    tags: Sequence[str]
    body: str


class _Counts:
    """The terms of one cluster: their weights, and the number of notes that contain them."""

    def __init__(self) -> None:
        self.weight: dict[Term, float] = defaultdict(float)
        self.notes: Counter[Term] = Counter()
        self.forms: dict[str, Counter[str]] = defaultdict(Counter)
        self.read = 0

    def add(self, note: LabelSource) -> None:
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
            # Words in titles and at the start of sentences are often capitalised, so spellings within a sentence count.
            is_within = is_prose and _WITHIN.search(text, max(0, start - 3), start) is not None
            self.forms[key][word] += _WITHIN_WEIGHT if is_within else 1
        return found

    def written(self, term: Term) -> str:
        return " ".join(_form(self.forms[key]) for key in term)


def _parted(name: str) -> str:
    """Split a title or tag that is written as one word, such as a file name."""
    return name if " " in name.strip() else name.replace("-", " ").replace("_", " ").replace("/", " ")


def _form(forms: Counter[str]) -> str:
    """Return the spelling of a word: acronyms and names unchanged, other words in lower case."""
    small = sum(count for form, count in forms.items() if form.islower())
    best = min(forms, key=lambda form: (-forms[form], form))
    is_name = best[1:] != best[1:].lower() or (not small and forms[best] > _WITHIN_WEIGHT)
    if is_name:
        return best
    return min((form.lower() for form in forms), key=lambda form: (-forms[form], len(form), form))


def labels(clusters: Sequence[Iterable[LabelSource]], checkpoint: Callable[[], None]) -> list[str]:
    """Return a label for each cluster, empty if nothing distinguishes it.  Labels are unique, except empty ones."""
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
    """Return whether both probably have the same stem: `mock`, `mocking`."""
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return same >= max(4, 0.7 * min(len(one), len(other))) or one == other


def _chosen(own: _Counts, total: Mapping[Term, float]) -> list[Term]:
    """Return the best terms, a few more than a label has."""
    # A term in a single note is not a topic of the cluster.
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
        # A word that mostly occurs next to the same other word is part of a phrase.
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
