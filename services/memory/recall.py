"""Handlers that find, list and transfer memories."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import apsw
from msgspec.structs import asdict

from proto.ops.memory import COLLECTION
from proto.ops.retrieve import UNLIKELY, Filter, RetrieveSearch
from services.memory import memory_db, scopes, validity
from services.memory import operations as ops
from services.memory.comparison import fold, tells_apart
from services.memory.memory_db import Place, Row, Validity
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.shared.forgetting import ForgettingFeed
from services.shared.times import between, instant

CANDIDATES = 50
FOUND_S = 2.0

NEARLY = 0.1
"""If two contradictory memories differ in score by more than this, the lower one always comes later."""

FURTHER = 20
MAX_ASKED = 1000

PAGE = 500

MAX_SCOPES = 50
"""Most scopes named in the note about an unknown scope."""


class Recalling:
    """The handlers that read, and those of `linckia export` and `import`."""

    def __init__(self, database: Database, feed: ForgettingFeed, stale_ns: int) -> None:
        """`stale_ns` is after how long a memory that was not said again is stale; 0 is never."""
        self._database = database
        self._feed = feed
        self._stale_ns = stale_ns

    @handles(ops.Recall)
    async def recall(self, params: ops.Recall, ctx: Context) -> ops.RecallResult:
        now_ns = time.time_ns()
        degraded: list[str] = []
        label = await scopes.label(ctx, degraded) if params.scope == ops.SESSION else ""
        filters = scopes.conditions(params.scope, ctx.session, label) + between("at", params.since, params.until)
        as_of_ns = instant(params.as_of, "as_of", end=True)
        was_said = as_of_ns is not None
        at_ns = validity.floor(now_ns if as_of_ns is None else as_of_ns)
        if not params.include_expired:
            # A filter costs time for each memory, so there is none for times that no memory has.
            if await self._database.read(lambda db: validity.is_any_over(db, at_ns)):
                filters.append(Filter(field="expires", at_least=validity.seconds(at_ns)))
            if was_said or await self._database.read(lambda db: validity.is_any_pending(db, at_ns)):
                filters.append(Filter(field="holds_from", at_most=validity.seconds(at_ns)))
        if left := await self._feed.caught_up(FOUND_S):
            degraded.append(f"{left} memories are not indexed yet")
        asked = RetrieveSearch(
            collection=COLLECTION,
            query=params.query,
            # More, because a later version of a memory may score just below the others.
            limit=min(MAX_ASKED, params.limit + FURTHER),
            candidates=max(CANDIDATES, params.limit),
            filters=filters,
            min_score=UNLIKELY,
            texts=0,
        )
        found = await ctx.call(asked)
        scores = {hit.group: hit.score for hit in found.hits}

        def read(db: apsw.Connection) -> tuple[list[ops.Recalled], int, str]:
            condition = "TRUE" if params.include_expired else validity.holds(at_ns, was_said=was_said)
            # The search may not have the latest changes yet.
            rows = memory_db.of_ids(db, list(scores), condition)
            links = {id_: validity.links(db, row, at_ns, was_said=was_said) for id_, row in rows.items()}
            conflicts, similar = ({id_: each[kind] for id_, each in links.items()} for kind in (0, 1))
            memories = []
            for row, score in arranged(params.query, scores, rows, conflicts, similar)[: params.limit]:
                own = links.get(row.id) or validity.links(db, row, at_ns, was_said=was_said)
                shown = validity.shown(db, row, at_ns, self._stale_ns, own)
                memories.append(ops.Recalled(**asdict(shown), score=round(score, 4)))
            within, arguments = scopes.within(params.scope, ctx.session, label)
            left_out = f"SELECT count(*) FROM memory WHERE {within} AND {validity.BOUNDED} AND NOT ({condition})"
            unknown_scope = "" if memories else _about_scope(db, params.scope, ctx.session, label)
            return memories, int(db.execute(left_out, arguments).get), unknown_scope

        memories, not_holding, unknown_scope = await self._database.read(read)
        return ops.RecallResult(
            query=params.query,
            count=len(memories),
            memories=memories,
            degraded=[*found.degraded, *degraded],
            unlikely=found.unlikely,
            not_holding=not_holding,
            note=unknown_scope or found.note,
        )

    @handles(ops.ListMemories)
    async def list(self, params: ops.ListMemories, ctx: Context) -> ops.MemoryList:
        now_ns = time.time_ns()
        label = await scopes.label(ctx, []) if params.scope == ops.SESSION else ""
        condition, arguments = scopes.visible(params.scope, ctx.session, label)
        if not params.include_expired:
            condition = f"{condition} AND (expires_ns IS NULL OR expires_ns > {now_ns})"

        def read(db: apsw.Connection) -> ops.MemoryList:
            total = int(db.execute(f"SELECT count(*) FROM memory WHERE {condition}", arguments).get)
            page = f"{condition} AND number < ? ORDER BY number DESC LIMIT ?"
            rows = memory_db.select(db, page, (*arguments, int(params.cursor or 2**62), params.limit + 1))
            shown = rows[: params.limit]
            return ops.MemoryList(
                total=total,
                memories=[
                    validity.shown(db, row, now_ns, self._stale_ns, validity.links(db, row, now_ns)) for row in shown
                ],
                next_cursor=str(shown[-1].number) if len(rows) > params.limit else "",
                note="" if total else _about_scope(db, params.scope, ctx.session, label),
            )

        return await self._database.read(read)

    @handles(ops.MemoryExport)
    async def export(self, params: ops.MemoryExport, ctx: Context) -> ops.ExportedMemories:
        def read(db: apsw.Connection) -> ops.ExportedMemories:
            rows = memory_db.select(db, "number > ? ORDER BY number LIMIT ?", (params.after, PAGE))
            return ops.ExportedMemories(
                memories=[carried(db, row) for row in rows], next=rows[-1].number if rows else params.after
            )

        return await self._database.read(read)

    @handles(ops.MemoryImport)
    async def import_memories(self, params: ops.MemoryImport, ctx: Context) -> ops.RestoredMemories:
        def change(db: apsw.Connection) -> int:
            made = [one for one in params.memories if _put(db, one)]
            # A linked memory may be on an earlier page, or on a later one, which names the link again.
            for one in made:
                there = memory_db.of_ids(db, [one.id, *one.conflicts_with, *one.similar_to])
                conflicts, similar = (
                    [there[other].number for other in named if other in there]
                    for named in (one.conflicts_with, one.similar_to)
                )
                memory_db.add_links(db, there[one.id].number, conflicts=conflicts, similar=similar)
            return len(made)

        changed = await self._database.write(change)
        self._feed.outbox.hurry()
        return ops.RestoredMemories(changed=changed)


def arranged(
    query: str,
    scores: Mapping[str, float],
    rows: Mapping[str, Row],
    others: Mapping[str, Sequence[Row]],
    similar: Mapping[str, Sequence[Row]],
) -> list[tuple[Row, float]]:
    """Order memories by search score, except that contradictory ones stand together, newest first, if the query does
    not tell them apart and their scores are nearly equal. Contradictory and similar ones that were not found themselves
    come last.
    """
    # Scores near 1 differ by less than their precision, so the search's order decides.
    ranked = [rows[id_] for id_ in scores if id_ in rows]
    order: dict[str, tuple[Row, float]] = {}
    for row in ranked:
        if row.id not in order:
            best = scores[row.id]
            together = {row.id: row}
            for each in (following := [row]):
                new = {
                    other.id: other
                    for other in others.get(each.id, ())
                    if other.id not in together
                    and scores.get(other.id, best) >= best - NEARLY
                    and not tells_apart(query, row.text, other.text)
                }
                together |= new
                following += new.values()
            for each in sorted(following, key=lambda each: (-each.at_ns, -each.number)):
                order.setdefault(each.id, (each, scores.get(each.id, best)))
    for linked in (others, similar):
        for row, score in list(order.values()):
            for each in linked.get(row.id, ()):
                order.setdefault(each.id, (each, score))
    return list(order.values())


def _about_scope(db: apsw.Connection, scope: str | None, client: str, label: str) -> str:
    """Return a note if a scope has no memories, naming scopes that have some; empty if it has any, even expired
    ones."""
    condition, arguments = scopes.visible(scope, client, label)
    if scope is None or memory_db.select(db, f"{condition} LIMIT 1", arguments):
        return ""
    query = "SELECT DISTINCT scope FROM memory WHERE owner IN ('', ?) ORDER BY scope LIMIT ?"
    known = [name for (name,) in db.execute(query, (client, MAX_SCOPES))]
    return f"no memory has the scope {scope!r}; scopes with memories: {', '.join(known) or 'none'}"


def carried(db: apsw.Connection, row: Row) -> ops.CarriedMemory:
    query = "SELECT memory.id FROM link JOIN memory ON number=other WHERE one=? AND is_conflict=? ORDER BY other"
    conflicts, similar = ([id_ for (id_,) in db.execute(query, (row.number, each))] for each in (True, False))
    return ops.CarriedMemory(
        corrected_ns=memory_db.corrected_ns(db, row.id),
        id=row.id, scope=row.scope, owner=row.owner, text=row.text, tags=row.tags, expires_ns=row.expires_ns,
        valid_from_ns=row.valid_from_ns, valid_until_ns=row.valid_until_ns, superseded_by=row.superseded_by,
        superseded_ns=row.superseded_ns, decided_ns=row.decided_ns,
        said=memory_db.sayings(db, row.number)[::-1], conflicts_with=conflicts, similar_to=similar,
    )  # fmt: skip


def _put(db: apsw.Connection, one: ops.CarriedMemory) -> bool:
    place = Place(one.scope, one.owner)
    # One that has ended is another memory than one in the same words that holds.
    same = "place=? AND folded=? AND valid_until_ns IS ? AND superseded_ns IS ?"
    ended = (one.valid_until_ns, one.superseded_ns)
    if memory_db.select(db, f"id=? OR ({same})", (one.id, place.key, fold(one.text), *ended)):
        return False
    memory_db.insert(db, place, one.text, one.said, one.tags, one.expires_ns, one.id, Validity.of(one))
    if one.corrected_ns:
        memory_db.note_correction(db, one.id, one.corrected_ns)
    return True
