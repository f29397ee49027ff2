"""Document search: the search service finds by words and meaning, and this module scans contents it does not have yet.

While the search service is unavailable, this module scans everything.
"""

from __future__ import annotations

import bisect
import contextlib
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

from proto.errors import LinckiaError
from proto.ops.documents.reading import CORPUS
from proto.ops.retrieve import Filter, Fusion, Hit, RetrieveSearch
from proto.ops.retrieve import SearchResult as Retrieved
from services.documents.operations.find import DocumentsSearch, Found, MatchedLine, SearchResult, SearchType
from services.documents.store import globs, objects, rows, texts
from services.documents.store.compress import DamagedContent
from services.documents.store.databases import Store, is_complete
from services.documents.text import lines, trigram_index
from services.documents.text.feed import ContentFeed
from services.documents.text.indexing import WORD
from services.documents.text.passages import MAX_TEXT_CHARS, passages
from services.runtime.handlers import Context
from services.shared import literals
from services.shared.models.measure import ROUGH
from services.shared.text.cutting import Section
from services.shared.text.stop_words import STOP_WORDS

CANDIDATES = 100
"""Number of candidates per search stage."""
READ_AT_LEAST, READ_TIMES = 30, 3
"""Number of contents to request, at least and as a multiple of the page, since conditions may exclude some."""
SPARE = 2
"""Extra passages to request, for contents that were just deleted."""
SNIPPET_CHARS = 300
MAX_MATCHED_LINES = 50
MAX_RECENT = 4000
MAX_SCANNED = 4000
SCAN_LIMIT_S = 5.0
MAX_CANDIDATES = 60_000
MAX_WORDS = 16
MAX_NEAR = 10
"""Number of similar words to consider; the correction is the most similar one, and the most frequent among equals."""

_TERM = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Scored:
    """A content that was found: its score in [0, 1], and a passage with the number of its first line (0 if unknown).

    The passage is None if it was not requested; if it is needed after all, it is taken from the text.
    """

    object: int
    score: float
    passage: str | None
    line: int
    cosine: float | None = None
    matched: Sequence[str] = ()


async def search(params: DocumentsSearch, store: Store, feed: ContentFeed, ctx: Context) -> SearchResult:
    """Search documents.  Raises InvalidParams."""
    began = time.monotonic()
    conditions = rows.conditions(
        tags=params.tags, collection=params.collection, session=params.session, extension=params.extension,
        path=params.path,
    )  # fmt: skip
    query = params.query or ""
    terms = [] if params.hash is not None else terms_of(query)
    corrected: dict[str, str] = {}
    if params.fuzzy and terms:
        corrected = await store.read(lambda db: corrections(db, query, params.similarity))
        terms += [word for word in corrected.values() if word not in terms]
    retrieved: Retrieved | None = None
    degraded: list[str] = []
    scans = bool(terms) and params.type is not SearchType.SEMANTIC
    # Read before the search, so that contents delivered meanwhile are found in at least one place.
    waiting = await store.read(waiting_of) if scans else []
    if query.strip() and params.hash is None:
        try:
            retrieved = await ctx.call(_asked(params, conditions, " ".join([query, *corrected.values()])))
            degraded += retrieved.degraded
        except LinckiaError as error:
            degraded.append(f"search: {error}; texts were scanned for words instead")

    def answer(db: apsw.Connection) -> tuple[int, list[Found], bool, str]:
        if params.hash is not None:
            span = rows.hash_range(params.hash)
            ids = db.execute("SELECT id FROM object WHERE hash BETWEEN ? AND ? ORDER BY id LIMIT 1000", span)
            of_hash = [Scored(object_, 1.0, "", 0) for (object_,) in ids]
            return *_documents(db, params, conditions, of_hash), False, ""
        found_by = {one.object: one for one in (_hit(hit, feed.prefix) for hit in retrieved.hits)} if retrieved else {}
        scanned, cut = scan(db, terms, waiting, everything=retrieved is None) if scans else ([], "")
        for one in scanned:
            known = found_by.get(one.object)
            if known is None or known.score < one.score:
                found_by[one.object] = one
        ordered = sorted(found_by.values(), key=lambda one: (-one.score, one.object))
        return *_documents(db, params, conditions, ordered), bool(scanned), cut

    total, page, scanned, cut = await store.read(answer)
    stages = ["hash"] if params.hash is not None else [] if retrieved is None else list(retrieved.stages)
    if scans and (scanned or retrieved is None):
        stages.append("recent" if retrieved is not None else "scan")
    kind = "hybrid" if {"lexical", "vector"} <= {*stages} else "semantic" if "vector" in stages else "keyword"
    return SearchResult(
        total=total, type="hash" if params.hash is not None else kind,
        execution_time_ms=round((time.monotonic() - began) * 1000, 3), results=[] if params.paths_only else page,
        paths=[one.path for one in page] if params.paths_only else None, corrected=corrected, stages=stages,
        degraded=[*degraded, *filter(None, [cut])], unlikely=0 if retrieved is None else retrieved.unlikely,
        # The note does not apply to scanned contents.
        note="" if retrieved is None or "recent" in stages else retrieved.note,
    )  # fmt: skip


