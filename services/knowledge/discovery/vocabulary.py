"""The words that tell what notes are about: what two have in common, and what sets one cluster apart."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

_WORD = re.compile(r"[^\W\d_][\w'-]*[^\W_]")
_MIN_CHARS = 4

_EMPTY_WORDS = frozenset(
    (
        "about", "above", "across", "actually", "after", "again", "against", "also", "although", "always",
        "among", "another", "anything", "around", "away", "back", "because", "become", "been", "before", "behind",
        "being", "below", "best", "better", "between", "both", "cannot", "come", "comes", "could", "does",
        "doing", "done", "down", "during", "each", "either", "else", "enough", "even", "ever", "every",
        "everything", "example", "first", "following", "from", "further", "gets", "give", "given", "goes",
        "going", "good", "have", "having", "here", "however", "http", "https", "into", "instead", "itself",
        "just", "keep", "know", "known", "last", "later", "least", "less", "like", "likely", "made", "make",
        "makes", "making", "many", "maybe", "mean", "means", "might", "more", "most", "much", "must", "need",
        "needs", "never", "next", "note", "notes", "nothing", "often", "once", "only", "other", "others", "over",
        "part", "rather", "really", "right", "same", "seem", "seems", "several", "shall", "should", "show",
        "shows", "simply", "since", "some", "something", "sometimes", "still", "such", "sure", "take", "taken",
        "than", "that", "their", "them", "themselves", "then", "there", "these", "they", "thing", "things",
        "this", "those", "though", "through", "thus", "time", "together", "toward", "under", "unless", "until",
        "upon", "used", "uses", "using", "very", "want", "wants", "well", "went", "were", "what", "whatever",
        "when", "where", "whether", "which", "while", "whole", "whom", "whose", "will", "with", "within",
        "without", "work", "works", "would", "your", "yours",
    )
)  # fmt: skip


def words(text: str) -> Counter[str]:
    """How often each telling word stands in `text`, lower-cased; plural and singular count as one."""
    found: Counter[str] = Counter()
    for match in _WORD.finditer(text):
        word = match[0].casefold().removesuffix("'s")
        if len(word) >= _MIN_CHARS and word not in _EMPTY_WORDS:
            found[word] += 1
    for word in [word for word in found if word.endswith("s") and word[:-1] in found]:
        found[word[:-1]] += found.pop(word)
    return found


def shared(first: Counter[str], second: Counter[str], limit: int) -> list[str]:
    """The words that count most in both, longer ones first among equals."""
    both = first.keys() & second.keys()
    return sorted(both, key=lambda word: (-min(first[word], second[word]), -len(word), word))[:limit]


def telling(groups: Sequence[Iterable[str]], limit: int) -> list[list[str]]:
    """For each group of texts the words that set it apart from the others (class-based TF-IDF: Grootendorst, 2022)."""
    counts = [sum((words(text) for text in texts), Counter[str]()) for texts in groups]
    total: Counter[str] = sum(counts, Counter[str]())
    average = sum(total.values()) / max(1, len(counts))

    def best(own: Counter[str]) -> list[str]:
        weight = {word: count * math.log(1 + average / total[word]) for word, count in own.items()}
        return sorted(weight, key=lambda word: (-round(weight[word], 9), word))[:limit]

    return [best(own) for own in counts]
