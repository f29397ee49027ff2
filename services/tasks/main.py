"""The service `tasks`: makes calls that go on without the client that asked for them, and keeps their results.

A task is stored with the mandate that the kernel sealed for its call, before the client gets its id. The call is made
with the task's id as its idempotency key, again after every death of this service or of the kernel, until it is
answered; so it has one effect.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial

import apsw
import msgspec
import trio

from proto.errors import (
    Cancelled,
    Forbidden,
    InvalidParams,
    LinckiaError,
    Overloaded,
    Unavailable,
    UnknownOperation,
)
from proto.later import NOT_VALID, LaterCall
from proto.operation import operation_of
from proto.ops.events import EventAdd, EventKind
from proto.ops.kernel import KernelCall, KernelCalled, KernelMandate
from proto.ops.tasks import (
    Schedule,
    ScheduleCancel,
    ScheduleList,
    Task,
    TaskAdopt,
    TaskCancel,
    TaskGet,
    TaskList,
    TaskListParams,
    TaskStart,
    TaskWait,
)
from proto.origin import Origin
from proto.wire import frames
from services.runtime.database import Database, Kind
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.shared.backoff import Backoff
from services.tasks import adopted, mounted, store
from services.tasks.limits import Limits
from services.tasks.owners import of_grant, owner_of
from services.tasks.running import Running
from services.tasks.settings import TasksSettings
from services.tasks.store import Unfinished
from services.tasks.timers import Timers
from services.tasks.turns import Turns

FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 15.0

UNREADABLE_PAUSE_S = 60.0
"""Pause after the database could not be read; each attempt is logged."""

QUICK_BYTES = 64 * 1024
"""A result up to this size is converted faster than a thread begins."""

NS = 10**9

_OWN = frozenset(
    operation_of(params).name
    for params in (TaskStart, TaskGet, TaskListParams, TaskWait, TaskCancel, Schedule, ScheduleList, ScheduleCancel)
)
"""Operations that cannot be tasks: tasks that wait for others could use up all turns."""


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; it is ready once the database is open, and goes on with the tasks that have not ended."""
    settings = env.settings_as(TasksSettings)
    database = await env.opened(
        Database, env.data_dir / "tasks.db", store.SCHEMA, kind=Kind.SOURCE, readers=4, on_damage=env.damaged,
        keeps_keys=True,
    )  # fmt: skip
    env.keeps_keys_in(database)
    tasks = Tasks(env, database, settings)
    await tasks.resume()
    timers = Timers(database, tasks, Limits(settings))
    with contextlib.suppress(LinckiaError):
        await timers.resume()
    env.background.start_soon(timers.run)
    env.background.start_soon(tell_ends, env, database, tasks)
    yield Handlers(tasks, timers)


