"""The tools that define plans, begin them and tell how they go."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import apsw
import msgspec
import trio
from msgspec import structs

from proto.errors import InvalidParams, OperationError
from proto.ops.files.plans import (
    Execution,
    Plan,
    PlanCreate,
    PlanDelete,
    PlanDetails,
    PlanExecute,
    PlanGet,
    PlanList,
    Plans,
    PlanSource,
    PlanStatus,
    PlanUpdate,
    Started,
)
from proto.ops.files.shared import Deleted
from services.files import paths, times
from services.files.core import Core
from services.files.plans import executions, finding, followers, outcomes
from services.files.plans.executions import EXECUTION, Definition, Executions, execution_of
from services.files.query import conditions, named
from services.files.store.sql import Row, fetch_all, fetch_value
from services.runtime.handlers import Context, handles

_COLUMNS = (
    "name, definition, created, updated, status, (SELECT count(*) FROM execution WHERE plan = name),"
    " (SELECT max(started) FROM execution WHERE plan = name)"
)


class _Stored(NamedTuple):
    """A row of `plan`, and how often and when last it was begun."""

    name: str
    definition: Definition
    created: int
    updated: int
    status: PlanStatus
    executions: int
    last: int | None


class PlanTools:
    """The operations of `proto.ops.files.plans`."""

    def __init__(self, core: Core, running: Executions) -> None:
        self._core = core
        self._running = running
        self._changing = trio.Lock()

    def _tell(self, name: str) -> None:
        named.tell(self._core.env, "plans", "plan-executions", f"plans/{name}", f"plans/{name}/executions")

    async def _checked(self, definition: Definition) -> Definition:
        """With real paths. Raises InvalidParams, which names the field."""
        sources = []
        for n, source in enumerate(definition.sources):
            finding.check(source, f"sources[{n}]")
            sources.append(await self._real(source, f"sources[{n}].config.path"))
        conditions.where(definition.conditions)
        outcomes.check(definition.outcomes, "outcomes")
        return structs.replace(definition, sources=sources)

    async def _real(self, source: PlanSource, field: str) -> PlanSource:
        path = source.config.path
        if path is None:
            return source
        real = await trio.to_thread.run_sync(self._core.roots.real, paths.clean(path, field), field)
        return structs.replace(source, config=structs.replace(source.config, path=real))

    @handles(PlanCreate)
    async def create(self, params: PlanCreate, ctx: Context) -> Plan:
        definition = await self._checked(msgspec.convert(params, Definition, from_attributes=True))

        def change(db: apsw.Connection) -> Plan:
            named.require_free(db, "plan", params.name)
            now = time.time_ns()
            text = msgspec.json.encode(definition).decode()
            db.execute("INSERT INTO plan VALUES(?,?,?,?,'active')", (params.name, text, now, now))
            return _plan(_find(db, params.name))

        made = await self._core.database.write(change)
        self._tell(params.name)
        return made

    @handles(PlanExecute)
    async def execute(self, params: PlanExecute, ctx: Context) -> Started:
        def change(db: apsw.Connection) -> tuple[int, int, Definition | None]:
            stored = _find(db, params.name)
            if stored.status != "active":
                raise OperationError(
                    f"plan {params.name!r} is {stored.status}; plan-update with status active lets it run"
                )
            running = executions.running(db, params.name)
            id_ = running[0][0] if running else executions.begin(db, params.name, stored.definition)
            started = fetch_value(db, "SELECT started FROM execution WHERE id = ?", (id_,))
            return id_, started, None if running else stored.definition

        async with self._changing:
            id_, started, definition = await self._core.database.write(change)
            if definition is not None:
                self._running.start(id_, definition)
        self._tell(params.name)
        return Started(execution_id=id_, plan_name=params.name, status="running", started_at=started // times.NS)

    @handles(PlanList)
    async def listing(self, params: PlanList, ctx: Context) -> Plans:
        def query(db: apsw.Connection) -> Plans:
            plans = [_plan(_stored(row)) for row in fetch_all(db, f"SELECT {_COLUMNS} FROM plan ORDER BY name")]
            return Plans(plans=plans, total=len(plans))

        return await self._core.database.read(query)

    @handles(PlanGet)
    async def get(self, params: PlanGet, ctx: Context) -> PlanDetails:
        def query(db: apsw.Connection) -> PlanDetails:
            plan = _plan(_find(db, params.name))
            query = f"SELECT definition, {EXECUTION} FROM execution WHERE plan = ? ORDER BY id DESC LIMIT ?"
            rows = fetch_all(db, query, (params.name, params.execution_limit)) if params.include_executions else None
            found = None if rows is None else [_execution(*row) for row in rows]
            return PlanDetails(**structs.asdict(plan), executions=found)

        return await self._core.database.read(query)

    @handles(PlanUpdate)
    async def update(self, params: PlanUpdate, ctx: Context) -> Plan:
        if params.clear_conditions and params.conditions is not None:
            raise InvalidParams("`clear_conditions`: give new `conditions`, or clear them", field="clear_conditions")
        async with self._changing:
            before = await self._core.database.read(lambda db: _find(db, params.name))
            definition = before.definition
            given = {
                name: value
                for name in ("description", "mode", "sources", "conditions", "outcomes")
                if (value := getattr(params, name)) is not None
            }
            if params.clear_conditions:
                given["conditions"] = None
            definition = await self._checked(structs.replace(definition, **given))
            status = before.status if params.status is None else params.status
            # An execution of the previous definition is ended, and restarted with this one if it was to run on.
            restarts = bool(given.keys() - {"description"})

            def change(db: apsw.Connection) -> tuple[Plan, list[tuple[int, Definition]], int | None]:
                text = msgspec.json.encode(definition).decode()
                db.execute(
                    "UPDATE plan SET definition = ?, status = ?, updated = ? WHERE name = ?",
                    (text, status, time.time_ns(), params.name),
                )
                stopped = []
                begun = None
                for id_, plan in executions.running(db, params.name):
                    if status != "active":
                        stopped.append((id_, plan))
                        _end(db, id_, plan, f"the plan was {status}")
                    elif restarts and plan.mode == "continuous":
                        stopped.append((id_, plan))
                        _end(db, id_, plan, "the plan was changed")
                        begun = executions.begin(db, params.name, definition)
                return _plan(_find(db, params.name)), stopped, begun

            plan, stopped, begun = await self._core.database.write(change)
            for id_, old in stopped:
                await self._running.stop(id_, old)
            if begun is not None:
                self._running.start(begun, definition)
        self._tell(params.name)
        return plan

    @handles(PlanDelete)
    async def delete(self, params: PlanDelete, ctx: Context) -> Deleted:
        def change(db: apsw.Connection) -> list[tuple[int, Definition]]:
            named.find(db, "plan", params.name)
            stopped = executions.running(db, params.name)
            for id_, plan in stopped:
                _end(db, id_, plan, "the plan was deleted")
            db.execute("DELETE FROM plan WHERE name = ?", (params.name,))
            return stopped

        async with self._changing:
            for id_, plan in await self._core.database.write(change):
                await self._running.stop(id_, plan)
        self._tell(params.name)
        return Deleted(name=params.name, deleted=True, message=f"plan {params.name!r} was deleted")


def _end(db: apsw.Connection, id_: int, plan: Definition, why: str) -> None:
    executions.finish(db, id_, "cancelled", why)
    for subscription in executions.subscriptions(id_, plan):
        followers.end(db, subscription)


def _find(db: apsw.Connection, name: str) -> _Stored:
    named.find(db, "plan", name)
    (row,) = fetch_all(db, f"SELECT {_COLUMNS} FROM plan WHERE name = ?", (name,))
    return _stored(row)


def _stored(row: Row) -> _Stored:
    name, text, created, updated, status, count, last = row
    return _Stored(name, msgspec.json.decode(text, type=Definition), created, updated, status, count, last)


def _plan(stored: _Stored) -> Plan:
    definition = stored.definition
    return Plan(
        name=stored.name,
        description=definition.description,
        mode=definition.mode,
        status=stored.status,
        sources=definition.sources,
        conditions=definition.conditions,
        outcomes=definition.outcomes,
        created_at=times.rfc3339(stored.created),
        updated_at=times.rfc3339(stored.updated),
        execution_count=stored.executions,
        last_execution_at=times.rfc3339_or_none(stored.last),
    )


def _execution(text: str, *row: Any) -> Execution:
    _, _, _, started, finished, *_ = row
    ended = finished if finished is not None else time.time_ns()
    return Execution(
        **structs.asdict(execution_of(row)),
        mode=msgspec.json.decode(text, type=Definition).mode,
        duration_ms=max(0, ended - started) // 1_000_000,
    )
