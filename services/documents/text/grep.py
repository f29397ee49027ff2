"""Grep over all documents: the trigram index selects candidates, whose text is then searched.

The index only excludes contents. Those not indexed yet are searched too, so results are complete right after an `add`.
Contents are visited in the order of their ids, so a cursor can resume.
"""

from __future__ import annotations

import heapq
import itertools
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import apsw

from proto.errors import InvalidParams
from services.documents.operations.find import DocumentsGrep, FileCount, GrepMatch, GrepResult
from services.documents.store import rows, texts
from services.documents.store.compress import DamagedContent
from services.documents.store.databases import is_complete
from services.documents.store.objects import Stored
from services.documents.store.tables import TEXT_OWN
from services.documents.text import trigram_index
from services.documents.text.lines import Line, TookTooLong, compiled
from services.shared import literals

TIME_LIMIT_S = 20.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_NOTES = 20
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})")


class _Cursor(NamedTuple):
    """The end of a page: a content, a document that holds it, and the number of its matches already returned."""

    object: int = 0
    document: int = 0
    matches: int = 0


def _parsed_cursor(cursor: str | None) -> _Cursor:
    if cursor is None:
        return _Cursor()
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidParams("parameter `cursor`: unknown cursor; use a `next_cursor` of this tool", field="cursor")
    return _Cursor(*map(int, match.groups()))


def conditions_of(params: DocumentsGrep) -> rows.Conditions:
    """Translate the filters of a grep to conditions.  Raises InvalidParams."""
    found = rows.conditions(
        tags=params.tags, collection=params.collection, session=params.session, extension=params.extension,
        hash_=params.hash,
    )  # fmt: skip
    if params.paths:
        alternatives = rows.Conditions()
        for path in params.paths:
            rows.under(alternatives, path)
        if len(alternatives.clauses) < len(params.paths):
            # One of the paths is `/`, which admits everything.
            alternatives = rows.Conditions()
        else:
            found.is_slow |= alternatives.is_slow
            found.add(f"({' OR '.join(alternatives.clauses)})", *alternatives.values)
    if params.include_patterns:
        found.add_globs(params.include_patterns)
    if params.exclude_patterns:
        found.add_globs(params.exclude_patterns, negated=True)
    return found


def grep(db: apsw.Connection, params: DocumentsGrep) -> GrepResult:
    """Run a grep.  Raises InvalidParams."""
    began = time.monotonic()
    found = _Grep(db, params)
    found.run(began + TIME_LIMIT_S)
    return GrepResult(
        match_count=found.match_count, file_count=found.file_count, matches=found.matches,
        files=found.files if params.files_with_matches and not params.count else None,
        counts=found.counts if params.count else None, counts_left_out=found.left_out,
        truncated=found.stopped is not None,
        next_cursor=None if found.stopped is None else "-".join(map(str, found.stopped)), searched=found.searched,
        execution_time_ms=round((time.monotonic() - began) * 1000, 3), degraded=found.degraded,
    )  # fmt: skip


