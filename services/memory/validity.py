"""When a memory holds, and which one replaces which.

A memory holds from its `valid_from`, or else from when it was first said, up to its `valid_until`, until another one
supersedes it, or until it expires. Nothing is overwritten: the end that a superseding memory causes is stored apart, so
that it is gone if that memory is forgotten. All moments are whole microseconds, which a number of the search can hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import apsw

from proto.errors import InvalidParams, OperationError
from services.memory import memory_db
from services.memory import operations as ops
from services.memory.memory_db import SHOWN_LINKS, SHOWN_SAYINGS, Row, instant
from services.shared import times

SHOWN_REPLACED = 10
"""Most replaced memories shown with the one that replaces them."""

NEVER = 1e11
"""Unix seconds that stand for "never" as an end."""

_UNSET = ("never", "none")

_FIRST_SAID = "(SELECT min(at_ns) FROM said WHERE memory=memory.number)"

BOUNDED = "(valid_from_ns IS NOT NULL OR valid_until_ns IS NOT NULL OR superseded_ns IS NOT NULL)"
"""The SQL condition that a memory's time is stated, in the words of the index `memory_bounded`."""


def floor(ns: int) -> int:
    """Round to a whole microsecond."""
    return ns // 1000 * 1000


def seconds(ns: int) -> float:
    """Convert to Unix seconds as the search compares them."""
    return ns // 1000 / 1_000_000


def stated(given: str | None, field: str, now_ns: int, *, end: bool) -> int | None:
    """Parse a time of validity to nanoseconds; None if there is none. Raises InvalidParams."""
    if given is None or given.strip().lower() in _UNSET:
        return None
    try:
        after_ns = times.after(given.strip(), now_ns)
        return floor(times.parse(given.strip(), end=end) if after_ns is None else after_ns)
    except ValueError as error:
        right = f"give a duration ({times.DURATIONS}), a date, RFC 3339 or none"
        raise InvalidParams(f"parameter `{field}`: {error}; {right}", field=field) from None


def require_order(valid_from_ns: int | None, valid_until_ns: int | None) -> None:
    """Raise InvalidParams if a memory would end before it begins."""
    if valid_from_ns is not None and valid_until_ns is not None and valid_until_ns < valid_from_ns:
        said = f"it would end at {instant(valid_until_ns)}, before it begins at {instant(valid_from_ns)}"
        raise InvalidParams(f"parameter `valid_until`: {said}", field="valid_until")


def start_ns(db: apsw.Connection, row: Row) -> int:
    """Return from when a memory holds."""
    if row.valid_from_ns is not None:
        return row.valid_from_ns
    return int(db.execute("SELECT coalesce(min(at_ns), ?) FROM said WHERE memory=?", (row.at_ns, row.number)).get)


def last_ns(row: Row) -> int | None:
    """Return the last moment at which a memory holds, apart from its expiry; None if it has no end."""
    ends = [row.valid_until_ns, None if row.superseded_ns is None else row.superseded_ns - 1000]
    return min((end for end in ends if end is not None), default=None)


def until_s(row: Row) -> float:
    """Return the end of a memory for the search, whether it expires or no longer holds."""
    ends = [end for end in (last_ns(row), row.expires_ns) if end is not None]
    return seconds(min(ends)) if ends else NEVER


def holds(at_ns: int, *, was_said: bool) -> str:
    """Return the SQL condition that a memory holds at a moment; with `was_said`, only if it had been said, or has a
    stated begin."""
    begins = f"coalesce(valid_from_ns, {_FIRST_SAID}) <= {at_ns}"
    return (
        f"(expires_ns IS NULL OR expires_ns > {at_ns}) AND (valid_until_ns IS NULL OR valid_until_ns >= {at_ns})"
        f" AND (superseded_ns IS NULL OR superseded_ns > {at_ns})"
        f" AND {begins if was_said else f'(valid_from_ns IS NULL OR valid_from_ns <= {at_ns})'}"
    )


def is_any_over(db: apsw.Connection, at_ns: int) -> bool:
    """Return whether a memory has an end that is not later than a moment, to the second."""
    bounded = f"{BOUNDED} AND (valid_until_ns <= ?1 OR superseded_ns <= ?1)"
    # Two queries, so that each reads the index of the memories that have such an end.
    ends = ("expires_ns <= ?1", bounded)
    later_ns = at_ns + times.NS
    return any(db.execute(f"SELECT EXISTS(SELECT 1 FROM memory WHERE {end})", (later_ns,)).get for end in ends)


