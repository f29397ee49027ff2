"""Words of a query: their places in texts that the search does not know yet, and the words that they may be instead."""

from __future__ import annotations

import difflib
import heapq
import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from services.documents.store import texts
from services.documents.store.store import is_complete
from services.documents.text import pieces
from services.documents.text.indexing import WORD
from services.documents.text.passages import MAX_TEXT_CHARS, passages
from services.runtime import literals
from services.runtime.models.measure import ROUGH
from services.runtime.text.cutting import Section

MAX_RECENT = 4000
MAX_SCANNED = 4000
SCAN_LIMIT_S = 5.0
MAX_CANDIDATES = 60_000
MAX_WORDS = 16
MAX_NEAR = 10
"""Words that are as similar as any; the most frequent of the most similar ones is meant."""

_TERM = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    _TERM.findall(
        """a an and are as at be by for from had has have how i if in into is it its of on or so that the their then
        there these they this to was we were what when where which who why will with you your"""
    )
)


@dataclass(frozen=True, slots=True)
class Scored:
    """A content that was found: its score in [0, 1], and a passage of it with the passage's first line (0: none).

    The passage is None where it was not asked for, and is made of the text where it is needed after all.
    """

    object: int
    score: float
    passage: str | None
    line: int
    cosine: float | None = None
    matched: Sequence[str] = ()


def terms_of(query: str) -> list[str]:
    found = list(dict.fromkeys(term.casefold() for term in _TERM.findall(query)))
    return [term for term in found if term not in _STOP_WORDS] or found


def waiting_of(db: apsw.Connection) -> list[int]:
    """Contents that wait for delivery to the search, the latest first; one more than are looked through."""
    query = "SELECT object FROM search_outbox ORDER BY number DESC LIMIT ?"
    return [object_ for (object_,) in db.execute(query, (MAX_RECENT + 1,))]


def scan(db: apsw.Connection, terms: list[str], waiting: list[int], *, everything: bool) -> tuple[list[Scored], str]:
    """Contents that have the terms, scored by BM25 over those that are looked at; and what was left out, if any.

    Looked at is what is `waiting`; with `everything`, all that the index of trigrams admits as well.
    """
    give_up = time.monotonic() + SCAN_LIMIT_S
    cut = ""
    if len(waiting) > MAX_RECENT:
        cut = f"search: more than {MAX_RECENT} contents are still to be told of; the latest were looked through"
    candidates = dict.fromkeys(waiting[:MAX_RECENT])
    if everything:
        wanted = literals.trigrams_of_any(terms, ignore_case=True) if is_complete(db) else literals.ANYTHING
        if (expression := pieces.expression_of(db, wanted)) is None:
            readable = db.execute("SELECT id FROM object WHERE text_state IN (1, 2) LIMIT ?", (MAX_SCANNED + 1,))
            indexed = [object_ for (object_,) in readable]
        else:
            indexed = list(itertools.islice(pieces.having(db, expression, 0), MAX_SCANNED + 1))
        if len(indexed) > MAX_SCANNED:
            cut = f"search: more than {MAX_SCANNED} contents may have these words; not all were looked through"
        queued = db.execute("SELECT object FROM index_outbox LIMIT ?", (MAX_SCANNED,))
        candidates |= dict.fromkeys([*indexed[:MAX_SCANNED], *(object_ for (object_,) in queued)])
    pattern = re.compile("|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True)), re.IGNORECASE)
    counted: list[tuple[int, Counter[str], int]] = []
    documents: Counter[str] = Counter()
    for object_ in candidates:
        if time.monotonic() > give_up:
            cut = "search: looking through the texts took too long; not all were"
            break
        paths = db.execute("SELECT path FROM document WHERE object=? LIMIT 8", (object_,))
        text = " ".join(path for (path,) in paths) + "\n" + texts.beginning(db, object_, MAX_TEXT_CHARS)[0]
        held = Counter(match.casefold() for match in pattern.findall(text))
        if known := Counter({term: held[term] for term in terms if held[term]}):
            counted.append((object_, known, len(text)))
            documents.update(known.keys())
    if not counted:
        return [], cut
    average = sum(length for _, _, length in counted) / len(counted)
    weights = {term: math.log(1 + (len(candidates) - n + 0.5) / (n + 0.5)) for term, n in documents.items()}
    most = sum(weights.get(term, math.log(1 + len(candidates) * 2)) for term in terms) * 2.2

    def score(held: Counter[str], length: int) -> float:
        norm = 1.2 * (0.25 + 0.75 * length / average)
        return min(1.0, sum(weights[term] * n * 2.2 / (n + norm) for term, n in held.items()) / most)

    scored = heapq.nlargest(1000, ((score(held, length), -object_) for object_, held, length in counted))
    answer: list[Scored] = []
    for value, negative in scored:
        passage, line = best_passage(db, -negative, terms) if len(answer) < 100 else ("", 0)
        answer.append(Scored(-negative, value, passage, line))
    return answer, cut


def best_passage(db: apsw.Connection, object_: int, terms: list[str]) -> tuple[str, int]:
    """The passage of a content that has the most of the terms, and its first line; '' and 0 where it has none."""
    text, mime = texts.beginning(db, object_, MAX_TEXT_CHARS)

    def score(passage: Section) -> float:
        folded = passage.text.casefold()
        return sum(1 + min(folded.count(term), 9) / 10 for term in terms if term in folded)

    best = max(passages(text, mime, "", ROUGH), key=score, default=None)
    return ("", 0) if best is None else (best.text, best.first)


def corrections(db: apsw.Connection, query: str, similarity: float) -> dict[str, str]:
    """For each misspelt word of the query, the most similar known one, where one is similar enough: by the ratio of
    matching characters (Ratcliff and Obershelp, 1988); the first letter is taken to be right."""
    found: dict[str, str] = {}
    for word in list(dict.fromkeys(match.lower() for match in WORD.findall(query)))[:MAX_WORDS]:
        if db.execute("SELECT 1 FROM idx.word WHERE word=?", (word,)).get:
            continue
        rows = db.execute(
            "SELECT word, objects FROM idx.word WHERE word >= ? AND word < ? AND length(word) BETWEEN ? AND ? LIMIT ?",
            (word[0], word[0] + "\U0010ffff", len(word) - 2, len(word) + 2, MAX_CANDIDATES),
        )
        known: dict[str, int] = dict(rows)
        near = difflib.get_close_matches(word, known, MAX_NEAR, similarity)
        alike = {other: difflib.SequenceMatcher(None, other, word).ratio() for other in near}
        if near:
            found[word] = max(near, key=lambda other: (alike[other], known[other], other))
    return found
