"""Searching documents: the search service finds by words and meaning; what was not delivered to it yet is looked
through here, and so is everything while it is away.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import re
import time
from collections import Counter
from dataclasses import dataclass

import apsw

from proto.errors import LinckiaError
from proto.ops.documents.find import DocumentsSearch, Found, MatchedLine, SearchResult, SearchType
from proto.ops.documents.reading import CORPUS
from proto.ops.retrieve import Filter, Fusion, Hit, RetrieveSearch
from proto.ops.retrieve import SearchResult as Retrieved
from services.documents.store import holders, objects, rows, texts
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.store import Store, is_complete
from services.documents.text import lines, pieces, trigrams
from services.documents.text.feed import SearchFeed
from services.documents.text.passages import MAX_TEXT_CHARS, passages
from services.documents.text.spelling import corrections
from services.runtime import literals
from services.runtime.handlers import Context

CANDIDATES = 100
"""Of each stage, that are put in order."""
READ_AT_LEAST, READ_TIMES = 30, 3
"""Contents whose passages come back: a few times as many as are shown, since some may not be admitted."""
SPARE = 2
"""Passages more than are shown, for contents that were deleted a moment ago."""
SNIPPET_CHARS = 300
MAX_RECENT = 4000
MAX_SCANNED = 4000
SCAN_LIMIT_S = 5.0
MAX_MATCHED_LINES = 50

_TERM = re.compile(r"\w+")
_STOP_WORDS = frozenset(
    _TERM.findall(
        """a an and are as at be by for from had has have how i if in into is it its of on or so that the their then
        there these they this to was we were what when where which who why will with you your"""
    )
)


@dataclass(frozen=True, slots=True)
class _Scored:
    """A content that was found: its score in [0, 1], and a passage of it with the passage's first line (0: none).

    The passage is None where it was not asked for, and is made of the text where it is needed after all.
    """

    object: int
    score: float
    passage: str | None
    line: int


def _terms(query: str) -> list[str]:
    found = list(dict.fromkeys(term.casefold() for term in _TERM.findall(query)))
    return [term for term in found if term not in _STOP_WORDS] or found


def conditions_of(params: DocumentsSearch) -> rows.Conditions:
    """Raises InvalidParams."""
    return rows.conditions(
        tags=params.tags, collection=params.collection, session=params.session, extension=params.extension,
        path=params.path,
    )  # fmt: skip


async def search(params: DocumentsSearch, store: Store, codec: Codec, feed: SearchFeed, ctx: Context) -> SearchResult:
    """Raises InvalidParams."""
    began = time.monotonic()
    conditions = conditions_of(params)
    if params.hash is not None:
        total, page = await store.read(lambda db: _of_hash(db, codec, params, conditions))
        return _result(params, began, "hash", total, page, {}, ["hash"], [])
    query = params.query or ""
    terms = _terms(query)
    corrected: dict[str, str] = {}
    if params.fuzzy and terms:
        corrected = await store.read(lambda db: corrections(db, query, params.similarity))
        terms += [word for word in corrected.values() if word not in terms]
    retrieved: Retrieved | None = None
    degraded: list[str] = []
    # Before the search is asked: what it is told of meanwhile would be found neither there nor here.
    waiting = await store.read(_waiting) if terms and params.type is not SearchType.SEMANTIC else []
    if query.strip():
        asked = " ".join([query, *corrected.values()]) if corrected else query
        try:
            retrieved = await ctx.call(_asked(params, conditions, asked))
        except LinckiaError as error:
            degraded.append(f"search: {error}; found by words alone, by looking through the texts")
    stages = [] if retrieved is None else list(retrieved.stages)
    degraded += [] if retrieved is None else retrieved.degraded
    hits = [] if retrieved is None else [_hit(hit, feed.prefix) for hit in retrieved.hits]

    scans = bool(terms) and params.type is not SearchType.SEMANTIC

    def answer(db: apsw.Connection) -> tuple[int, list[Found], bool, str]:
        found_by = {one.object: one for one in hits}
        scanned, cut = _scan(db, codec, terms, waiting, everything=retrieved is None) if scans else ([], "")
        for one in scanned:
            known = found_by.get(one.object)
            if known is None or known.score < one.score:
                found_by[one.object] = one
        ordered = sorted(found_by.values(), key=lambda one: (-one.score, one.object))
        return *_documents(db, codec, params, conditions, ordered), bool(scanned), cut

    total, page, scanned, cut = await store.read(answer)
    if scans and (scanned or retrieved is None):
        stages.append("recent" if retrieved is not None else "scan")
    degraded += [cut] * bool(cut)
    ran = set(retrieved.stages) if retrieved is not None else set()
    kind = "hybrid" if {"lexical", "vector"} <= ran else "semantic" if "vector" in ran else "keyword"
    return _result(params, began, kind, total, page, corrected, stages, degraded)


def _result(
    params: DocumentsSearch,
    began: float,
    kind: str,
    total: int,
    page: list[Found],
    corrected: dict[str, str],
    stages: list[str],
    degraded: list[str],
) -> SearchResult:
    return SearchResult(
        total=total,
        type=kind,
        execution_time_ms=round((time.monotonic() - began) * 1000, 3),
        results=[] if params.paths_only else page,
        paths=[one.path for one in page] if params.paths_only else None,
        corrected=corrected,
        stages=stages,
        degraded=degraded,
    )


def _of_hash(
    db: apsw.Connection, codec: Codec, params: DocumentsSearch, conditions: rows.Conditions
) -> tuple[int, list[Found]]:
    ordered = [_Scored(object_, 1.0, "", 0) for object_ in _by_hash(db, params)]
    return _documents(db, codec, params, conditions, ordered)


def _asked(params: DocumentsSearch, conditions: rows.Conditions, query: str) -> RetrieveSearch:
    filters = [Filter(field="tags", any_of=[tag]) for tag in params.tags]
    if params.collection is not None:
        filters.append(Filter(field="collections", any_of=[params.collection]))
    if params.extension is not None:
        wanted = [f".{one.strip().lower().lstrip('.')}" for one in params.extension.split(",") if one.strip(" .")]
        filters.append(Filter(field="extensions", any_of=[*wanted]))
    most = min(1000, max(READ_AT_LEAST, READ_TIMES * params.limit))
    if params.path is not None and params.path.startswith("/") and not re.search(r"[*?\[]", params.path):
        # A folder or a file; which of the two, the rows say.
        filters.append(
            Filter(field="folders", any_of=[params.path.rstrip("/"), params.path.rstrip("/").rpartition("/")[0]])
        )
    elif params.path is not None:
        most = 1000
    method = {SearchType.KEYWORD: "lexical", SearchType.SEMANTIC: "vector", SearchType.HYBRID: "weighted"}[params.type]
    return RetrieveSearch(
        collection=CORPUS,
        query=query,
        limit=most,
        candidates=max(CANDIDATES, most),
        filters=filters,
        fusion=Fusion(method=method),
        # Without conditions, nearly every content that is found is shown.
        texts=None if conditions.clauses else min(params.limit + SPARE, most),
    )


def _hit(hit: Hit, prefix: str) -> _Scored:
    object_ = hit.group.removeprefix(prefix)
    first = hit.item_metadata.get("first")
    number = first if isinstance(first, int) else 0
    return _Scored(int(object_) if object_.isdigit() else -1, hit.score, hit.text or None, number)


def _cut(text: str, terms: list[str]) -> tuple[str, int]:
    """About `SNIPPET_CHARS` of a text, from the line on where the most terms are near; and which line that is."""
    if len(text) <= SNIPPET_CHARS:
        return text.strip("\n"), 0
    folded = text.casefold() if len(text.casefold()) == len(text) else text.lower()
    places = sorted(place for term in terms for place in _places(folded, term))
    best, most = 0, 0
    for index, place in enumerate(places):
        near = bisect.bisect_left(places, place + SNIPPET_CHARS, index) - index
        if near > most:
            best, most = place, near
    start = text.rfind("\n", 0, best) + 1 if best else 0
    if best - start > SNIPPET_CHARS // 2:
        start = best - 60
    return text[start : start + SNIPPET_CHARS].strip("\n"), text.count("\n", 0, start)


def _places(text: str, term: str) -> list[int]:
    found: list[int] = []
    at = text.find(term)
    while at >= 0 and len(found) < 50:
        found.append(at)
        at = text.find(term, at + 1)
    return found


def _by_hash(db: apsw.Connection, params: DocumentsSearch) -> list[int]:
    assert params.hash is not None
    low, high = rows.hash_range(params.hash)
    return [int(str(id_)) for (id_,) in db.execute(
        "SELECT id FROM object WHERE hash BETWEEN ? AND ? ORDER BY id LIMIT 1000", (low, high))]  # fmt: skip


def _waiting(db: apsw.Connection) -> list[int]:
    """Contents that wait for delivery to the search, the latest first; one more than are looked through."""
    return [int(str(id_)) for (id_,) in db.execute(
        "SELECT object FROM search_outbox ORDER BY number DESC LIMIT ?", (MAX_RECENT + 1,))]  # fmt: skip


def _scan(
    db: apsw.Connection, codec: Codec, terms: list[str], waiting: list[int], *, everything: bool
) -> tuple[list[_Scored], str]:
    """Contents that have the terms, scored by BM25 over those that are looked at; and what was left out, if any.

    Looked at is what is `waiting`; with `everything`, all that the index of trigrams admits as well.
    """
    began = time.monotonic()
    cut = ""
    if len(waiting) > MAX_RECENT:
        cut = f"search: more than {MAX_RECENT} contents are still to be told of; the latest were looked through"
    candidates = dict.fromkeys(waiting[:MAX_RECENT])
    if everything:
        wanted = literals.trigrams_of_any(terms, ignore_case=True)
        expression = trigrams.fts5(wanted, pieces.shares(db, trigrams.terms(wanted)))
        if expression is None or not is_complete(db):
            done = db.execute("SELECT id FROM object WHERE text_state IN (1, 2) LIMIT ?", (MAX_SCANNED + 1,))
            indexed = [int(str(id_)) for (id_,) in done]
        else:
            having = itertools.islice(pieces.having(db, expression, 0), MAX_SCANNED + 1)
            indexed = [object_ for object_, _ in having]
        if len(indexed) > MAX_SCANNED:
            cut = f"search: more than {MAX_SCANNED} contents may have these words; not all were looked through"
        candidates.update(dict.fromkeys(indexed[:MAX_SCANNED]))
        candidates.update(
            (int(str(id_)), None) for (id_,) in db.execute("SELECT object FROM index_outbox LIMIT ?", (MAX_SCANNED,))
        )
    if not candidates:
        return [], cut
    pattern = re.compile("|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True)), re.IGNORECASE)
    counted: list[tuple[int, Counter[str], int]] = []
    documents: Counter[str] = Counter()
    for object_ in candidates:
        if time.monotonic() - began > SCAN_LIMIT_S:
            cut = "search: looking through the texts took too long; not all were"
            break
        found = _count(db, codec, object_, pattern, terms)
        if found is not None:
            counted.append((object_, *found))
            documents.update(found[0].keys())
    if not counted:
        return [], cut
    average = sum(length for _, _, length in counted) / len(counted) or 1.0
    weights = {term: math.log(1 + (len(candidates) - n + 0.5) / (n + 0.5)) for term, n in documents.items()}
    most = sum(weights.get(term, math.log(1 + len(candidates) * 2)) for term in terms) * 2.2
    scored = heapq.nlargest(
        1000,
        (
            (sum(weights[term] * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * length / average)) for term, n in held.items())
             / most, -object_)
            for object_, held, length in counted
        ),
    )  # fmt: skip
    answer: list[_Scored] = []
    for score, negative in scored:
        passage, line = _best_passage(db, codec, -negative, terms) if len(answer) < 100 else ("", 0)
        answer.append(_Scored(-negative, min(1.0, score), passage, line))
    return answer, cut


def _count(
    db: apsw.Connection, codec: Codec, object_: int, pattern: re.Pattern[str], terms: list[str]
) -> tuple[Counter[str], int] | None:
    names = " ".join(
        str(path) for (path,) in db.execute("SELECT path FROM document WHERE object=? LIMIT 8", (object_,))
    )
    stored, beginning = texts.beginning_of(db, codec, object_, MAX_TEXT_CHARS)
    if stored is None and not names:
        return None
    text = f"{names}\n{beginning}"
    held: Counter[str] = Counter()
    for match in pattern.findall(text):
        held[match.casefold()] += 1
    known = Counter({term: held[term] for term in terms if held[term]})
    return (known, len(text)) if known else None


def _best_passage(db: apsw.Connection, codec: Codec, object_: int, terms: list[str]) -> tuple[str, int]:
    stored, text = texts.beginning_of(db, codec, object_, MAX_TEXT_CHARS)
    if stored is None:
        return "", 0
    best, most = None, -1.0
    for passage in passages(text, stored.mime):
        folded = passage.text.casefold()
        score = sum(1 + min(folded.count(term), 9) / 10 for term in terms if term in folded)
        if score > most:
            best, most = passage, score
    if best is None:
        return "", 0
    return best.text, best.first


def _documents(
    db: apsw.Connection, codec: Codec, params: DocumentsSearch, conditions: rows.Conditions, ordered: list[_Scored]
) -> tuple[int, list[Found]]:
    """How many documents hold what was found, and the first of them."""
    counts = holders.count_by_object(db, [one.object for one in ordered], conditions)
    shown = [one for one in ordered if one.object in counts][: params.limit]
    found = holders.holders(db, [one.object for one in shown], conditions, params.limit)
    terms = _terms(params.query or "")
    page: list[Found] = []
    for one in shown:
        if one.object not in found:
            break
        passage, line = _cut_of(db, codec, one, terms)
        matches = _matches(db, codec, one.object, terms, params.context) if (
            params.line_numbers or params.context) else []  # fmt: skip
        page += [_found(holder, one.score, passage, line, params, matches) for holder in found[one.object]]
    return sum(counts.values()), page


def _cut_of(db: apsw.Connection, codec: Codec, one: _Scored, terms: list[str]) -> tuple[str, int]:
    """What is shown of a content, and its line (0: not known)."""
    passage, first = (one.passage, one.line) if one.passage is not None else _best_passage(db, codec, one.object, terms)
    text, line = _cut(passage, terms)
    return text, first + line if first else 0


def _found(
    holder: holders.Holder, score: float, passage: str, line: int, params: DocumentsSearch, matches: list[MatchedLine]
) -> Found:
    number = line if params.line_numbers and line and not holder.mime_type.startswith("text/html") else None
    return Found(
        id=holder.id, hash=holder.hash, title=holder.name, path=holder.path, name=holder.name,
        score=round(score, 6), snippet=passage, mime_type=holder.mime_type, size=holder.size,
        tags=holder.tags, line_number=number, matches=matches,
    )  # fmt: skip


def _matches(db: apsw.Connection, codec: Codec, object_: int, terms: list[str], context: int) -> list[MatchedLine]:
    if not terms:
        return []
    matcher = lines.compiled(
        "|".join(re.sub(r"(\W)", r"\\\1", term) for term in terms), ignore_case=True, word=False, literal=False
    )
    found: list[MatchedLine] = []
    try:
        stored = objects.by_id(db, object_)
        if stored is None or not texts.has_text(stored):
            return []
        for window in texts.windows(db, codec, stored, context):
            for line in matcher.lines(window, context, bare=False):
                found.append(
                    MatchedLine(
                        line_number=line.number,
                        line_text=line.text,
                        context_before=line.before,
                        context_after=line.after,
                    )
                )
                if len(found) >= MAX_MATCHED_LINES:
                    return found
    except DamagedContent:
        # What can be read of it is answered; `get` says what is wrong.
        return found
    return found