def _asked(params: DocumentsSearch, conditions: rows.Conditions, query: str) -> RetrieveSearch:
    filters = [Filter(field="tags", any_of=[tag]) for tag in params.tags]
    if params.collection is not None:
        filters.append(Filter(field="collections", any_of=[params.collection]))
    if params.extension is not None:
        filters.append(Filter(field="extensions", any_of=[*rows.extensions(params.extension)]))
    most = min(1000, max(READ_AT_LEAST, READ_TIMES * params.limit))
    if params.path is not None and params.path.startswith("/") and not globs.is_glob(params.path):
        # It may be a folder or a file; the conditions on rows decide.
        place = params.path.rstrip("/")
        filters.append(Filter(field="folders", any_of=[place, place.rpartition("/")[0]]))
    elif params.path is not None:
        most = 1000
    method = {SearchType.KEYWORD: "lexical", SearchType.SEMANTIC: "vector", SearchType.HYBRID: "weighted"}[params.type]
    # Without conditions, nearly all results are shown.
    read = None if conditions.clauses else min(params.limit + SPARE, most)
    return RetrieveSearch(
        collection=CORPUS, query=query, limit=most, candidates=max(CANDIDATES, most), filters=filters,
        fusion=Fusion(method=method), texts=read, min_score=params.min_score,
    )  # fmt: skip


def _hit(hit: Hit, prefix: str) -> Scored:
    object_ = hit.group.removeprefix(prefix)
    first = hit.item_metadata.get("first")
    number = first if isinstance(first, int) else 0
    return Scored(
        int(object_) if object_.isdigit() else -1, hit.score, hit.text or None, number, hit.vector, hit.matched
    )


def _cut(text: str, terms: list[str]) -> tuple[str, int]:
    """Return about `SNIPPET_CHARS` of a text, from where the terms are densest, and the index of that line."""
    if len(text) <= SNIPPET_CHARS:
        return text, 0
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
    said = text[start : start + SNIPPET_CHARS]
    start += len(said) - len(said.lstrip("\n"))
    return said.strip("\n"), text.count("\n", 0, start)


def _places(text: str, term: str) -> list[int]:
    found: list[int] = []
    at = text.find(term)
    while at >= 0 and len(found) < 50:
        found.append(at)
        at = text.find(term, at + 1)
    return found


def _documents(
    db: apsw.Connection, params: DocumentsSearch, conditions: rows.Conditions, ordered: list[Scored]
) -> tuple[int, list[Found]]:
    """Return the number of documents that hold the results, and the first of them."""
    counts = rows.count_by_object(db, [one.object for one in ordered], conditions)
    terms = terms_of(params.query or "")
    page: list[Found] = []
    for one in ordered:
        if len(page) == params.limit:
            break
        if one.object not in counts:
            continue
        passage, first = (one.passage, one.line)
        if passage is None:
            passage, first = best_passage(db, one.object, terms)
        text, line = _cut(passage, terms)
        at = first + line if first else None
        matches = _matches(db, one.object, terms, params.context) if (
            params.line_numbers or params.context) else []  # fmt: skip
        page += [
            Found(
                id=holder.id, hash=holder.hash, title=holder.name, path=holder.path, name=holder.name,
                score=round(one.score, 6), snippet=text, mime_type=holder.mime_type, size=holder.size, tags=holder.tags,
                first_line=at, last_line=None if at is None else at + text.count("\n"),
                line_number=at if params.line_numbers else None, matches=matches, matched=[*one.matched],
                cosine=None if one.cosine is None else round(one.cosine, 6),
            )
            for holder in rows.holding(db, one.object, conditions, params.limit - len(page))
        ]  # fmt: skip
    return sum(counts.values()), page