class Tasks:
    """The handlers, and the tasks that run."""

    def __init__(self, env: Environment, database: Database, settings: TasksSettings) -> None:
        self._env = env
        self._database = database
        self._after_s = settings.after_s
        self._kept_ns = int(settings.kept_s * NS)
        self._limits = Limits(settings)
        self._turns = Turns(settings.at_once)
        self._running: dict[str, Running] = {}
        self._moved = trio.Event()
        """Set when a task begins or ends, and replaced."""
        self.ended = trio.Event()
        """Set at the end of a task; `tell_ends` replaces it."""
        self.timers = 0
        self.show()

    async def resume(self) -> None:
        """Go on with the tasks that have not ended. If they cannot be read, the service still serves what it can, and
        tries again later."""
        with contextlib.suppress(LinckiaError):
            await self._database.write(lambda db: store.purge(db, self._kept_ns))
        try:
            await self._resume()
        except LinckiaError:
            self._env.background.start_soon(self._resume_later)

    async def _resume(self) -> None:
        for task in await self._database.read(store.unfinished):
            self.begin(task)

    async def _resume_later(self) -> None:
        while True:
            await trio.sleep(UNREADABLE_PAUSE_S)
            with contextlib.suppress(LinckiaError):
                return await self._resume()

    @handles(TaskStart)
    async def start(self, params: TaskStart, ctx: Context) -> Task:
        mandate = await self.mandate(params, ctx)
        task = Unfinished(
            secrets.token_hex(16), owner_of(ctx), mounted.name_of(params), mandate, mounted.is_mounted(params)
        )

        def change(db: apsw.Connection) -> Task:
            store.purge(db, self._kept_ns)
            self._limits.check_task(store.usage(db, task.owner), mandate)
            return store.insert(db, task)

        made = await self._database.answer(change)
        self.begin(task)
        return made

    @handles(TaskAdopt)
    async def adopt(self, params: TaskAdopt, ctx: Context) -> Task:
        owner = of_grant(params.grant)
        task = Unfinished(secrets.token_hex(16), owner, params.operation, adopted.order(params.call), False)

        def change(db: apsw.Connection) -> Task:
            self._limits.check_task(store.usage(db, task.owner), "")
            return store.insert(db, task)

        made = await self._database.answer(change)
        self.begin(task)
        return made

    async def mandate(self, params: TaskStart | Schedule, ctx: Context) -> str:
        """Have the kernel check and seal the call. Raises InvalidParams if it could not be made."""
        if params.operation in _OWN:
            raise InvalidParams(f"`operation`: {params.operation} cannot be a task itself", field="operation")
        call = LaterCall(params.operation, params.arguments)
        try:
            (mandate,) = await ctx.call(KernelMandate(calls=[call], complete=True))
        except (Forbidden, UnknownOperation) as error:
            raise InvalidParams(f"`operation`: {error}", field="operation") from None
        return mandate

    @handles(TaskGet)
    async def get(self, params: TaskGet, ctx: Context) -> Task:
        (found,) = await self._read(lambda db: [store.find(db, params.id, owner_of(ctx))])
        return found

    @handles(TaskListParams)
    async def listing(self, params: TaskListParams, ctx: Context) -> TaskList:
        total = 0

        def query(db: apsw.Connection) -> list[Task]:
            nonlocal total
            found = store.select(db, owner_of(ctx), params.state, params.limit)
            total = found.total
            return found.tasks

        return TaskList(tasks=await self._read(query), total=total)

    async def _read(self, query: Callable[[apsw.Connection], list[Task]]) -> list[Task]:
        """Read stored tasks, with their progress. A task that ends during the read is read again."""
        found = await self._database.read(query)
        if any(self._is_adrift(task) for task in found):
            found = await self._database.read(query)
        return [
            running.shown(task) if task.state == "working" and (running := self._running.get(task.id)) else task
            for task in found
        ]

    def _is_adrift(self, task: Task) -> bool:
        """Whether nothing carries the task out: it has ended since it was read, or is still to be begun."""
        return task.state == "working" and task.id not in self._running

    @handles(TaskWait)
    async def wait(self, params: TaskWait, ctx: Context) -> Task:
        asked = TaskGet(id=params.id)
        with trio.move_on_after(self._after_s if params.timeout_s is None else params.timeout_s):
            while True:
                moved = self._moved
                found = await self.get(asked, ctx)
                if found.state != "working":
                    return found
                if (running := self._running.get(found.id)) is not None:
                    await self._follow(running, ctx)
                else:
                    # After a restart, it may take a while until the task is begun.
                    await moved.wait()
        return await self.get(asked, ctx)

    async def _follow(self, running: Running, ctx: Context) -> None:
        """Report progress until the task has ended, or the service should end."""
        async with trio.open_nursery() as nursery:

            async def report() -> None:
                while True:
                    if (made := running.progress_made) is not None:
                        ctx.progress(made.done, made.total, made.message)
                    await running.changed.wait()

            async def end() -> None:
                await running.ended.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(report)
            nursery.start_soon(end)

    @handles(TaskCancel)
    async def cancel(self, params: TaskCancel, ctx: Context) -> Task:
        def change(db: apsw.Connection) -> Task:
            store.find(db, params.id, owner_of(ctx))
            store.end(db, params.id, "cancelled")
            return store.find(db, params.id, owner_of(ctx))

        found = await self._database.answer(change)
        if (running := self._running.get(params.id)) is not None:
            running.scope.cancel()
            await running.ended.wait()
        return found

    # Carrying out

    def begin(self, task: Unfinished) -> None:
        """Carry out a stored task, unless that has begun already."""
        if task.id in self._running:
            return
        running = self._running[task.id] = Running()
        self._has_moved()
        self._env.background.start_soon(self._run, task, running)

    def _has_moved(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
        self.show()

    async def _run(self, task: Unfinished, running: Running) -> None:
        try:
            with running.scope:
                await self._env.ready.wait()
                await (self._follow_call(task, running) if adopted.is_adopted(task) else self._carry_out(task, running))
        finally:
            del self._running[task.id]
            running.ended.set()
            self.ended.set()
            self._has_moved()

    async def _carry_out(self, task: Unfinished, running: Running) -> None:
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        while True:
            try:
                # Without its turn during pauses: tasks that wait for a stopped service must not hold up others.
                async with self._turns.turn(task.owner.id):
                    running.goes_on()
                    result = await self._call(task, running)
                end = partial(store.end, id_=task.id, state="completed", result=result)
            except (Unavailable, Overloaded, Cancelled) as error:
                # The key makes it harmless to ask again, whatever became of this attempt.
                wait_s = backoff.pause_s((error.failure.retry_after_ms or 0) / 1000)
                running.waits(error, wait_s)
                await trio.sleep(wait_s)
                continue
            except LinckiaError as error:
                end = partial(store.end, id_=task.id, state="failed", failure=error.failure)
                if isinstance(error, Forbidden) and error.failure.field == NOT_VALID:
                    # No further run could be made, and nobody else can cancel the timer.
                    end = partial(_end_with_timer, end, task.id.partition("-")[0])
            return await self._store(end, running)

    async def _follow_call(self, task: Unfinished, running: Running) -> None:
        """Take over a call that is in flight. It is never made again: its client knows that it may have been done."""
        try:
            result = await self._call(task, running)
            end = partial(store.end, id_=task.id, state="completed", result=result)
        except LinckiaError as error:
            if adopted.has_ended(error) and not task.is_resumed:
                # The front has the answer, and nobody knows the task.
                end = partial(store.delete, id_=task.id)
            else:
                failure = adopted.interrupted(task) if adopted.has_ended(error) else error.failure
                end = partial(store.end, id_=task.id, state="failed", failure=failure)
        await self._store(end, running)

    async def _store(self, end: Callable[[apsw.Connection], None], running: Running) -> None:
        """Store the end of a task. The call's answer is kept for its key meanwhile."""
        while True:
            try:
                return await self._database.write(end)
            except LinckiaError as error:
                # The disk is full, for instance.
                running.waits(error, LAST_PAUSE_S)
                await trio.sleep(LAST_PAUSE_S)

    async def _call(self, task: Unfinished, running: Running) -> bytes:
        asked = adopted.call_of(task) if adopted.is_adopted(task) else KernelCall(mandate=task.mandate, key=task.id)
        op = operation_of(asked)
        body = await self._env.outgoing.raw(
            op.name,
            frames.pack_body(asked),
            Origin(self._env.service, trace=frames.new_trace()),
            limit_s=op.deadline_ms / 1000,
            client_requests=running,
            changes=True,
        )
        called: KernelCalled = frames.read_body(body, KernelCalled)
        if len(called.body) <= QUICK_BYTES:
            result = _as_json(called.body)
        else:
            result = await trio.to_thread.run_sync(_as_json, called.body)
        return mounted.result_in(result) if task.is_mounted else result

    def show(self) -> None:
        """Show whether the service has work, so that it must not rest."""
        work = [f"{len(self._running)} tasks"] * bool(self._running) + [f"{self.timers} timers"] * bool(self.timers)
        self._env.info(working=", ".join(work) or "none")


async def tell_ends(env: Environment, database: Database, tasks: Tasks) -> None:
    """Add the end of each task to the event log, at least once."""
    await env.after_the_rush()
    backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
    while True:
        tasks.ended = trio.Event()
        try:
            while told := await database.read(store.unreported):
                for each in told:
                    await env.call(
                        EventAdd(
                            id=each.id, kind=EventKind.TASK, subject=each.id, what=each.state, who=each.owner_name,
                            at=each.ended_ns / NS, details={"operation": each.operation},
                        )
                    )  # fmt: skip
                ids = [(each.id,) for each in told]
                await database.write(lambda db, ids=ids: db.executemany("UPDATE task SET told=1 WHERE id=?", ids))  # type: ignore[misc]  # mypy does not infer a lambda with a default
            backoff.succeeded()
        except LinckiaError:
            await backoff.pause()
            continue
        await tasks.ended.wait()


def _end_with_timer(end: Callable[[apsw.Connection], None], timer: str, db: apsw.Connection) -> None:
    end(db)
    db.execute("DELETE FROM timer WHERE id=?", (timer,))


def _as_json(body: bytes) -> bytes:
    """Return a result as a JSON object, in which bytes are base64."""
    json = frames.as_written(body)
    value = frames.read_body(body) if json is None else msgspec.json.decode(json)
    return msgspec.json.encode(value if isinstance(value, dict) else {"result": value})
