"""Near-duplicates: notes whose texts differ only in a few words.

Texts are compared by their runs of three words (w-shingling: Broder, 1997), with the Dice coefficient. A long text is
represented by the runs with the smallest hashes.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Sequence

import apsw

from services.knowledge.notes.files import digest

SAME = 0.8
"""Share of common runs from which two notes count as duplicates; about one word in fourteen may differ."""

_RUN_WORDS = 3
_SKETCH = 1000
"""Maximum number of runs per text; the similarity of two longer texts is accurate to about .02."""
_WORD = re.compile(r"\w+")

Runs = frozenset[int]


def runs(text: str) -> Runs:
    """Return the hashes (valid in this process) of a text's runs of words, or a sample of them."""
    words = [match[0].casefold() for match in _WORD.finditer(text)]
    if len(words) < _RUN_WORDS:
        return frozenset([hash(tuple(words))] if words else ())
    found = {hash(tuple(words[at : at + _RUN_WORDS])) for at in range(len(words) - _RUN_WORDS + 1)}
    return frozenset(heapq.nsmallest(_SKETCH, found))


def likeness(first: Runs, second: Runs) -> float:
    """Return the similarity in [0, 1]; 0 for two texts without words."""
    # If one of them was sampled, the smallest hashes of both together are a fair sample of all.
    sample = heapq.nsmallest(_SKETCH, first | second) if _SKETCH in (len(first), len(second)) else first | second
    shared = len(first.intersection(sample) & second) / max(1, len(sample))
    return 2 * shared / (1 + shared)


def same_text(db: apsw.Connection) -> list[list[str]]:
    """Return groups of ids of notes with the same trimmed text, except blank ones."""
    rows = db.execute(
        "SELECT hash, id FROM node WHERE hash IN (SELECT hash FROM node GROUP BY hash HAVING count(*) > 1)"
        " AND hash <> ? ORDER BY hash, id",
        (digest(""),),
    )
    return [[id_ for _, id_ in group] for _, group in itertools.groupby(rows, key=lambda row: row[0])]


class Groups:
    """Groups of notes joined pairwise, with the least similarity of the joined pairs."""

    def __init__(self) -> None:
        from networkx.utils import UnionFind  # imported late because it takes half a second

        self._sets = UnionFind()
        self._joined: list[tuple[str, float]] = []

    def together(self, one: str, other: str) -> bool:
        return bool(self._sets[one] == self._sets[other])

    def join(self, one: str, other: str, likeness: float) -> None:
        self._sets.union(one, other)
        self._joined.append((one, likeness))

    def all(self) -> list[tuple[float, list[str]]]:
        """Return the groups with their least similarity: most similar first, then largest."""
        least: dict[str, float] = {}
        for one, likeness in self._joined:
            first = self._sets[one]
            least[first] = min(least.get(first, 1.0), likeness)
        found = ((least[self._sets[next(iter(ids))]], sorted(ids)) for ids in self._sets.to_sets() if len(ids) > 1)
        return sorted(found, key=lambda each: (-each[0], -len(each[1]), each[1]))


def linked_first(db: apsw.Connection, ids: Sequence[str]) -> list[str]:
    """Sort ids by the number of notes that link to them, most first; the first is the best to keep."""
    query = "SELECT count(DISTINCT src) FROM edge WHERE dst = ?"
    counts = {id_: int(db.execute(query, (id_,)).get) for id_ in ids}
    return sorted(ids, key=lambda id_: (-counts[id_], len(id_), id_))
