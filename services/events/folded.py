"""The handler of `events_folded`: what happened in a time, for the page."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any

import apsw
import msgspec
import trio

from proto import grants
from proto.ops.events import EventKind
from services.events import event_database
from services.events.event_database import MS, Row
from services.events.folding import NEAR_S, Folding, Line, key_of
from services.events.log import Log
from services.events.operations import MAX_LINES, EventLine, EventLines, EventsFolded
from services.events.reading import below_path, seen
from services.runtime.handlers import Context, Environment, handles
from services.runtime.roots import Roots
from services.shared import times

CHUNK = 5_000
"""Events that are read at once."""

MOST = 300_000
"""Events that one call looks at; the next call goes on before them."""

_PLAIN = re.compile(r'\{("size":\d+)?\}\Z')
"""Details by which no two events differ in kind."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Folded:
    """The operations of `services.events.operations`."""

    def __init__(self, env: Environment, log: Log) -> None:
        self._env = env
        self._log = log

    @handles(EventsFolded)
    async def folded(self, params: EventsFolded, ctx: Context) -> EventLines:
        since_ns = times.instant(params.since, "since") or 0
        until_ns = times.instant(params.until, "until") or 0
        below = await trio.to_thread.run_sync(below_path, self._env.roots, params.path)
        limited = below or grants.roots()
        return await self._log.database.read(
            lambda db: fold(db, self._env.roots, params, since_ns=since_ns, until_ns=until_ns, below=limited)
        )


def fold(
    db: apsw.Connection, roots: Roots, params: EventsFolded, *, since_ns: int, until_ns: int, below: Sequence[str]
) -> EventLines:
    """Return what the current client may see of a time, the latest first."""
    before = event_database.latest(db) + 1 if params.before is None else params.before
    folding: Folding[Row] = Folding()
    keys: dict[tuple[str, str, str], Hashable] = {}
    """Keys of plain changes in folders whose files the client may see: of the same kind, there may be 100,000."""
    looked = 0
    kinds = [str(each) for each in params.kinds]
    while rows := event_database.read_back(
        db, before, CHUNK, kinds=kinds, below=below, since_ns=since_ns, until_ns=until_ns
    ):
        for row in rows:
            at_s = row.at_ns / times.NS
            short = None
            if row.kind == EventKind.FILE and row.former is None and _PLAIN.match(row.details):
                short = (row.what, row.who, row.subject[: row.subject.rfind("/")])
                if (key := keys.get(short)) is not None and folding.join(key, row, at_s):
                    continue
            if (shown := seen(row, roots, below)) is not None:
                details = _decode(shown.details)
                key = key_of(shown, details)
                if key is None or not folding.join(key, shown, at_s):
                    if _is_full(folding.lines, params.limit, at_s):
                        return EventLines(lines=_shown(folding.lines), before=row.number + 1)
                    folding.begin(key, shown, at_s, details)
                if short is not None and key is not None and not roots.hides_some and roots.holds(short[2]):
                    keys[short] = key
        before = rows[-1].number
        looked += len(rows)
        if looked >= MOST:
            return EventLines(lines=_shown(folding.lines), before=before)
    return EventLines(lines=_shown(folding.lines))


def _is_full(lines: Sequence[Line[Row]], limit: int, at_s: float) -> bool:
    """Return whether a line more would be too many. Those that events may still join are completed, if there are not
    too many of them: of a change in 300 folders, each folder is one line."""
    return len(lines) >= MAX_LINES or (len(lines) >= limit and lines[limit - 1].first_s - at_s > NEAR_S)


def _shown(lines: Sequence[Line[Row]]) -> list[EventLine]:
    found = []
    for line in lines:
        if not line.is_folded:
            found += [_single(row) for row in line.few]
            continue
        row = line.few[0]
        found.append(
            EventLine(
                first=line.first, last=line.last, at=_at(line.first_s), until=_at(line.last_s), kind=row.kind,
                what=row.what, subject=line.folder, who=row.who, count=line.count, text=line.in_words(),
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: each.last, reverse=True)


def _single(row: Row) -> EventLine:
    event = row.event()
    return EventLine(
        first=event.number, last=event.number, at=event.at, kind=event.kind, what=event.what, subject=event.subject,
        who=event.who, details=event.details,
    )  # fmt: skip


def _at(at_s: float) -> str:
    return times.rfc3339(int(at_s * times.NS) // MS * MS)
