"""The handlers of `linckia sync`: which memories two databases have, and their joining.

Two machines join a memory by its id, and equal statements of one scope by their words. All times at which something was
said are kept. A text that one machine corrected replaces the earlier one; if both corrected it, both texts are kept as
memories that contradict each other. A memory that was forgotten is deleted, unless it was said later than that. What
replaces a memory is decided by whoever said so last, apart from its other corrections. Words that were said again after
their end are a memory of their own, as on one machine.

What both databases end with does not depend on which one starts, and every step may be repeated.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import apsw
import msgspec
from msgspec.structs import replace

from services.memory import memory_db, validity
from services.memory import operations as ops
from services.memory.comparison import fold
from services.memory.memory_db import Place, Row, Validity
from services.memory.operations import CarriedMemory, CarriedSaid
from services.memory.recall import carried
from services.memory.writing import link
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.shared.fact_digests import buckets_of, digest, page
from services.shared.forgetting import ForgettingFeed, request_scrub

PAGE_BYTES = 4 * 1024 * 1024

LATEST = ("tags", "expires_ns", "valid_from_ns", "valid_until_ns")
"""Fields that the later correction decides; the texts and the times have rules of their own."""

Known = tuple[bytes, ops.MemoryFact]


class Joining:
    """The handlers of `linckia sync`."""

    def __init__(self, database: Database, feed: ForgettingFeed, kept_ns: int) -> None:
        """`kept_ns` is how long expired memories are still listed."""
        self._database = database
        self._feed = feed
        self._kept_ns = kept_ns

    @handles(ops.CompareMemories)
    async def facts(self, params: ops.CompareMemories, ctx: Context) -> ops.MemoryFacts:
        since_ns = time.time_ns() - self._kept_ns

        def query(db: apsw.Connection) -> ops.MemoryFacts:
            found = _facts(db, since_ns)
            if params.buckets:
                listed, covered = page(found, params.buckets)
                return ops.MemoryFacts(format=ops.FORMAT, covered=covered, facts=listed)
            kept = int(db.execute("SELECT count(*) FROM memory WHERE scope=?", (ops.SESSION,)).get)
            return ops.MemoryFacts(format=ops.FORMAT, buckets=buckets_of(name for name, _ in found), kept_here=kept)

        return await self._database.read(query)

    @handles(ops.ChooseMemories)
    async def choose(self, params: ops.ChooseMemories, ctx: Context) -> ops.ChosenMemories:
        def query(db: apsw.Connection) -> ops.ChosenMemories:
            found: list[CarriedMemory] = []
            done, left = 0, PAGE_BYTES
            for done, id_ in enumerate(params.ids, 1):  # noqa: B007  # the last count is returned
                for row in memory_db.select(db, "id=? AND scope<>?", (id_, ops.SESSION)):
                    found.append(carried(db, row))
                    left -= len(msgspec.json.encode(found[-1]))
                if left < 0:
                    break
            return ops.ChosenMemories(memories=found, done=done)

        return await self._database.read(query)

    @handles(ops.JoinMemories)
    async def join(self, params: ops.JoinMemories, ctx: Context) -> ops.JoinedMemories:
        now_ns = time.time_ns()

        def change(db: apsw.Connection) -> ops.JoinedMemories:
            step = _Step(db, now_ns, now_ns - self._kept_ns)
            for one in params.forgotten:
                step.forget(one)
            for memory in params.memories:
                step.take(memory)
            for memory in params.memories:
                step.link(memory)
            step.break_circles()
            if step.deleted:
                request_scrub(db)
            return ops.JoinedMemories(
                added=step.added, changed=step.changed, deleted=step.deleted, conflicts=step.conflicts, left=step.left
            )

        joined = await self._database.write(change)
        self._feed.outbox.hurry()
        if joined.deleted:
            await self._database.checkpoint()
        return joined


@dataclass(slots=True)
class _Step:
    """One transaction; counts what it changes."""

    db: apsw.Connection
    now_ns: int
    expired_ns: int
    """Memories that expired before are not listed any more."""
    added: int = 0
    changed: int = 0
    deleted: int = 0
    conflicts: int = 0
    left: int = 0
    touched: set[str] = field(default_factory=set)
    """Memories that were changed, or that replace others now."""

    def forget(self, given: ops.ForgottenMemory) -> None:
        row = memory_db.of_ids(self.db, [given.id]).get(given.id)
        if row is not None:
            if last_ns(memory_db.sayings(self.db, row.number)) > given.at_ns:
                return
            if given.merged_into:
                self._move(row, given)
                return
            self.db.execute("DELETE FROM memory WHERE number=?", (row.number,))
            self.deleted += 1
        memory_db.note_forgotten(self.db, {given.id: given.at_ns}, given.merged_into)
        self._rename(given.id, self._present(given.id))

    def _move(self, row: Row, given: ops.ForgottenMemory) -> None:
        """Join a memory with the one that it was merged into elsewhere, which may arrive later."""
        moved = replace(plain(carried(self.db, row)), id=given.merged_into)
        self._note_merged(row.id, given.at_ns, given.merged_into)
        self.db.execute("DELETE FROM memory WHERE number=?", (row.number,))
        self.take(moved)
        there = self._present(moved.id)
        self._rename(moved.id, there)
        if there not in memory_db.of_ids(self.db, [there or ""]):
            self.deleted += 1

    def take(self, given: CarriedMemory) -> None:
        """Join a memory with the one that has its id, or else with the one that says the same."""
        given = self._as_known_here(given)
        is_over = given.expires_ns is not None and given.expires_ns < self.expired_ns
        if given.scope == ops.SESSION or is_over or self._was_forgotten(given):
            self.left += 1
            return
        row = memory_db.of_ids(self.db, [given.id]).get(given.id)
        if row is None:
            self.added += self._settle(given)
            return
        if row.place != Place(given.scope, given.owner).key:
            # No machine changes the scope of a memory.
            self.left += 1
            return
        mine = plain(carried(self.db, row))
        kept, other = joined(mine, plain(given))
        if kept != mine:
            self._replace(row, kept)
            self.changed += 1
        if other is not None:
            self.conflicts += 1
            self.added += self._settle(other)
            self._link(kept.id, conflicts=[other.id], similar=())

    def _as_known_here(self, given: CarriedMemory) -> CarriedMemory:
        """Return a memory with the ids that it, and the one that replaces it, have here."""
        while (merged := self._merged(given.id)) and last_ns(given.said) <= merged[0]:
            given = replace(given, id=merged[1])
        return self._with_replacing(given)

    def _with_replacing(self, one: CarriedMemory) -> CarriedMemory:
        if one.superseded_by is None:
            return one
        there = self._present(one.superseded_by)
        return replace(one, superseded_by=there, superseded_ns=None if there is None else one.superseded_ns)

    def _present(self, id_: str) -> str | None:
        """Return the id here of a memory that may have been merged; None if it was forgotten. It may be unknown."""
        while id_ not in memory_db.of_ids(self.db, [id_]):
            gone = self.db.execute("SELECT merged_into FROM forgotten WHERE id=?", (id_,)).get
            if not gone:
                return id_ if gone is None else None
            id_ = str(gone)
        return id_

    def _merged(self, id_: str) -> tuple[int, str] | None:
        found = self.db.execute("SELECT at_ns, merged_into FROM forgotten WHERE id=? AND merged_into<>''", (id_,))
        return next(iter(found), None)

    def _note_merged(self, id_: str, at_ns: int, into: str) -> None:
        """Note that a memory has joined another one, which also replaces what it replaced."""
        memory_db.note_forgotten(self.db, {id_: at_ns}, into)
        self._rename(id_, into)

    def _rename(self, id_: str, into: str | None) -> None:
        """Let what this memory replaced be replaced by another one, or hold again."""
        if into == id_:
            return
        if into is not None:
            self.touched.add(into)
        self.db.execute(
            "UPDATE memory SET superseded_by=?1, superseded_ns=iif(?1 IS NULL, NULL, superseded_ns)"
            " WHERE superseded_by=?2",
            (into, id_),
        )

    def break_circles(self) -> None:
        """If two machines let memories replace each other, the decision that was made first does not count."""
        for id_ in sorted(self.touched):
            for row in memory_db.of_ids(self.db, [id_], "superseded_by IS NOT NULL").values():
                line = [row, *validity.chain(self.db, row)]
                places = {each.id: place for place, each in reversed([*enumerate(line)])}
                if (place := places.get(line[-1].superseded_by or "")) is not None:
                    first = min(line[place:], key=lambda each: (each.decided_ns, each.id))
                    released = "UPDATE memory SET superseded_by=NULL, superseded_ns=NULL WHERE number=?"
                    self.db.execute(released, (first.number,))

    def link(self, given: CarriedMemory) -> None:
        ids, conflicts, similar = (
            [self._present(each) or each for each in named]
            for named in ([given.id], given.conflicts_with, given.similar_to)
        )
        self._link(ids[0], conflicts=conflicts, similar=similar)

    def _link(self, id_: str, *, conflicts: Sequence[str], similar: Sequence[str]) -> None:
        there = memory_db.of_ids(self.db, [id_, *conflicts, *similar])
        if id_ in there:
            named = [[there[one].number for one in ids if one in there and one != id_] for ids in (conflicts, similar)]
            memory_db.add_links(self.db, there[id_].number, conflicts=named[0], similar=named[1])

    def _was_forgotten(self, given: CarriedMemory) -> bool:
        """Return whether it was forgotten here, and not said later than that."""
        at_ns = self.db.execute("SELECT at_ns FROM forgotten WHERE id=?", (given.id,)).get
        if at_ns is None:
            return False
        if last_ns(given.said) <= int(at_ns):
            return True
        self.db.execute("DELETE FROM forgotten WHERE id=?", (given.id,))
        return False

    def _settle(self, given: CarriedMemory) -> bool:
        """Store a memory whose id is new here; return False if it joined one that says the same.

        Both machines keep the lesser id, and note the other one as forgotten.
        """
        there = memory_db.of_ids(self.db, [given.id]).get(given.id)
        if there is not None:
            kept, _ = joined(plain(carried(self.db, there)), plain(given))
            self._replace(there, kept)
            return False
        twin = self._twin(given)
        if twin is None:
            row = memory_db.insert(
                self.db, Place(given.scope, given.owner), given.text, given.said, given.tags, given.expires_ns,
                given.id, Validity.of(given),
            )  # fmt: skip
            self._note_written(given)
            link(self.db, row, {}, self.now_ns)
            return True
        mine = plain(carried(self.db, twin))
        lesser, greater = sorted((mine, plain(given)), key=lambda each: each.id)
        self._note_merged(greater.id, last_ns(greater.said), lesser.id)
        self._replace(twin, merged(lesser, greater))
        return False

    def _twin(self, one: CarriedMemory, apart_from: int = -1) -> Row | None:
        """Return the memory in these words that holds now if this one does, or has the same stated times."""
        folded, place, at_ns = fold(one.text), Place(one.scope, one.owner).key, validity.floor(self.now_ns)
        if _holds(one, at_ns) and (twin := validity.same_as(self.db, folded, place, at_ns, apart_from=apart_from)):
            return twin
        if one.superseded_by is not None:
            return None
        condition = (
            "place=? AND folded=? AND number<>? AND valid_from_ns IS ? AND valid_until_ns IS ?"
            " AND superseded_by IS NULL ORDER BY number LIMIT 1"
        )
        stated = (place, folded, apart_from, one.valid_from_ns, one.valid_until_ns)
        return next(iter(memory_db.select(self.db, condition, stated)), None)

    def _replace(self, row: Row, kept: CarriedMemory) -> None:
        """Write all that a memory has, under its id, which may be another one than before."""
        if row.id != kept.id:
            self.db.execute("INSERT OR REPLACE INTO outbox(id) VALUES(?)", (row.id,))
        if (twin := self._twin(kept, apart_from=row.number)) is not None:
            other = plain(carried(self.db, twin))
            lesser, greater = sorted((kept, other), key=lambda each: each.id)
            self._note_merged(greater.id, last_ns(greater.said), lesser.id)
            stays, goes = (row, twin) if lesser is kept else (twin, row)
            self._rename(goes.id, lesser.id)
            self.db.execute("DELETE FROM memory WHERE number=?", (goes.number,))
            self._replace(stays, merged(lesser, greater))
            return
        kept = self._with_replacing(kept)
        is_new_text = fold(kept.text) != fold(row.text)
        self.db.execute("DELETE FROM said WHERE memory=?", (row.number,))
        for one in kept.said:
            memory_db.note_said(self.db, row.number, one)
        self.db.execute(
            "UPDATE memory SET id=?, text=?, folded=?, tags=?, expires_ns=?, at_ns=max(at_ns, ?), valid_from_ns=?,"
            " valid_until_ns=?, superseded_by=?, superseded_ns=?, decided_ns=? WHERE number=?",
            (kept.id, kept.text, fold(kept.text), json.dumps(kept.tags), kept.expires_ns, last_ns(kept.said),
             *Validity.of(kept), row.number),
        )  # fmt: skip
        self._rename(row.id, kept.id)
        self._note_written(kept)
        if is_new_text:
            link(self.db, memory_db.of_ids(self.db, [kept.id])[kept.id], {}, self.now_ns)

    def _note_written(self, kept: CarriedMemory) -> None:
        self.touched.add(kept.id)
        if kept.corrected_ns:
            memory_db.note_correction(self.db, kept.id, kept.corrected_ns)


def joined(one: CarriedMemory, other: CarriedMemory) -> tuple[CarriedMemory, CarriedMemory | None]:
    """Join two versions of a memory; the order does not matter. The second result is the text that contradicts the
    first, if both machines corrected it."""
    latest, decided = max(one, other, key=_correction), max(one, other, key=_decision)
    both = replace(
        one, said=_united(one.said, other.said), corrected_ns=max(one.corrected_ns, other.corrected_ns),
        superseded_by=decided.superseded_by, superseded_ns=decided.superseded_ns, decided_ns=decided.decided_ns,
        **{name: getattr(latest, name) for name in LATEST},
    )  # fmt: skip
    mine, theirs = ({fold(said.text) for said in each.said} for each in (one, other))
    knows_theirs, knows_mine = fold(other.text) in mine, fold(one.text) in theirs
    first, second = sorted((one, other), key=lambda each: _text_at(each, both.said), reverse=True)
    if fold(one.text) == fold(other.text) or (knows_theirs and knows_mine):
        return replace(both, text=first.text), None
    if knows_theirs or knows_mine:
        return replace(both, text=one.text if knows_theirs else other.text), None
    own = [said for said in second.said if fold(said.text) == fold(second.text)]
    name = hashlib.blake2b(f"{one.id} {fold(second.text)}".encode(), digest_size=6).hexdigest()
    apart = replace(second, id=name, said=own or second.said[-1:], conflicts_with=[], similar_to=[])
    kept = [said for said in both.said if fold(said.text) != fold(second.text)]
    return replace(both, text=first.text, said=kept), apart


def merged(one: CarriedMemory, other: CarriedMemory) -> CarriedMemory:
    """Join two memories in the same words under the id of the first. It begins when the earlier one does."""
    both, _ = joined(one, replace(other, id=one.id))
    begin_ns = min(_start_ns(each) for each in (one, other))
    is_stated = None not in (one.valid_from_ns, other.valid_from_ns) or begin_ns != _first_ns(both)
    stated_ns = validity.floor(begin_ns) if is_stated else None
    # A correction, because versions of before have other times.
    more = both.valid_from_ns != stated_ns
    return replace(both, valid_from_ns=stated_ns, corrected_ns=both.corrected_ns + more)


def plain(one: CarriedMemory) -> CarriedMemory:
    """Return a memory as it is compared: without links, its sayings in order."""
    return replace(one, said=_united(one.said, ()), conflicts_with=[], similar_to=[])


def last_ns(said: Iterable[CarriedSaid]) -> int:
    return max(each.at_ns for each in said)


def _united(one: Sequence[CarriedSaid], other: Sequence[CarriedSaid]) -> list[CarriedSaid]:
    return sorted({*one, *other}, key=msgspec.structs.astuple)


def _correction(one: CarriedMemory) -> tuple[int, int, bytes]:
    """Order versions: the later correction counts, then the later saying, then what both machines see alike."""
    return one.corrected_ns, last_ns(one.said), msgspec.json.encode([getattr(one, name) for name in LATEST])


def _decision(one: CarriedMemory) -> tuple[int, bool, int, str]:
    """Order versions by when it was decided what replaces them. If a version was replaced by a memory that is forgotten
    since, the other one may know what replaces that, or that it was said again."""
    return one.decided_ns, one.superseded_by is not None, one.superseded_ns or 0, one.superseded_by or ""


def _first_ns(one: CarriedMemory) -> int:
    return min(said.at_ns for said in one.said)


def _start_ns(one: CarriedMemory) -> int:
    return _first_ns(one) if one.valid_from_ns is None else one.valid_from_ns


def _holds(one: CarriedMemory, at_ns: int) -> bool:
    return (
        (one.valid_from_ns is None or one.valid_from_ns <= at_ns)
        and (one.valid_until_ns is None or one.valid_until_ns >= at_ns)
        and (one.superseded_ns is None or one.superseded_ns > at_ns)
    )


def _text_at(one: CarriedMemory, said: Iterable[CarriedSaid]) -> tuple[int, str]:
    """Return when the text of a version was last said, and the text."""
    return max((each.at_ns for each in said if fold(each.text) == fold(one.text)), default=0), one.text


def _facts(db: apsw.Connection, since_ns: int) -> Iterator[Known]:
    """Yield what another database can join; what expired before `since_ns` is left out."""
    for row in memory_db.select(db, "scope<>? AND (expires_ns IS NULL OR expires_ns>=?)", (ops.SESSION, since_ns)):
        name = digest("memory", msgspec.json.encode(plain(carried(db, row))))
        yield name, ops.MemoryFact(digest=name.hex(), kind="memory", target=row.id)
    for id_, at_ns, into in db.execute("SELECT id, at_ns, merged_into FROM forgotten"):
        name = digest("forgotten", id_, at_ns, *filter(None, [into]))
        gone = ops.ForgottenMemory(id=id_, at_ns=at_ns, merged_into=into)
        yield name, ops.MemoryFact(digest=name.hex(), kind="forgotten", target=id_, forgotten=gone)
