"""The handlers: clients read events, services add them.

A client that is limited to some roots sees only what happened to files below them. The paths of a file that was renamed
across such a border are shown only in part: as created, or as deleted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import apsw
import msgspec
import trio

from proto import grants
from proto.errors import InvalidParams, OperationError
from proto.ops import events as ops
from proto.ops.events import EventKind
from proto.ops.watch import ChangeKind
from services.events import event_database
from services.events.event_database import NewEvent, Row
from services.events.log import Log
from services.runtime.handlers import Context, Environment, handles
from services.runtime.roots import Roots, is_below
from services.shared import times

LATEST = 50
"""Events that the resource shows without `?after=N`."""

_PATHS = (EventKind.FILE, EventKind.GAP)


class Reading:
    """The service's operations."""

    def __init__(self, env: Environment, log: Log) -> None:
        self._env = env
        self._log = log

    @handles(ops.EventsRead)
    async def read(self, params: ops.EventsRead, ctx: Context) -> ops.EventPage:
        since_ns = times.instant(params.since, "since") or 0
        if params.since is not None and params.after is not None:
            raise InvalidParams("`since`: give either `after` or `since`", field="since")
        below = await trio.to_thread.run_sync(below_path, self._env.roots, params.path)
        after = 0 if params.after is None and params.since is not None else params.after
        log, env = self._log, self._env

        def query(db: apsw.Connection) -> ops.EventPage:
            if after is None and not params.wait_s:
                return newest(db, env.roots, params.limit, kinds=params.kinds, below=below)
            start = event_database.latest(db) if after is None else after
            return page(db, env.roots, start, params.limit, kinds=params.kinds, since_ns=since_ns, below=below)

        changed = log.changed
        found = await log.database.read(query)
        if after is None:
            after = found.next
        with trio.move_on_after(params.wait_s):
            while not (found.events or env.ending.is_set()):
                await self._news(changed)
                changed = log.changed
                # Shielded so that an answer that is ready is not lost.
                with trio.CancelScope(shield=True):
                    found = await log.database.read(query)
        return found

    @handles(ops.EventsResource)
    async def resource(self, params: ops.EventsResource, ctx: Context) -> ops.EventPage:
        def query(db: apsw.Connection) -> ops.EventPage:
            if params.after is None:
                return newest(db, self._env.roots, LATEST)
            return page(db, self._env.roots, params.after, ops.MAX_LIMIT)

        return await self._log.database.read(query)

    @handles(ops.EventAdd)
    async def add(self, params: ops.EventAdd, ctx: Context) -> ops.Added:
        size = len(msgspec.json.encode(params.details))
        if size > ops.MAX_DETAILS_BYTES:
            text = f"`details`: {size} bytes as JSON; at most {ops.MAX_DETAILS_BYTES} are kept"
            raise InvalidParams(text, field="details")
        at_ns = time.time_ns() if params.at is None else int(params.at * times.NS)
        event = NewEvent(
            at_ns, params.kind, params.subject, params.what, who=params.who, details=params.details,
            sender=ctx.caller, id=params.id,
        )  # fmt: skip
        number, repeated = await self._log.add_once(event)
        return ops.Added(number=number, repeated=repeated)

    async def _news(self, changed: trio.Event) -> None:
        """Wait for new events or for the end of the service."""
        async with trio.open_nursery() as nursery:

            async def ending() -> None:
                await self._env.ending.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(ending)
            await changed.wait()
            nursery.cancel_scope.cancel()


def below_path(roots: Roots, path: str) -> list[str]:
    """Return the real path in the parameter `path`, if one is given. Blocks. Raises InvalidParams, Denied."""
    if not path:
        return []
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise InvalidParams(f"`path`: {path[:200]} is not absolute", field="path")
    real = os.path.realpath(expanded)
    if not roots.holds(real):
        reachable = ", ".join(roots.reachable) or "none configured"
        raise InvalidParams(f"`path`: {path[:200]} is not below a root ({reachable})", field="path")
    roots.check(real, field="path")
    return [real]


def page(
    db: apsw.Connection,
    roots: Roots,
    after: int,
    limit: int,
    *,
    kinds: Sequence[EventKind] = (),
    since_ns: int = 0,
    below: Sequence[str] = (),
) -> ops.EventPage:
    """Return what the current client may see after an event. Raises InvalidParams: `after` is not a position."""
    latest, oldest = event_database.latest(db), event_database.oldest(db)
    _check(after, latest, oldest)
    limited = below or grants.roots()
    found: list[ops.Event] = []
    while True:
        rows = event_database.read(
            db, after, limit + 1 - len(found), kinds=[str(each) for each in kinds], since_ns=since_ns, below=limited
        )
        for row in rows:
            if len(found) == limit:
                return ops.EventPage(events=found, next=after, oldest=oldest, more=True)
            after = row.number
            if (visible := seen(row, roots, limited)) is not None:
                found.append(visible.event())
        if not rows:
            return ops.EventPage(events=found, next=latest, oldest=oldest, more=False)


def newest(
    db: apsw.Connection, roots: Roots, limit: int, *, kinds: Sequence[EventKind] = (), below: Sequence[str] = ()
) -> ops.EventPage:
    """Return the last events that the current client may see, in order; `next` is the cursor for what follows them."""
    latest, oldest = event_database.latest(db), event_database.oldest(db)
    limited = below or grants.roots()
    found: list[ops.Event] = []
    before = latest + 1
    while len(found) < limit:
        rows = event_database.read_back(db, before, limit, kinds=[str(each) for each in kinds], below=limited)
        if not rows:
            break
        before = rows[-1].number
        found += [visible.event() for row in rows if (visible := seen(row, roots, limited)) is not None]
    return ops.EventPage(events=found[limit - 1 :: -1], next=latest, oldest=oldest, more=False)


def _check(after: int, latest: int, oldest: int) -> None:
    if after > latest:
        raise InvalidParams(
            f"unknown cursor {after}: the latest event is {latest}, the oldest {oldest}; read after 0 to begin with "
            "the oldest",
            field="after",
        )
    if 0 < after < (oldest or latest + 1) - 1:
        raise OperationError(
            f"cursor {after} has expired: the oldest event is {oldest or latest + 1}; read after "
            f"{(oldest or latest + 1) - 1} to continue there, and look at the files themselves for what changed before",
            field="after",
        )


def seen(row: Row, roots: Roots, limited: Sequence[str]) -> Row | None:
    """Return what of an event the client sees."""
    if row.kind not in _PATHS or not row.subject.startswith("/"):
        return None if limited else row

    def is_shown(path: str | None) -> bool:
        return path is not None and roots.holds(path) and not roots.hides(path)

    if row.kind == EventKind.GAP:
        inside = [each for each in limited if is_below(each, (row.subject,))]
        return row._replace(subject=inside[0]) if inside else row if is_shown(row.subject) else None
    if is_shown(row.subject):
        return row if row.former is None or is_shown(row.former) else _half(row, row.subject, ChangeKind.CREATED)
    return _half(row, row.former, ChangeKind.DELETED) if row.former is not None and is_shown(row.former) else None


def _half(row: Row, path: str, what: ChangeKind) -> Row:
    return row._replace(subject=path, former=None, what=what.value)