def is_any_pending(db: apsw.Connection, now_ns: int) -> bool:
    """Return whether a memory has a begin that is yet to come."""
    return bool(db.execute("SELECT EXISTS(SELECT 1 FROM memory WHERE valid_from_ns > ?)", (now_ns,)).get)


def same_as(db: apsw.Connection, folded: str, place: str, asserted_ns: int, *, apart_from: int = -1) -> Row | None:
    """Return the memory with these words that has begun and not ended at `asserted_ns`."""
    condition = (
        "place=? AND folded=? AND number<>? AND (valid_until_ns IS NULL OR valid_until_ns >= ?4)"
        " AND (superseded_ns IS NULL OR superseded_ns > ?4) AND (valid_from_ns IS NULL OR valid_from_ns <= ?4)"
        " ORDER BY number LIMIT 1"
    )
    return next(iter(memory_db.select(db, condition, (place, folded, apart_from, asserted_ns))), None)


def supersede(
    db: apsw.Connection, row: Row, ids: Sequence[str], now_ns: int, is_for: Callable[[Row], bool]
) -> list[Row]:
    """Let `row` replace the memories with these ids, or the last one that replaced each. Returns those, as they were.

    `is_for` says whether the client may see a memory. Raises OperationError or InvalidParams; roll the transaction back
    then.
    """
    above = [row.id, *(each.id for each in chain(db, row))]
    replaced: dict[str, Row] = {}
    for id_ in ids:
        named = memory_db.of_ids(db, [id_]).get(id_)
        if named is None or not is_for(named):
            said = f"parameter `supersedes`: there is no memory {id_!r}; recall and memory_list give ids"
            raise OperationError(said, field="supersedes")
        if named.number == row.number:
            raise InvalidParams(f"parameter `supersedes`: {id_} is this memory itself", field="supersedes")
        if named.place != row.place:
            said = f"memory {id_} has another scope ({named.scope}); give ids of memories of scope {row.scope}"
            raise InvalidParams(f"parameter `supersedes`: {said}", field="supersedes")
        # One that was replaced already is history: the last one that replaced it is what no longer holds.
        last = next((each for each in (named, *chain(db, named)) if each.superseded_by == row.id), None)
        last = last or [named, *chain(db, named)][-1]
        if last.id in above:
            said = f"memory {last.id} replaces {row.id}; first take that back: memory_update id={last.id} supersedes=[]"
            raise InvalidParams(f"parameter `supersedes`: {said}", field="supersedes")
        replaced[last.id] = last
    for each in replaced.values():
        if each.superseded_by != row.id:
            _set_replaced(db, row, each, now_ns)
    return list(replaced.values())


def release(db: apsw.Connection, row: Row, kept: Sequence[Row], now_ns: int) -> None:
    """Let those that `row` replaces hold again, except `kept`."""
    unless = json.dumps([each.number for each in kept])
    condition = "superseded_by=? AND number NOT IN (SELECT value FROM json_each(?))"
    set_ = "UPDATE memory SET superseded_by=NULL, superseded_ns=NULL, decided_ns=?"
    db.execute(f"{set_} WHERE {condition}", (now_ns, row.id, unless))


def move_start(db: apsw.Connection, row: Row, now_ns: int) -> None:
    """Let those that `row` replaces end when it begins now."""
    for each in memory_db.select(db, "superseded_by=?", (row.id,)):
        _set_replaced(db, row, each, now_ns)


def chain(db: apsw.Connection, row: Row) -> list[Row]:
    """Return what replaced this memory, what replaced that, and so on."""
    found: dict[str, Row] = {}
    while row.superseded_by is not None and row.superseded_by not in found:
        after = memory_db.of_ids(db, [row.superseded_by]).get(row.superseded_by)
        if after is None:  # It was left out by an import, for example.
            break
        found[after.id] = row = after
    return list(found.values())


def _set_replaced(db: apsw.Connection, row: Row, former: Row, now_ns: int) -> None:
    at_ns = start_ns(db, row)
    if row.valid_from_ns is None and at_ns < start_ns(db, former):
        # It had been said before the other one, and holds again since now.
        at_ns = now_ns
    values = (row.id, floor(at_ns), now_ns, former.number)
    db.execute("UPDATE memory SET superseded_by=?, superseded_ns=?, decided_ns=? WHERE number=?", values)


