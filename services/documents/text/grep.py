"""Finding lines in all documents: candidates from the index of trigrams, then the text itself.

The index only ever excludes contents; those that are not in it yet are looked through like the candidates, so an
answer is complete a moment after an `add` as well.  Contents come in the order of their ids, which a cursor goes on
from.
"""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import apsw

from proto.errors import InvalidParams
from proto.ops.documents_find import DocumentsGrep, FileCount, GrepMatch, GrepResult
from services.documents.store import readahead, rows, texts
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.objects import Stored
from services.documents.store.store import is_complete
from services.documents.store.texts import Window
from services.documents.text import pieces, trigrams
from services.documents.text.lines import Line, Matcher, TookTooLong, compiled
from services.runtime import literals

TIME_LIMIT_S = 20.0
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_SAID = 20
_CURSOR = re.compile(r"(\d{1,18})-(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an answer ends: a content, a document that holds it, and how many of its matches were answered."""

    object: int = 0
    document: int = 0
    matches: int = 0

    def __str__(self) -> str:
        return f"{self.object}-{self.document}-{self.matches}"


def _place(cursor: str | None) -> _Place:
    if cursor is None:
        return _Place()
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise InvalidParams("parameter `cursor` is none that an answer has given", field="cursor")
    return _Place(*map(int, match.groups()))


def conditions_of(params: DocumentsGrep) -> rows.Conditions:
    """Raises InvalidParams."""
    found = rows.conditions(
        tags=params.tags, collection=params.collection, session=params.session, extension=params.extension,
        hash_=params.hash,
    )  # fmt: skip
    if params.paths:
        alternatives = rows.Conditions()
        for path in params.paths:
            rows.under(alternatives, path)
        if len(alternatives.clauses) < len(params.paths):
            # One of them is `/`, which admits all.
            alternatives = rows.Conditions()
        else:
            found.is_slow |= alternatives.is_slow
            found.add(f"({' OR '.join(alternatives.clauses)})", *alternatives.values)
    if params.include_patterns:
        found.add_globs(params.include_patterns)
    if params.exclude_patterns:
        found.add_globs(params.exclude_patterns, negated=True)
    return found


class _Answer:
    """An answer as it grows."""

    def __init__(self, params: DocumentsGrep) -> None:
        self.params = params
        self.match_count = 0
        self.file_count = 0
        self.searched = 0
        self.matches: list[GrepMatch] = []
        self.files: list[str] = []
        self.counts: list[FileCount] = []
        self.left_out = 0
        self.bytes = 0
        self.stopped: _Place | None = None
        self.degraded: list[str] = []

    def enough(self) -> float:
        """Contents that will probably be looked at until the answer is full, if they have as many matches as those that
        have been."""
        taken = len(self.matches) + len(self.files)
        if self.params.count or not taken:
            return math.inf
        return (self.params.limit + 1 - taken) * self.searched / taken

    def say(self, what: str) -> None:
        if len(self.degraded) < MAX_SAID:
            self.degraded.append(what)

    def count(self, path: str, hash_: str, lines: int) -> None:
        """Count the matches of a document; the totals are of all, whether it is listed or not."""
        self.match_count += lines
        self.file_count += 1
        if len(self.counts) < self.params.limit:
            self.counts.append(FileCount(file=path, hash=hash_, count=lines))
        else:
            self.left_out += 1

    def take(self, path: str, hash_: str, line: Line) -> bool:
        """Add a match; whether there was room."""
        if len(self.matches) >= self.params.limit or self.bytes > MAX_ANSWER_BYTES:
            return False
        self.bytes += len(line.text) + sum(map(len, line.before)) + sum(map(len, line.after)) + 200
        self.matches.append(
            GrepMatch(
                file=path,
                hash=hash_,
                line_number=line.number,
                column=line.column,
                line_text=line.text,
                context_before=line.before,
                context_after=line.after,
            )
        )
        return True


def grep(db: apsw.Connection, codec: Codec, params: DocumentsGrep) -> GrepResult:
    """Raises InvalidParams."""
    began = time.monotonic()
    matcher = compiled(params.pattern, ignore_case=params.ignore_case, word=params.word, literal=params.literal)
    found = conditions_of(params)
    begin = _place(params.cursor)
    answer = _Answer(params)
    within: dict[int, list[int] | None] = {}

    def candidates() -> Iterator[int]:
        for object_, numbers in _candidates(db, params, found, begin.object):
            within[object_] = numbers
            yield object_

    for stored, text in readahead.read(db, codec, candidates(), answer.enough, answer.say):
        if time.monotonic() - began > TIME_LIMIT_S:
            answer.stopped = _Place(stored.id)
            break
        windows = _windows(db, codec, stored, text, within.pop(stored.id), params.context)
        if not _look(db, matcher, stored, windows, found, begin, answer):
            break
    only_files = params.files_with_matches and not params.count
    return GrepResult(
        match_count=answer.match_count,
        file_count=answer.file_count,
        matches=answer.matches,
        files=answer.files if only_files else None,
        counts=answer.counts if params.count else None,
        counts_left_out=answer.left_out,
        truncated=answer.stopped is not None,
        next_cursor=None if answer.stopped is None else str(answer.stopped),
        searched=answer.searched,
        execution_time_ms=round((time.monotonic() - began) * 1000, 3),
        degraded=answer.degraded,
    )


def _candidates(
    db: apsw.Connection, params: DocumentsGrep, found: rows.Conditions, first: int
) -> Iterator[tuple[int, list[int] | None]]:
    """Contents that may have a match, by id from `first` on, and in which of their pieces (None: anywhere); the ones
    not indexed yet are always among them."""
    # Before the index is looked at: what comes into it meanwhile is in one of the two.
    waiting = [
        int(str(object_))
        for (object_,) in db.execute(
            "SELECT object FROM main.index_outbox WHERE object >= ?1 UNION SELECT object FROM idx.unindexed"
            # These are long: what only a snapshot holds, or nothing any more, is not looked through in vain.
            " WHERE object >= ?1 AND EXISTS(SELECT 1 FROM main.document WHERE document.object = unindexed.object)"
            " ORDER BY 1",
            (first,),
        )
    ]
    # An index that has not been told of all texts excludes none.
    wanted = (
        literals.ANYTHING
        if not is_complete(db)
        else literals.trigrams_of(params.pattern, literal=params.literal, ignore_case=params.ignore_case)
    )
    expression = trigrams.fts5(wanted, pieces.shares(db, trigrams.terms(wanted)))
    allowed: set[object] | None = None
    if found.clauses and (expression is None or not found.is_slow):
        where = found.where
        allowed = {
            object_
            for (object_,) in db.execute(
                "SELECT DISTINCT document.object FROM document JOIN object ON object.id = document.object"
                f"{where} AND document.object >= ?",
                (*found.values, first),
            )
        }
    if expression is None:
        everything = (
            sorted(_ints(allowed))
            if allowed is not None
            else _ints(one for (one,) in db.execute(
                "SELECT id FROM object WHERE id >= ? AND text_state IN (1, 2) ORDER BY id", (first,)))
        )  # fmt: skip
        yield from ((object_, None) for object_ in everything)
        return
    last = -1
    # The waiting ones first: of what is in both, the index may not know all.
    anywhere: Iterator[tuple[int, list[int] | None]] = ((object_, None) for object_ in waiting)
    for object_, numbers in heapq.merge(anywhere, pieces.having(db, expression, first), key=lambda one: one[0]):
        if object_ != last and (allowed is None or object_ in allowed):
            yield object_, numbers
        last = object_


def _ints(values: object) -> Iterator[int]:
    assert hasattr(values, "__iter__")
    for value in values:
        assert isinstance(value, int)
        yield value


def _windows(
    db: apsw.Connection, codec: Codec, stored: Stored, text: bytes | None, numbers: list[int] | None, context: int
) -> Iterator[Window]:
    """What is to be looked through of a content: all of it, or the pieces of these numbers.  Raises DamagedContent."""
    if text is None and (numbers is None or stored.size > texts.WINDOW_BYTES):
        yield from texts.windows(db, codec, stored, context)
        return
    whole = b"".join(texts.pieces(db, codec, stored)) if text is None else text
    yield texts.window(whole) if numbers is None else texts.window_of(whole, pieces.spans(whole, numbers))


def _look(
    db: apsw.Connection,
    matcher: Matcher,
    stored: Stored,
    windows: Iterator[Window],
    found: rows.Conditions,
    begin: _Place,
    answer: _Answer,
) -> bool:
    """Take the matches of one content; answers whether there is room for more."""
    if not texts.has_text(stored):
        return True
    object_ = stored.id
    holders = _holders(db, object_, found) if found.clauses else None
    if holders is not None and not holders:
        return True
    answer.searched += 1
    params = answer.params
    only_files = params.files_with_matches and not params.count
    # One more than there is room for says that there is more.
    most = 1 if only_files else params.limit - len(answer.matches) + 1 + begin.matches
    if params.count:
        most = params.max_count or 2**62
    elif params.max_count:
        most = min(most, params.max_count)
    lines: list[Line] = []
    count = 0
    try:
        for window in windows:
            for line in matcher.lines(window, params.context, bare=params.count or only_files):
                count += 1
                if not params.count:
                    lines.append(line)
                if count >= most:
                    break
            if count >= most:
                break
    except TookTooLong:
        answer.say(f"{_named(db, object_)}: the pattern takes too long on it; the rest of it was left out")
    except DamagedContent as error:
        answer.say(f"{_named(db, object_)}: {error}")
    if not count:
        return True
    if holders is None:
        holders = _holders(db, object_, found)
    for id_, path in holders:
        here = object_ == begin.object
        if here and id_ < begin.document:
            continue
        skip = begin.matches if here and id_ == begin.document else 0
        if params.count:
            answer.count(path, stored.hash.hex(), count)
        elif only_files:
            if len(answer.files) >= params.limit:
                answer.stopped = _Place(object_, id_)
                return False
            answer.files.append(path)
            answer.match_count += 1
            answer.file_count += 1
        else:
            taken = 0
            for line in lines[skip:]:
                if not answer.take(path, stored.hash.hex(), line):
                    answer.stopped = _Place(object_, id_, skip + taken)
                    break
                taken += 1
            answer.match_count += taken
            answer.file_count += taken > 0
            if answer.stopped is not None:
                return False
    return True


def _holders(db: apsw.Connection, object_: int, found: rows.Conditions) -> list[tuple[int, str]]:
    """The documents that hold a content and fulfil the conditions: id and path."""
    if not found.clauses:
        query = "SELECT id, path FROM document WHERE object=? ORDER BY id"
        return [(int(str(id_)), str(path)) for id_, path in db.execute(query, (object_,))]
    where = found.where
    query = (
        "SELECT document.id, document.path FROM document JOIN object ON object.id = document.object"
        f"{where} AND document.object=? ORDER BY document.id"
    )
    return [(int(str(id_)), str(path)) for id_, path in db.execute(query, (*found.values, object_))]


def _named(db: apsw.Connection, object_: int) -> str:
    row = db.execute("SELECT path FROM document WHERE object=? ORDER BY id LIMIT 1", (object_,)).fetchone()
    return str(row[0]) if row else f"content {object_}"
