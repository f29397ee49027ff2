"""Timers: calls that are made later, once or by a cron expression; each run is a task.

A run's id is made of the timer's and of the time at which it is due, and it is stored together with the timer's next
time. So no death makes a run happen twice, or not at all.
"""

from __future__ import annotations

import datetime
import secrets
import time
import zoneinfo
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import apsw
import trio
from cronsim import CronSim, CronSimError

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.ops.tasks import Schedule, ScheduleCancel, ScheduleList, TaskStart, Timer, TimerList
from proto.vocabulary import current_name
from services.runtime.database import Database
from services.runtime.handlers import Context, handles
from services.shared import times
from services.tasks import mounted, store
from services.tasks.limits import Limits
from services.tasks.owners import Owner, owner_of
from services.tasks.store import Unfinished

LATE_S = 60
"""A run that is this late was missed."""

MAX_EACH = 100
"""Most missed runs that a timer with `missed` = "each" makes up for; of more, the latest."""

LOOK_S = 60.0
"""Maximum sleep before the clock, which may have been set, is read again."""

_COLUMNS = "id, operation, next_s, cron, time_zone, missed"


class Runs(Protocol):
    """`Tasks`, as far as timers need it."""

    timers: int

    async def mandate(self, params: TaskStart | Schedule, ctx: Context) -> str: ...
    def begin(self, task: Unfinished) -> None: ...
    def show(self) -> None: ...


class Due(NamedTuple):
    """The runs to make now, by the times at which they are due, and the next time; None if there is none."""

    runs: list[int]
    next_s: int | None


def due(next_s: int, cron: str, time_zone: str, missed: str, now_s: float) -> Due:
    """Return what a timer whose next run is at `next_s` has to do at `now_s`."""
    if now_s < next_s:
        return Due([], next_s)
    passed = [next_s]
    following = None
    if cron:
        # Without the limit, a timer of each minute would step through every minute of a year's absence.
        for following in _times(cron, time_zone, next_s):
            if following > now_s:
                break
            passed = [*passed[-MAX_EACH:], following]
    if missed == "skip":
        runs = [at for at in passed if now_s - at < LATE_S]
    else:
        runs = passed[-MAX_EACH:] if missed == "each" else passed[-1:]
    return Due(runs, following)


def _times(cron: str, time_zone: str, after_s: float) -> Any:
    start = datetime.datetime.fromtimestamp(after_s, zoneinfo.ZoneInfo(time_zone))
    return (int(at.timestamp()) for at in CronSim(cron, start))


