"""The tools that define, run and report on plans."""

from __future__ import annotations

import time
from typing import Any

import apsw
import msgspec
import trio
from msgspec import structs

from proto.errors import InvalidParams, OperationError
from proto.later import MAX_LATER_CALLS
from proto.ops.kernel import KernelMandate
from services.files.core import Core, Family, reads, writes
from services.files.operations import plans as ops
from services.files.operations.shared import Deleted
from services.files.plans import executions, followers, outcomes, source_entries
from services.files.plans.executions import EXECUTION, Executions, PlanDefinition, execution_of
from services.files.query import conditions, named
from services.files.store.sql import Row, fetch_all, fetch_value
from services.runtime.handlers import Context, handles
from services.shared import times

_COLUMNS = (
    "name, definition, created, updated, status, (SELECT count(*) FROM execution WHERE plan = name),"
    " (SELECT max(started) FROM execution WHERE plan = name)"
)

_RUN = "plan, definition, status, started, finished, processed, matched, applied, failed, error"
"""The columns of a `CarriedRun`."""

RUNS = 500
"""Number of runs exported per call."""

_STOPPED = "the plan was "
"""Start of the error of an execution that was ended by a change of its plan's status; the status follows."""


class PlanTools(Family):
    """The operations of `services.files.operations.plans`."""

    def __init__(self, core: Core, running: Executions) -> None:
        super().__init__(core)
        self._running = running
        self._changing = trio.Lock()

    def _notify(self, name: str) -> None:
        named.notify(self._core.env, "plans", "plan-executions", f"plans/{name}", f"plans/{name}/executions")

    async def _checked(self, definition: PlanDefinition) -> PlanDefinition:
        """Return the checked definition, with real paths. Raises InvalidParams, which names the field."""
        sources = []
        for n, source in enumerate(definition.sources):
            source_entries.check(source, f"sources[{n}]")
            sources.append(await self._real(source, f"sources[{n}].config.path"))
        conditions.where(definition.conditions)
        outcomes.check(definition.outcomes, "outcomes")
        outcomes.check_grant(definition.outcomes)
        return structs.replace(definition, sources=sources)

    async def _mandates(self, definition: PlanDefinition, ctx: Context) -> list[str]:
        """Obtain the kernel's mandates for the calls that the current client gives as outcomes. Raises
        InvalidParams."""
        calls = outcomes.calls_of(definition.outcomes)
        if len(calls) > MAX_LATER_CALLS:
            raise InvalidParams(f"`outcomes`: more than {MAX_LATER_CALLS} different calls", field="outcomes")
        return await ctx.call(KernelMandate(calls=calls)) if calls else []

    async def _real(self, source: ops.PlanSource, field: str) -> ops.PlanSource:
        path = source.config.path
        if path is None:
            return source
        real = await trio.to_thread.run_sync(self._core.roots.real, self._core.roots.clean(path, field), field)
        return structs.replace(source, config=structs.replace(source.config, path=real))

    @handles(ops.PlanCreate)
    async def create(self, params: ops.PlanCreate, ctx: Context) -> ops.Plan:
        definition = await self._checked(_definition_of(params))
        definition = structs.replace(definition, mandates=await self._mandates(definition, ctx))

        def change(db: apsw.Connection) -> ops.Plan:
            named.require_free(db, "plan", params.name)
            now = time.time_ns()
            text = msgspec.json.encode(definition).decode()
            db.execute("INSERT INTO plan VALUES(?,?,?,?,'active')", (params.name, text, now, now))
            return _find(db, params.name)

        made = await self._core.database.answer(change)
        self._notify(params.name)
        return made

    @handles(ops.PlanExecute)
    async def execute(self, params: ops.PlanExecute, ctx: Context) -> ops.Started:
        def change(db: apsw.Connection) -> tuple[int, int, PlanDefinition | None]:
            plan = _find(db, params.name)
            if plan.status != "active":
                raise OperationError(
                    f"plan {params.name!r} is {plan.status}; set its status to active with plans_update"
                )
            definition = _stored(db, params.name)
            outcomes.check_grant(definition.outcomes)
            if len(outcomes.calls_of(definition.outcomes)) > len(definition.mandates):
                raise OperationError(outcomes.NO_MANDATE)
            running = executions.running(db, params.name)
            id_ = running[0][0] if running else executions.begin(db, params.name, definition)
            started = fetch_value(db, "SELECT started FROM execution WHERE id = ?", (id_,))
            return id_, started, None if running else definition

        def answer(done: tuple[int, int, PlanDefinition | None]) -> ops.Started:
            id_, started, _ = done
            return ops.Started(
                execution_id=id_, plan_name=params.name, status="running", started_at=started // times.NS
            )

        async with self._changing:
            done = await self._core.database.answer(change, answer)
            id_, _, definition = done
            if definition is not None:
                self._running.start(id_, definition)
        self._notify(params.name)
        return answer(done)

    @reads(ops.PlanList)
    def listing(self, db: apsw.Connection, params: ops.PlanList) -> ops.Plans:
        plans = [_plan(row) for row in fetch_all(db, f"SELECT {_COLUMNS} FROM plan ORDER BY name")]
        return ops.Plans(plans=plans, total=len(plans))

    @reads(ops.PlanGet)
    def get(self, db: apsw.Connection, params: ops.PlanGet) -> ops.PlanDetails:
        plan = _find(db, params.name)
        query = f"SELECT definition, {EXECUTION} FROM execution WHERE plan = ? ORDER BY id DESC LIMIT ?"
        rows = fetch_all(db, query, (params.name, params.execution_limit)) if params.include_executions else None
        found = None if rows is None else [_execution(*row) for row in rows]
        return ops.PlanDetails(**structs.asdict(plan), executions=found)

    @reads(ops.FilesExportRuns)
    def export_runs(self, db: apsw.Connection, params: ops.FilesExportRuns) -> ops.CarriedRuns:
        query = f"SELECT id, {_RUN} FROM execution WHERE id > ? AND finished IS NOT NULL ORDER BY id LIMIT {RUNS}"
        rows = fetch_all(db, query, (params.after,))
        names = ops.CarriedRun.__struct_fields__
        runs = [{**dict(zip(names, row, strict=True)), "definition": _carried(row[1])} for _, *row in rows]
        return ops.CarriedRuns(runs=msgspec.convert(runs, list[ops.CarriedRun]), next=rows[-1][0] if rows else 0)

    @writes(ops.FilesImportRuns)
    def import_runs(self, db: apsw.Connection, params: ops.FilesImportRuns) -> ops.RunsImported:
        before = db.total_changes()
        for run in params.runs:
            try:
                definition = msgspec.convert({**run.definition, "mandates": []}, PlanDefinition)
            except msgspec.ValidationError as error:
                raise InvalidParams(f"`runs`: invalid plan of a run of {run.plan!r}: {error}", field="runs") from None
            values = {**structs.asdict(run), "definition": msgspec.json.encode(definition).decode()}
            db.execute(
                f"INSERT INTO execution({_RUN}) SELECT :{_RUN.replace(', ', ', :')} FROM plan WHERE name = :plan"
                " AND NOT EXISTS (SELECT 1 FROM execution WHERE plan = :plan AND started = :started)",
                values,
            )
        return ops.RunsImported(changed=db.total_changes() - before)

    @handles(ops.PlanUpdate)
    async def update(self, params: ops.PlanUpdate, ctx: Context) -> ops.Plan:
        if params.clear_conditions and params.conditions is not None:
            raise InvalidParams("`clear_conditions`: not possible with new `conditions`", field="clear_conditions")
        async with self._changing:
            before, stored = await self._core.database.read(
                lambda db: (_find(db, params.name), _stored(db, params.name))
            )
            given = {
                name: value
                for name in ("description", "mode", "sources", "conditions", "outcomes")
                if (value := getattr(params, name)) is not None
            }
            if params.clear_conditions:
                given["conditions"] = None
            definition = await self._checked(structs.replace(stored, **given))
            if params.outcomes is not None:
                definition = structs.replace(definition, mandates=await self._mandates(definition, ctx))
            status = before.status if params.status is None else params.status
            # A running execution of the previous definition is ended; a continuous one restarts with this definition.
            restarts = bool(given.keys() - {"description"})

            def change(db: apsw.Connection) -> tuple[ops.Plan, list[tuple[int, PlanDefinition]], int | None]:
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
                        _end(db, id_, plan, f"{_STOPPED}{status}")
                    elif restarts and plan.mode == "continuous":
                        stopped.append((id_, plan))
                        _end(db, id_, plan, "the plan was changed")
                        begun = executions.begin(db, params.name, definition)
                if status == "active" != before.status:
                    begun = _resumed(db, params.name, definition)
                return _find(db, params.name), stopped, begun

            plan, stopped, begun = await self._core.database.answer(change, lambda done: done[0])
            for id_, old in stopped:
                await self._running.stop(id_, old)
            if begun is not None:
                self._running.start(begun, definition)
        self._notify(params.name)
        return plan

    @handles(ops.PlanDelete)
    async def delete(self, params: ops.PlanDelete, ctx: Context) -> Deleted:
        def change(db: apsw.Connection) -> list[tuple[int, PlanDefinition]]:
            named.find(db, "plan", params.name)
            stopped = executions.running(db, params.name)
            for id_, plan in stopped:
                _end(db, id_, plan, "the plan was deleted")
            db.execute("DELETE FROM plan WHERE name = ?", (params.name,))
            return stopped

        deleted = Deleted(name=params.name, deleted=True, message=f"plan {params.name!r} was deleted")
        async with self._changing:
            for id_, plan in await self._core.database.answer(change, lambda _: deleted):
                await self._running.stop(id_, plan)
        self._notify(params.name)
        return deleted


