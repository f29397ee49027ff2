"""The handlers that write: remember, update and forget.

Only equal statements are merged. A statement that is close to others is stored and linked to them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import apsw
from msgspec.structs import replace

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.memory import COLLECTION
from proto.ops.retrieve import Filter, RetrieveSearch
from services.memory import memory_db, scopes, validity
from services.memory import operations as ops
from services.memory.comparison import Relation, closeness, fold, has_words, matched_by, relation, updates
from services.memory.memory_db import Place, Row, Validity
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.shared import times
from services.shared.forgetting import ForgettingFeed, request_scrub

COMPARED = 20
"""Nearest memories that a new one is compared with, and as many of the latest, which the search may not have yet."""

MAX_SIMILAR = 10
"""Similar memories that a new one is linked to, closest first; contradictory ones are all linked."""

MAX_CANDIDATES = 3
"""Most earlier memories named as those that a new one may replace, nearest in meaning first."""

COMPARE_S = 8.0
FOUND_S = 2.0
"""How long an answer waits until the search can find the new memory."""

SCRUB_S = 20.0

REPEATED_NS = 60 * times.NS
"""The same words from the same source within this time count once: the call was repeated after a crash."""

SESSION_KEPT_NS = 7 * times.DAY_NS
"""Default lifetime of memories that belong to a session."""

MAX_SHOWN = 100


class Writing:
    """The handlers that write."""

    def __init__(self, database: Database, feed: ForgettingFeed, kept_ns: int) -> None:
        """`kept_ns` is how long expired memories are still listed."""
        self._database = database
        self._feed = feed
        self._kept_ns = kept_ns

    @handles(ops.Remember)
    async def remember(self, params: ops.Remember, ctx: Context) -> ops.Remembered:
        degraded: list[str] = []
        now_ns = time.time_ns()
        expires_ns = expiry(params.expires, now_ns)
        from_ns = validity.stated(params.valid_from, "valid_from", now_ns, end=False)
        until_ns = validity.stated(params.valid_until, "valid_until", now_ns, end=True)
        validity.require_order(from_ns, until_ns)
        label = await scopes.label(ctx, degraded)
        place = scopes.place_of(params.scope, ctx.session, label)
        if params.expires is None and params.scope.startswith(ops.SESSION):
            expires_ns = now_ns + SESSION_KEPT_NS
        nearest = await self._nearest(params.text, place, ctx, degraded)
        said = _said(params.text.strip(), now_ns, params.source, label, ctx)

        def change(db: apsw.Connection) -> ops.Remembered:
            validity.purge(db, now_ns - self._kept_ns)
            same = validity.same_as(db, fold(said.text), place.key, asserted_ns(from_ns, until_ns, now_ns))
            if same is None:
                valid = Validity(from_ns, until_ns)
                row = memory_db.insert(db, place, said.text, [said], params.tags, expires_ns, valid=valid)
                replaced = self._supersede(db, row, params.supersedes, now_ns, ctx)
                candidates = link(db, row, nearest, now_ns)
                return answer(db, row, None, now_ns, degraded, replaced, candidates)
            merged = None if repeats(db, same, said) else same.other
            if merged is not None:
                memory_db.note_said(db, same.number, said)
            stated = same.expires_ns if params.expires is None and not same.has_expired(now_ns) else expires_ns
            tags = list(dict.fromkeys([*same.tags, *params.tags]))
            begins = [begin for begin in (same.valid_from_ns, from_ns) if begin is not None]
            ends_ns = same.valid_until_ns if until_ns is None else until_ns
            db.execute(
                "UPDATE memory SET at_ns=?, tags=?, expires_ns=?, valid_from_ns=?, valid_until_ns=? WHERE number=?",
                (now_ns, json.dumps(tags), stated, min(begins, default=None), ends_ns, same.number),
            )
            row = memory_db.of_ids(db, [same.id])[same.id]
            if row.valid_from_ns != same.valid_from_ns:
                validity.move_start(db, row, now_ns)
            replaced = self._supersede(db, row, params.supersedes, now_ns, ctx)
            return answer(db, row, merged, now_ns, degraded, replaced)

        return await self._once_found(await self._database.answer(change), degraded)

    @handles(ops.UpdateMemory)
    async def update(self, params: ops.UpdateMemory, ctx: Context) -> ops.Remembered:
        degraded: list[str] = []
        now_ns = time.time_ns()
        expires_ns = expiry(params.expires, now_ns)
        from_ns = validity.stated(params.valid_from, "valid_from", now_ns, end=False)
        until_ns = validity.stated(params.valid_until, "valid_until", now_ns, end=True)
        before = await self._database.read(lambda db: _there(db, params.id, ctx))
        place = Place(before.scope, before.owner)
        text = before.text if params.text is None else params.text.strip()
        nearest = {} if text == before.text else await self._nearest(text, place, ctx, degraded)
        label = "" if text == before.text else await scopes.label(ctx, degraded)

        def change(db: apsw.Connection) -> ops.Remembered:
            row = _there(db, params.id, ctx)
            valid = (
                row.valid_from_ns if params.valid_from is None else from_ns,
                row.valid_until_ns if params.valid_until is None else until_ns,
            )
            validity.require_order(*valid)
            if text != row.text:
                asserted = asserted_ns(*valid, now_ns)
                twin = validity.same_as(db, fold(text), place.key, asserted, apart_from=row.number)
                if twin is not None:
                    raise OperationError(f"memory {twin.id} already says that; forget one of the two", field="text")
                memory_db.note_said(db, row.number, _said(text, now_ns, "", label, ctx))
            db.execute(
                "UPDATE memory SET text=?, folded=?, at_ns=?, tags=?, expires_ns=?, valid_from_ns=?, valid_until_ns=?"
                " WHERE number=?",
                (text, fold(text), row.at_ns if text == row.text else now_ns,
                 json.dumps(row.tags if params.tags is None else list(dict.fromkeys(params.tags))),
                 row.expires_ns if params.expires is None else expires_ns, *valid, row.number),
            )  # fmt: skip
            memory_db.note_correction(db, row.id, now_ns)
            changed = _there(db, params.id, ctx)
            if changed.valid_from_ns != row.valid_from_ns:
                validity.move_start(db, changed, now_ns)
            replaced: list[Row] = []
            if params.supersedes is not None:
                replaced = self._supersede(db, changed, params.supersedes, now_ns, ctx)
                validity.release(db, changed, replaced, now_ns)
            candidates = link(db, changed, nearest, now_ns) if text != row.text else []
            return answer(db, changed, None, now_ns, degraded, replaced, candidates)

        return await self._once_found(await self._database.answer(change), degraded)

    @handles(ops.Forget)
    async def forget(self, params: ops.Forget, ctx: Context) -> ops.Forgotten:
        place, now_ns = None, time.time_ns()
        if params.query and not has_words(params.query):
            said = "parameter `query`: there are no words in it; leave it out to forget all of the scope"
            raise InvalidParams(said, field="query")
        if params.scope is not None:
            label = await scopes.label(ctx, []) if params.scope == ops.SESSION else ""
            place = scopes.place_of(params.scope, ctx.session, label)

        def change(db: apsw.Connection) -> ops.Forgotten:
            if place is None:
                rows = [row for row in memory_db.of_ids(db, [params.id or ""]).values() if _is_for(row, ctx)]
            else:
                rows = memory_db.select(db, "place=? ORDER BY number DESC", (place.key,))
                rows = [row for row in rows if _has_words(db, row, params.query)]
            named = [row.other for row in rows[:MAX_SHOWN]]
            if not rows:
                return ops.Forgotten(forgotten=0, memories=[], note="there is no such memory")
            if place is not None and not params.confirm:
                note = f"nothing was forgotten; call again with confirm=true to forget these {len(rows)}"
                return ops.Forgotten(forgotten=0, memories=named, note=note)
            request_scrub(db)
            memory_db.note_forgotten(db, {row.id: now_ns for row in rows if row.scope != ops.SESSION})
            db.executemany("DELETE FROM memory WHERE number=?", ((row.number,) for row in rows))
            return ops.Forgotten(forgotten=len(rows), memories=named)

        gone = await self._database.answer(change)
        if not gone.forgotten:
            return gone
        self._feed.outbox.hurry()
        await self._database.checkpoint()
        pending = 0 if await self._feed.scrubbed(SCRUB_S) else gone.forgotten
        return ops.Forgotten(forgotten=gone.forgotten, memories=gone.memories, search_pending=pending)

    def _supersede(self, db: apsw.Connection, row: Row, ids: Sequence[str], now_ns: int, ctx: Context) -> list[Row]:
        """Return what `row` replaces now."""
        replaced = validity.supersede(db, row, ids, now_ns, lambda other: _is_for(other, ctx)) if ids else []
        return list(memory_db.of_ids(db, [each.id for each in replaced]).values())

    async def _nearest(self, text: str, place: Place, ctx: Context, degraded: list[str]) -> dict[str, float | None]:
        """Return the stored memories nearest to the text in the same place, with their cosines."""
        only = [Filter(field="in", any_of=[place.key])]
        asked = RetrieveSearch(collection=COLLECTION, query=text, limit=COMPARED, filters=only, texts=0)
        try:
            found = await ctx.call(asked, timeout_s=COMPARE_S)
        except LinckiaError as error:
            degraded.append(f"compared only with the latest memories: {error}")
            return {}
        if "vector" not in found.stages:
            degraded += [f"compared only by words: {said}" for said in found.degraded if said.startswith("vector")]
        return {hit.group: hit.vector for hit in found.hits}

    async def _once_found(self, kept: ops.Remembered, degraded: list[str]) -> ops.Remembered:
        """Return the answer once the search can find the memory."""
        self._feed.outbox.hurry()
        if await self._feed.caught_up(FOUND_S):
            reason = self._feed.outbox.waiting or "the search has not indexed it yet"
            degraded.append(f"not found by recall yet: {reason}")
        return kept


def asserted_ns(from_ns: int | None, until_ns: int | None, now_ns: int) -> int:
    """Return a moment at which a statement with these times certainly holds: now, or the nearest one to it."""
    at_ns = validity.floor(now_ns if from_ns is None else max(now_ns, from_ns))
    return at_ns if until_ns is None else min(at_ns, until_ns)


def link(db: apsw.Connection, row: Row, nearest: Mapping[str, float | None], now_ns: int) -> list[Row]:
    """Link a memory to contradictory and similar ones in its place, among the nearest and the latest.

    Returns those that it may replace: they hold, and are about the same thing. The reader decides.
    """
    last = memory_db.select(db, "place=? ORDER BY number DESC LIMIT ?", (row.place, COMPARED))
    found: dict[Relation, list[Row]] = {each: [] for each in Relation}
    candidates: list[Row] = []
    others = {other.id: other for other in (*memory_db.of_ids(db, list(nearest)).values(), *last)}
    for other in sorted(others.values(), key=lambda other: -closeness(row.text, other.text, nearest.get(other.id))):
        if other.place == row.place and other.number != row.number and not other.has_expired(now_ns):
            cosine = nearest.get(other.id)
            found[related := relation(row.text, other.text, cosine)].append(other)
            end_ns = validity.last_ns(other)
            if (end_ns is None or end_ns >= now_ns) and updates(row.text, other.text, related, cosine):
                candidates.append(other)
    memory_db.set_links(
        db,
        row.number,
        conflicts=[other.number for other in found[Relation.CONFLICT]],
        similar=[other.number for other in found[Relation.SIMILAR][:MAX_SIMILAR]],
    )
    candidates.sort(key=lambda other: -(nearest.get(other.id) or 0.0))
    return candidates[:MAX_CANDIDATES]


def _has_words(db: apsw.Connection, row: Row, query: str) -> bool:
    """Return True if the current or an earlier wording of a memory has all words of the query."""
    wordings = {row.text, *(said.text for said in memory_db.sayings(db, row.number))}
    return any(matched_by(query, text) for text in wordings)


def repeats(db: apsw.Connection, row: Row, said: ops.CarriedSaid) -> bool:
    """Return True if this repeats the last statement because a call was retried."""
    (last,) = memory_db.sayings(db, row.number, 1)
    return replace(last, at_ns=said.at_ns) == said and said.at_ns - last.at_ns < REPEATED_NS


def _said(text: str, at_ns: int, source: str, label: str, ctx: Context) -> ops.CarriedSaid:
    client = "" if ctx.grant is None else ctx.grant.name
    return ops.CarriedSaid(at_ns=at_ns, text=text, source=source, session=label, client=client)


def answer(
    db: apsw.Connection,
    row: Row,
    merged: ops.Other | None,
    now_ns: int,
    degraded: list[str],
    replaced: Sequence[Row] = (),
    candidates: Sequence[Row] = (),
) -> ops.Remembered:
    conflicts, similar = validity.links(db, row, validity.floor(now_ns))
    end_ns = validity.last_ns(row)
    ids = [other.id for other in candidates]
    return ops.Remembered(
        id=row.id,
        scope=row.scope,
        merged_with=merged,
        conflicts_with=[other.other for other in conflicts],
        similar_to=[other.other for other in similar],
        expires="" if row.expires_ns is None else memory_db.instant(row.expires_ns),
        valid_from="" if row.valid_from_ns is None else memory_db.instant(row.valid_from_ns),
        valid_until="" if end_ns is None else memory_db.instant(end_ns),
        replaced=[validity.as_replaced(other) for other in replaced],
        may_replace=[other.other for other in candidates],
        note=f"if it replaces them: memory_update id={row.id} supersedes={json.dumps(ids)}" if ids else "",
        degraded=degraded,
    )


def expiry(given: str | None, now_ns: int) -> int | None:
    """Parse an expiry to nanoseconds; None means never. Raises InvalidParams."""
    if given is None or given.strip().lower() == "never":
        return None
    text = given.strip()
    try:
        after_ns = times.after(text, now_ns)
        at_ns = times.parse(text, end=True) if after_ns is None else after_ns
    except ValueError as error:
        right = f"give a duration ({times.DURATIONS}), a date, RFC 3339 or never"
        raise InvalidParams(f"parameter `expires`: {error}; {right}", field="expires") from None
    if at_ns <= now_ns:
        raise InvalidParams(f"parameter `expires`: {text[:80]!r} has passed", field="expires")
    return at_ns


def _there(db: apsw.Connection, id_: str, ctx: Context) -> Row:
    row = memory_db.of_ids(db, [id_]).get(id_)
    if row is None or not _is_for(row, ctx):
        raise OperationError(f"there is no memory {id_!r}; recall and memory_list give ids", field="id")
    return row


def _is_for(row: Row, ctx: Context) -> bool:
    """Return True unless the memory belongs to another MCP session only."""
    return row.scope != ops.SESSION or row.owner == ctx.session
