"""Searching documents: the search service finds by words and meaning; what was not delivered to it yet is looked
through here, and so is everything while it is away.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import time

import apsw

from proto.errors import LinckiaError
from proto.ops.documents.find import DocumentsSearch, Found, MatchedLine, SearchResult, SearchType
from proto.ops.documents.reading import CORPUS
from proto.ops.retrieve import Filter, Fusion, Hit, RetrieveSearch
from proto.ops.retrieve import SearchResult as Retrieved
from services.documents.store import globs, objects, rows, texts
from services.documents.store.compress import DamagedContent
from services.documents.store.store import Store
from services.documents.text import lines
from services.documents.text.feed import ContentFeed
from services.documents.text.words import Scored, best_passage, corrections, scan, terms_of, waiting_of
from services.runtime.handlers import Context

CANDIDATES = 100
"""Of each stage, that are put in order."""
READ_AT_LEAST, READ_TIMES = 30, 3
"""Contents whose passages come back: a few times as many as are shown, since some may not be admitted."""
SPARE = 2
"""Passages more than are shown, for contents that were deleted a moment ago."""
SNIPPET_CHARS = 300
MAX_MATCHED_LINES = 50


async def search(params: DocumentsSearch, store: Store, feed: ContentFeed, ctx: Context) -> SearchResult:
    """Raises InvalidParams."""
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
    # Before the search is asked: what it is told of meanwhile would be found neither there nor here.
    waiting = await store.read(waiting_of) if scans else []
    if query.strip() and params.hash is None:
        try:
            retrieved = await ctx.call(_asked(params, conditions, " ".join([query, *corrected.values()])))
            degraded += retrieved.degraded
        except LinckiaError as error:
            degraded.append(f"search: {error}; found by words alone, by looking through the texts")

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
        # What was found by looking through texts holds every word.
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
        # A folder or a file; which of the two, the rows say.
        place = params.path.rstrip("/")
        filters.append(Filter(field="folders", any_of=[place, place.rpartition("/")[0]]))
    elif params.path is not None:
        most = 1000
    method = {SearchType.KEYWORD: "lexical", SearchType.SEMANTIC: "vector", SearchType.HYBRID: "weighted"}[params.type]
    # Without conditions, nearly every content that is found is shown.
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
    """About `SNIPPET_CHARS` of a text, from the line on where the most terms are near; and which line that is."""
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
    """How many documents hold what was found, and the first of them."""
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
                first_line=where, last_line=None if where is None else where + text.count("\n"),
                line_number=where if params.line_numbers else None, matches=matches, matched=[*one.matched],
                cosine=None if one.cosine is None else round(one.cosine, 6),
            )
            for holder in rows.holding(db, one.object, conditions, params.limit - len(page))
            for where in [None if holder.mime_type.startswith("text/html") else at]
        ]  # fmt: skip
    return sum(counts.values()), page


def _matches(db: apsw.Connection, object_: int, terms: list[str], context: int) -> list[MatchedLine]:
    if not terms:
        return []
    matcher = lines.compiled(
        "|".join(re.sub(r"(\W)", r"\\\1", term) for term in terms), ignore_case=True, word=False, literal=False
    )
    found: list[MatchedLine] = []
    # What can be read of it is answered; `get` says what is wrong.
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