def _resumed(db: apsw.Connection, name: str, definition: PlanDefinition) -> int | None:
    """Return the execution to run when the plan becomes active again.

    This is the execution that the status change had ended, resumed where it was. It is a new one if changes were missed
    or the plan has changed. None if the last execution had ended by itself.
    """
    query = "SELECT id, definition, error FROM execution WHERE plan = ? ORDER BY id DESC LIMIT 1"
    for id_, text, error in fetch_all(db, query, (name,)):
        if error is not None and error.startswith(_STOPPED):
            then = structs.replace(msgspec.json.decode(text, type=PlanDefinition), mandates=definition.mandates)
            if definition.mode == "continuous" or then != definition:
                return executions.begin(db, name, definition)
            db.execute(
                "UPDATE execution SET status = 'running', finished = NULL, error = NULL, definition = ? WHERE id = ?",
                (msgspec.json.encode(definition).decode(), id_),
            )
            return int(id_)
    return None


def _end(db: apsw.Connection, id_: int, plan: PlanDefinition, why: str) -> None:
    executions.finish(db, id_, "cancelled", why)
    for subscription in executions.subscriptions(id_, plan):
        followers.end(db, subscription)


def _definition_of(given: ops.PlanCreate | ops.Plan) -> PlanDefinition:
    return msgspec.convert(given, PlanDefinition, from_attributes=True)