def first_time(params: Schedule, now_s: float) -> int:
    """Return the first time of a timer. Raises InvalidParams."""
    if params.at is not None:
        try:
            found = times.after(params.at.strip(), int(now_s * times.NS))
            at_ns = times.parse(params.at.strip()) if found is None else found
        except ValueError as error:
            raise InvalidParams(f"parameter `at`: {error}; give RFC 3339 or {times.DURATIONS}", field="at") from None
        if at_ns < now_s * times.NS:
            raise InvalidParams(f"parameter `at`: {params.at[:80]!r} has passed", field="at")
        return -(-at_ns // times.NS)
    try:
        zoneinfo.ZoneInfo(params.time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        text = f"parameter `time_zone`: {params.time_zone[:64]!r} is unknown; give a name such as Europe/Berlin"
        raise InvalidParams(text, field="time_zone") from None
    try:
        return int(next(_times(params.cron or "", params.time_zone, now_s)))
    except (CronSimError, StopIteration) as error:
        text = f"parameter `cron`: {error or 'it never comes'}; five fields, such as 0 3 * * * for three at night"
        raise InvalidParams(text, field="cron") from None


class Timers:
    """The handlers of timers, and the task that makes their runs; `run` must be running."""

    def __init__(self, database: Database, runs: Runs, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._runs = runs
        self._limits = limits
        self._clock = clock
        self._changed = trio.Event()
        self._looked_s = 0.0
        """When the clock was read last for timers that are due."""

    async def resume(self) -> None:
        """Count the timers, without which the service may rest."""
        self._runs.timers = await self._database.read(_count)
        self._runs.show()

    @handles(Schedule)
    async def schedule(self, params: Schedule, ctx: Context) -> Timer:
        next_s = first_time(params, self._clock())
        mandate = await self._runs.mandate(params, ctx)
        id_ = secrets.token_hex(6)

        def change(db: apsw.Connection) -> Timer:
            self._limits.check_timer(store.usage(db, owner_of(ctx)), mandate)
            db.execute(
                "INSERT INTO timer(id, owner, name, limits, operation, mandate, is_mounted, cron, time_zone, missed, "
                "next_s, bytes) VALUES(?,?,?,?,?,?,?,?,?,?,?,?)",
                (id_, *owner_of(ctx), mounted.name_of(params), mandate, mounted.is_mounted(params), params.cron or "",
                 params.time_zone, params.missed, next_s, len(mandate)),
            )  # fmt: skip
            return _find(db, id_, owner_of(ctx))

        made = await self._database.answer(change)
        await self._count()
        return made

    @handles(ScheduleList)
    async def listing(self, params: ScheduleList, ctx: Context) -> TimerList:
        owner = owner_of(ctx)
        query = f"SELECT limits, {_COLUMNS} FROM timer WHERE owner=? ORDER BY next_s"
        rows: list[Any] = await self._database.read(lambda db: db.execute(query, (owner.id,)).fetchall())
        return TimerList(timers=[_timer(*row) for limits, *row in rows if owner.may_see(limits)])

    @handles(ScheduleCancel)
    async def cancel(self, params: ScheduleCancel, ctx: Context) -> Timer:
        def change(db: apsw.Connection) -> Timer:
            found = _find(db, params.id, owner_of(ctx))
            db.execute("DELETE FROM timer WHERE id=?", (params.id,))
            return found

        gone = await self._database.answer(change)
        await self._count()
        return gone

    async def _count(self) -> None:
        self._changed.set()
        await self.resume()

    async def run(self) -> None:
        """Make the runs that are due, until cancelled."""
        while True:
            self._changed = trio.Event()
            wait_s = LOOK_S
            try:
                for task in await self._database.write(self._take):
                    self._runs.begin(task)
                await self.resume()
                next_s = await self._database.read(self._next)
                if isinstance(next_s, int):
                    wait_s = min(LOOK_S, max(0.0, next_s - self._clock()))
            except LinckiaError:
                # The disk is full, for instance.
                pass
            with trio.move_on_after(wait_s):
                await self._changed.wait()

    def _next(self, db: apsw.Connection) -> object:
        # Timers that are due already are those without room, which are tried again after `LOOK_S`.
        return db.execute("SELECT min(next_s) FROM timer WHERE next_s > ?", (self._looked_s,)).get

    def _take(self, db: apsw.Connection) -> list[Unfinished]:
        """Store the runs that are due as tasks, with the next time of their timers. A timer whose owner has too many
        unfinished tasks stays due."""
        now_s = self._looked_s = self._clock()
        columns = "id, operation, mandate, is_mounted, next_s, cron, time_zone, missed, owner, name, limits"
        query = f"SELECT {columns} FROM timer WHERE next_s <= ? ORDER BY next_s"
        taken = []
        rows: list[Any] = db.execute(query, (now_s,)).fetchall()
        for id_, operation, mandate, is_mounted, next_s, cron, time_zone, missed, *owned in rows:
            owner = Owner(*owned)
            found = due(next_s, cron, time_zone, missed, now_s)
            following = found.next_s
            for at in found.runs:
                if not self._limits.has_room(store.usage(db, owner), mandate):
                    following = at
                    break
                task = Unfinished(f"{id_}-{at}", owner, operation, mandate, bool(is_mounted))
                store.insert(db, task)
                taken.append(task)
            if following is None:
                db.execute("DELETE FROM timer WHERE id=?", (id_,))
            else:
                db.execute("UPDATE timer SET next_s=? WHERE id=?", (following, id_))
        return taken


def _count(db: apsw.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM timer").get)


def _find(db: apsw.Connection, id_: str, owner: Owner) -> Timer:
    row: Any = db.execute(f"SELECT limits, {_COLUMNS} FROM timer WHERE id=? AND owner=?", (id_, owner.id)).fetchone()
    if row is None or not owner.may_see(row[0]):
        raise OperationError(f"there is no timer {id_[:100]!r}; timers_list lists yours", field="id")
    return _timer(*row[1:])


def _timer(id_: str, operation: str, next_s: int, cron: str, time_zone: str, missed: Any) -> Timer:
    return Timer(
        id=id_, operation=current_name(operation), next=times.rfc3339(next_s * times.NS), cron=cron,
        time_zone=time_zone if cron else "", missed=missed,
    )  # fmt: skip