class _Grep:
    """One grep, on one snapshot of the store."""

    def __init__(self, db: apsw.Connection, params: DocumentsGrep) -> None:
        self._db = db
        self._params = params
        self._matcher = compiled(
            params.pattern, ignore_case=params.ignore_case, word=params.word, literal=params.literal
        )
        self._conditions = conditions_of(params)
        self._begin = _parsed_cursor(params.cursor)
        self._has_text = texts.is_own if params.original else texts.has_text
        self._only_files = params.files_with_matches and not params.count
        self._bytes = 0
        self.match_count = self.file_count = self.searched = self.left_out = 0
        self.matches: list[GrepMatch] = []
        self.files: list[str] = []
        self.counts: list[FileCount] = []
        self.degraded: list[str] = []
        self.stopped: _Cursor | None = None

    def run(self, until: float) -> None:
        self._say_what_is_not_stored()
        for stored, text in texts.ahead(self._db, self._candidates(), self._say):
            if time.monotonic() > until:
                self.stopped = _Cursor(stored.id)
                break
            if not self._look(stored, text):
                break

    def _say_what_is_not_stored(self) -> None:
        for path in self._params.paths if self._params.cursor is None else ():
            place = rows.Conditions()
            rows.under(place, path)
            if self._db.execute(f"SELECT 1 FROM document{place.where} LIMIT 1", place.values).fetchone() is None:
                near = rows.nearest(self._db, path)
                self._say(f"no document is stored at or below {path[:200]!r}; only added documents are searched{near}")

    def _say(self, what: str) -> None:
        if len(self.degraded) < MAX_NOTES:
            self.degraded.append(what)

    def _candidates(self) -> Iterator[int]:
        """Yield the ids of contents that may match, in order, including all that are not indexed yet."""
        db, params, first = self._db, self._params, self._begin.object
        # Read before the index, so that a content that moves into it meanwhile is in at least one of the two.
        query = (
            "SELECT object FROM main.index_outbox WHERE object >= ?1 UNION SELECT object FROM idx.unindexed"
            # These are long, so skip those without a document.
            " WHERE object >= ?1 AND EXISTS(SELECT 1 FROM main.document WHERE document.object = unindexed.object)"
            " ORDER BY 1"
        )
        waiting = list(_ints(db.execute(query, (first,))))
        # The index has the texts that were extracted, not their sources.
        sources: list[int] = []
        if params.original:
            query = "SELECT id FROM object WHERE id >= ? AND is_text AND text_state <> ? ORDER BY id"
            sources = list(_ints(db.execute(query, (first, TEXT_OWN))))
        wanted = literals.ANYTHING
        if is_complete(db):
            wanted = literals.trigrams_of(params.pattern, literal=params.literal, ignore_case=params.ignore_case)
        expression = trigram_index.expression_of(db, wanted)
        allowed: set[int] | None = None
        found = self._conditions
        if found.clauses and (expression is None or not found.is_slow):
            query = (
                "SELECT DISTINCT document.object FROM document JOIN object ON object.id = document.object"
                f"{found.where} AND document.object >= ?"
            )
            allowed = set(_ints(db.execute(query, (*found.values, first))))
        if expression is None:
            query = "SELECT id FROM object WHERE id >= ? AND (is_text OR text_state IN (1, 2)) ORDER BY id"
            yield from sorted(allowed) if allowed is not None else _ints(db.execute(query, (first,)))
            return
        # A waiting content may be in the index as well.
        having = trigram_index.having(db, expression, first)
        for object_, _ in itertools.groupby(heapq.merge(waiting, sources, having)):
            if allowed is None or object_ in allowed:
                yield object_

    def _look(self, stored: Stored, text: bytes | None) -> bool:
        """Collect the matches of one content.  Returns False if the page is full."""
        if not self._has_text(stored) or not (holders := self._holders(stored.id)):
            return True
        self.searched += 1
        count, lines = self._lines(stored, text)
        if not count:
            return True
        for id_, path in holders:
            is_here = stored.id == self._begin.object
            if is_here and id_ < self._begin.document:
                continue
            skip = self._begin.matches if is_here and id_ == self._begin.document else 0
            if not self._take(stored, id_, path, count, lines, skip):
                return False
        return True

    def _lines(self, stored: Stored, text: bytes | None) -> tuple[int, list[Line]]:
        """Return the number of matching lines in a content, counted as far as needed, and the lines to return."""
        params = self._params
        # One more than fits shows that there are more.
        most = 1 if self._only_files else params.limit - len(self.matches) + 1 + self._begin.matches
        if params.count:
            most = params.max_count or 2**62
        elif params.max_count:
            most = min(most, params.max_count)
        lines: list[Line] = []
        count = 0
        bare = params.count or self._only_files
        try:
            windows = (texts.own_windows if params.original else texts.windows)(self._db, stored, params.context)
            for window in windows if text is None else [texts.window(text)]:
                for line in itertools.islice(self._matcher.lines(window, params.context, bare=bare), most - count):
                    count += 1
                    if not params.count:
                        lines.append(line)
                if count >= most:
                    break
        except TookTooLong:
            self._say(f"{self._named(stored.id)}: the pattern takes too long on this file; the rest was skipped")
        except DamagedContent as error:
            self._say(f"{self._named(stored.id)}: {error}")
        return count, lines

    def _take(self, stored: Stored, id_: int, path: str, count: int, lines: list[Line], skip: int) -> bool:
        """Add the matches in one document, without the first `skip`.  Returns False if the page is full."""
        limit, hash_ = self._params.limit, stored.hash.hex()
        if self._params.count:
            # The totals include documents that are not listed.
            self.match_count += count
            if len(self.counts) < limit:
                self.counts.append(FileCount(file=path, hash=hash_, count=count))
            else:
                self.left_out += 1
            taken = 1
        elif self._only_files:
            if len(self.files) >= limit:
                self.stopped = _Cursor(stored.id, id_)
                return False
            self.files.append(path)
            taken = 1
            self.match_count += 1
        else:
            taken = 0
            for line in lines[skip:]:
                if len(self.matches) >= limit or self._bytes > MAX_ANSWER_BYTES:
                    self.stopped = _Cursor(stored.id, id_, skip + taken)
                    break
                taken += 1
                self._bytes += len(line.text) + sum(map(len, (*line.before, *line.after))) + 200
                self.matches.append(
                    GrepMatch(
                        file=path, hash=hash_, line_number=line.number, column=line.column, line_text=line.text,
                        context_before=line.before, context_after=line.after,
                    )
                )  # fmt: skip
            self.match_count += taken
        self.file_count += taken > 0
        return self.stopped is None

    def _holders(self, object_: int) -> list[tuple[int, str]]:
        """Return the id and path of the matching documents that hold a content."""
        found = self._conditions
        query = "SELECT document.id, document.path FROM document"
        if found.clauses:
            query += f" JOIN object ON object.id = document.object{found.where} AND document.object=?"
        else:
            query += " WHERE object=?"
        return list(self._db.execute(f"{query} ORDER BY document.id", (*found.values, object_)))

    def _named(self, object_: int) -> str:
        path = self._db.execute("SELECT path FROM document WHERE object=? ORDER BY id LIMIT 1", (object_,)).get
        return path or f"content {object_}"


def _ints(rows: apsw.Cursor) -> Iterator[int]:
    return (value for (value,) in rows)