def _stored(db: apsw.Connection, name: str) -> PlanDefinition:
    return msgspec.json.decode(named.find(db, "plan", name)[1], type=PlanDefinition)


def _find(db: apsw.Connection, name: str) -> ops.Plan:
    named.find(db, "plan", name)
    (row,) = fetch_all(db, f"SELECT {_COLUMNS} FROM plan WHERE name = ?", (name,))
    return _plan(row)


def _plan(row: Row) -> ops.Plan:
    name, text, created, updated, status, count, last = row
    return ops.Plan(
        name=name,
        status=status,
        **_shown(text),
        created_at=times.rfc3339(created),
        updated_at=times.rfc3339(updated),
        execution_count=count,
        last_execution_at=times.rfc3339_or_none(last),
    )


def _shown(text: str) -> dict[str, Any]:
    """Return a stored definition without the kernel's mandates."""
    definition = structs.asdict(msgspec.json.decode(text, type=PlanDefinition))
    del definition["mandates"]
    return definition


def _carried(text: str) -> dict[str, Any]:
    definition: dict[str, Any] = msgspec.json.decode(text)
    definition.pop("mandates", None)
    return definition


def _execution(text: str, *row: Any) -> ops.Execution:
    _, _, _, started, finished, *_ = row
    ended = finished if finished is not None else time.time_ns()
    return ops.Execution(
        **structs.asdict(execution_of(row)),
        mode=msgspec.json.decode(text, type=PlanDefinition).mode,
        duration_ms=max(0, ended - started) // 1_000_000,
    )
