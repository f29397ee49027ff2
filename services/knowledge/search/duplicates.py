"""Near-duplicates: notes whose texts are the same but for a few words.

Texts are compared by their runs of three words (w-shingling: Broder, 1997): what they share, of all that both have
(Dice). Of a long text the runs with the smallest hashes stand for all of them.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Sequence

import apsw

from linckia.services.knowledge.notes.files import digest

SAME = 0.8
"""Of the runs of words, from which on one note says what the other says: one word in fourteen may be another."""

_RUN_WORDS = 3
_SKETCH = 1000
"""Runs that are kept of a text: the likeness of two longer ones is right to about .02."""
_WORD = re.compile(r"\w+")

Runs = frozenset[int]


def runs(text: str) -> Runs:
    """The runs of words of a text, by their hashes in this process, or those of them that stand for all."""
    words = [match[0].casefold() for match in _WORD.finditer(text)]
    if len(words) < _RUN_WORDS:
        return frozenset([hash(tuple(words))] if words else ())
    found = {hash(tuple(words[at : at + _RUN_WORDS])) for at in range(len(words) - _RUN_WORDS + 1)}
    return frozenset(heapq.nsmallest(_SKETCH, found))


def likeness(first: Runs, second: Runs) -> float:
    """In [0, 1]; of two texts without words 0."""
    # The smallest of both together are a fair sample of all, where one of them was cut.
    sample = heapq.nsmallest(_SKETCH, first | second) if _SKETCH in (len(first), len(second)) else first | second
    shared = len(first.intersection(sample) & second) / max(1, len(sample))
    return 2 * shared / (1 + shared)


def same_text(db: apsw.Connection) -> list[list[str]]:
    """Ids of notes whose trimmed texts are the same, of all texts that are not blank."""
    rows = db.execute(
        "SELECT hash, id FROM node WHERE hash IN (SELECT hash FROM node GROUP BY hash HAVING count(*) > 1)"
        " AND hash <> ? ORDER BY hash, id",
        (digest(""),),
    )
    return [[id_ for _, id_ in group] for _, group in itertools.groupby(rows, key=lambda row: row[0])]


class Groups:
    """Notes put together, two by two, with the least likeness of two that were."""

    def __init__(self) -> None:
        from networkx.utils import UnionFind  # not before it is needed: it takes half a second

        self._sets = UnionFind()
        self._joined: list[tuple[str, float]] = []

    def together(self, one: str, other: str) -> bool:
        return bool(self._sets[one] == self._sets[other])

    def join(self, one: str, other: str, likeness: float) -> None:
        self._sets.union(one, other)
        self._joined.append((one, likeness))

    def all(self) -> list[tuple[float, list[str]]]:
        """Each with its least likeness; the most alike first, then the largest."""
        least: dict[str, float] = {}
        for one, likeness in self._joined:
            first = self._sets[one]
            least[first] = min(least.get(first, 1.0), likeness)
        found = ((least[self._sets[next(iter(ids))]], sorted(ids)) for ids in self._sets.to_sets() if len(ids) > 1)
        return sorted(found, key=lambda each: (-each[0], -len(each[1]), each[1]))


def linked_first(db: apsw.Connection, ids: Sequence[str]) -> list[str]:
    """The ids, those that most notes link to first: which of them to keep."""
    query = "SELECT count(DISTINCT src) FROM edge WHERE dst = ?"
    counts = {id_: int(db.execute(query, (id_,)).get) for id_ in ids}
    return sorted(ids, key=lambda id_: (-counts[id_], len(id_), id_))
