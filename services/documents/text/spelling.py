"""Words that no document has, and the nearest ones that documents do have."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import apsw

from services.documents.text.indexing import WORD

MAX_CANDIDATES = 60_000
MAX_WORDS = 16


def corrections(db: apsw.Connection, query: str, similarity: float) -> dict[str, str]:
    """For each misspelt word of the query, the most similar known one, where one is similar enough.

    Similar is the ratio of matching characters (Ratcliff and Obershelp, 1988); the first letter is taken to be right.
    """
    found: dict[str, str] = {}
    for word in list(dict.fromkeys(match.lower() for match in WORD.findall(query)))[:MAX_WORDS]:
        if db.execute("SELECT 1 FROM idx.word WHERE word=?", (word,)).fetchone() is not None:
            continue
        rows = db.execute(
            "SELECT word, objects FROM idx.word WHERE word >= ? AND word < ? AND length(word) BETWEEN ? AND ? LIMIT ?",
            (word[0], word[0] + "\U0010ffff", len(word) - 2, len(word) + 2, MAX_CANDIDATES),
        ).fetchall()
        best = _nearest(word, [(str(known), int(str(objects))) for known, objects in rows], similarity)
        if best is not None:
            found[word] = best
    return found


def _nearest(word: str, known: Sequence[tuple[str, int]], similarity: float) -> str | None:
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(word)
    best: tuple[float, int, str] | None = None
    for other, objects in known:
        matcher.set_seq1(other)
        least = max(similarity, best[0] if best else 0.0)
        # The first two are upper bounds of the third, and much cheaper.
        if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
            continue
        ratio = matcher.ratio()
        if ratio >= least and (best is None or (ratio, objects) > best[:2]):
            best = (ratio, objects, other)
    return best[2] if best else None