def purge(db: apsw.Connection, before_ns: int) -> None:
    """Delete memories that expired before this time permanently. Those that they replaced have ended nevertheless."""
    expired = "SELECT id FROM memory WHERE expires_ns < ?"
    ended = "min(coalesce(valid_until_ns, superseded_ns - 1000), superseded_ns - 1000)"
    db.execute(
        f"UPDATE memory SET valid_until_ns={ended}, superseded_by=NULL, superseded_ns=NULL"
        f" WHERE superseded_by IN ({expired})",
        (before_ns,),
    )
    db.execute("DELETE FROM memory WHERE expires_ns < ?", (before_ns,))


def linked(db: apsw.Connection, number: int, *, is_conflict: bool, at_ns: int, was_said: bool = False) -> list[Row]:
    """Return the memories that contradict this one, or are similar to it, and hold at a moment, newest first."""
    others = "number IN (SELECT other FROM link WHERE one=? AND is_conflict=?)"
    among = f"{others} AND {holds(at_ns, was_said=was_said)} ORDER BY at_ns DESC, number DESC LIMIT ?"
    return memory_db.select(db, among, (number, is_conflict, SHOWN_LINKS))


class Links(NamedTuple):
    """The memories that contradict one, and those similar to it, as `linked` returns them."""

    conflicts: list[Row]
    similar: list[Row]


def replaced_by(db: apsw.Connection, row: Row) -> list[ops.Replaced]:
    """Return what a memory replaced, latest first."""
    of = "superseded_by=? ORDER BY superseded_ns DESC, number DESC LIMIT ?"
    return [as_replaced(each) for each in memory_db.select(db, of, (row.id, SHOWN_REPLACED))]


def as_replaced(row: Row) -> ops.Replaced:
    end = last_ns(row)
    return ops.Replaced(id=row.id, text=row.text, until="" if end is None else instant(end))


def links(db: apsw.Connection, row: Row, at_ns: int, *, was_said: bool = False) -> Links:
    conflicts, similar = (
        linked(db, row.number, is_conflict=each, at_ns=at_ns, was_said=was_said) for each in (True, False)
    )
    return Links(conflicts, similar)


def shown(db: apsw.Connection, row: Row, at_ns: int, stale_ns: int, links: Links) -> ops.Memory:
    """Convert a memory to its result form, as of a moment. After `stale_ns` it counts as unconfirmed; 0 is never."""
    said = [
        ops.Said(
            at=instant(one.at_ns), text="" if one.text == row.text else one.text, source=one.source,
            session=one.session, client=one.client,
        )
        for one in memory_db.sayings(db, row.number, SHOWN_SAYINGS)
    ]  # fmt: skip
    # It was said once, and only its time is known, which the result contains anyway.
    is_bare = len(said) == 1 and not (said[0].source or said[0].session or said[0].client)
    end = last_ns(row)
    return ops.Memory(
        id=row.id,
        text=row.text,
        scope=row.scope,
        at=instant(row.at_ns),
        tags=row.tags,
        expires="" if row.expires_ns is None else instant(row.expires_ns),
        expired=row.has_expired(at_ns),
        valid_from="" if row.valid_from_ns is None else instant(row.valid_from_ns),
        valid_until="" if end is None else instant(end),
        superseded_by=row.superseded_by or "",
        replaced=replaced_by(db, row),
        stale=_stale(row, links.conflicts, at_ns, stale_ns),
        conflicts_with=[other.id for other in links.conflicts],
        similar_to=[other.id for other in links.similar],
        said=[] if is_bare else said,
    )


def _stale(row: Row, conflicts: Sequence[Row], at_ns: int, stale_ns: int) -> str:
    """Return why a memory may not be true at a moment; empty if nothing speaks against it."""
    if row.has_expired(at_ns):
        return "expired"
    if row.superseded_ns is not None and row.superseded_ns <= at_ns:
        return "replaced by a newer one"
    if row.valid_until_ns is not None and row.valid_until_ns < at_ns:
        return "no longer valid"
    if row.valid_from_ns is not None and row.valid_from_ns > at_ns:
        return "not valid yet"
    if newer := [each.id for each in conflicts if each.at_ns > row.at_ns]:
        return f"contradicted by a newer one: {newer[0]}"
    if stale_ns and at_ns - row.at_ns > stale_ns:
        return f"not confirmed since {instant(row.at_ns)[:10]}"
    return ""