def _matches(db: apsw.Connection, object_: int, terms: list[str], context: int) -> list[MatchedLine]:
    if not terms:
        return []
    matcher = lines.compiled(
        "|".join(re.sub(r"(\W)", r"\\\1", term) for term in terms), ignore_case=True, word=False, literal=False
    )
    found: list[MatchedLine] = []
    # Return the readable part; `get` reports the damage.
    with contextlib.suppress(DamagedContent):
        stored = objects.by_id(db, object_)
        for window in texts.windows(db, stored, context) if texts.has_text(stored) else ():
            for line in matcher.lines(window, context, bare=False):
                if len(found) == MAX_MATCHED_LINES:
                    return found
                found.append(
                    MatchedLine(
                        line_number=line.number, line_text=line.text, context_before=line.before,
                        context_after=line.after,
                    )
                )  # fmt: skip
    return found


def terms_of(query: str) -> list[str]:
    found = list(dict.fromkeys(term.casefold() for term in _TERM.findall(query)))
    return [term for term in found if term not in STOP_WORDS] or found


def waiting_of(db: apsw.Connection) -> list[int]:
    """Return contents not yet delivered to the search, latest first, and one more than are scanned."""
    query = "SELECT object FROM search_outbox ORDER BY number DESC LIMIT ?"
    return [object_ for (object_,) in db.execute(query, (MAX_RECENT + 1,))]


def scan(db: apsw.Connection, terms: list[str], waiting: list[int], *, everything: bool) -> tuple[list[Scored], str]:
    """Scan contents for terms.  Returns them scored by BM25 over the scanned contents, and a note on omissions.

    Scans the `waiting` contents and, if `everything`, all that the trigram index admits.
    """
    give_up = time.monotonic() + SCAN_LIMIT_S
    cut = ""
    if len(waiting) > MAX_RECENT:
        cut = f"search: more than {MAX_RECENT} contents are not yet in the search; only the latest were scanned"
    candidates = dict.fromkeys(waiting[:MAX_RECENT])
    if everything:
        wanted = literals.trigrams_of_any(terms, ignore_case=True) if is_complete(db) else literals.ANYTHING
        if (expression := trigram_index.expression_of(db, wanted)) is None:
            readable = db.execute("SELECT id FROM object WHERE text_state IN (1, 2) LIMIT ?", (MAX_SCANNED + 1,))
            indexed = [object_ for (object_,) in readable]
        else:
            indexed = list(itertools.islice(trigram_index.having(db, expression, 0), MAX_SCANNED + 1))
        if len(indexed) > MAX_SCANNED:
            cut = f"search: more than {MAX_SCANNED} contents may have these words; not all were scanned"
        queued = db.execute("SELECT object FROM index_outbox LIMIT ?", (MAX_SCANNED,))
        candidates |= dict.fromkeys([*indexed[:MAX_SCANNED], *(object_ for (object_,) in queued)])
    pattern = re.compile("|".join(re.escape(term) for term in sorted(terms, key=len, reverse=True)), re.IGNORECASE)
    counted: list[tuple[int, Counter[str], int]] = []
    documents: Counter[str] = Counter()
    for object_ in candidates:
        if time.monotonic() > give_up:
            cut = "search: scanning took too long and was stopped; results are incomplete"
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
    """Return the passage with the most terms and its first line; '' and 0 if the content has no passages."""
    text, mime = texts.beginning(db, object_, MAX_TEXT_CHARS)

    def score(passage: Section) -> float:
        folded = passage.text.casefold()
        return sum(1 + min(folded.count(term), 9) / 10 for term in terms if term in folded)

    best = max(passages(text, mime, "", ROUGH), key=score, default=None)
    return ("", 0) if best is None else (best.text, best.first)


def corrections(db: apsw.Connection, query: str, similarity: float) -> dict[str, str]:
    """Map misspelt words of the query to the most similar known word, if one is similar enough.

    Similarity is the ratio of matching characters (Ratcliff and Obershelp, 1988). The first letter is assumed correct.
    """
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
