"""Plans and their executions as resources, page by page."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Sequence

import apsw

from proto.errors import InvalidParams
from proto.ops.files.plan_uris import (
    ExecutionRecord,
    ExecutionRecords,
    ExecutionsOfPlan,
    ExecutionsRead,
    PlanRead,
    PlanRecord,
    PlanRecords,
    PlansRead,
)
from services.files import times
from services.files.browse.uris import next_page
from services.files.core import Core
from services.files.query.entries import fitting
from services.files.store.rows import Row, fetch_all, fetch_one, fetch_value
from services.runtime.handlers import Context, handles

_PLAN = "SELECT name, definition, created, updated, status FROM plan"
_EXECUTION = "SELECT id, plan, status, started, finished, processed, matched, applied, failed, error FROM execution"


class PlanUris:
    """The operations of `proto.ops.files.plan_uris`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @handles(PlansRead)
    async def plans(self, params: PlansRead, ctx: Context) -> PlanRecords:
        def query(db: apsw.Connection) -> PlanRecords:
            rows = fetch_all(db, f"{_PLAN} ORDER BY name LIMIT ? OFFSET ?", (params.limit, params.offset))
            found, _ = fitting(map(_plan, rows))
            total: int = fetch_value(db, "SELECT count(*) FROM plan")
            end = params.offset + len(found)
            return PlanRecords(
                plans=found, total=total, offset=params.offset, has_more=end < total,
                next=next_page("plans", end, params.limit) if end < total else "",
            )  # fmt: skip

        return await self._core.database.read(query)

    @handles(PlanRead)
    async def plan(self, params: PlanRead, ctx: Context) -> PlanRecord:
        return await self._core.database.read(lambda db: _plan(_existing(db, params.name)))

    @handles(ExecutionsRead)
    async def executions(self, params: ExecutionsRead, ctx: Context) -> ExecutionRecords:
        return await self._core.database.read(
            lambda db: _executions(db, "", (), "plan-executions", params.offset, params.limit)
        )

    @handles(ExecutionsOfPlan)
    async def executions_of_plan(self, params: ExecutionsOfPlan, ctx: Context) -> ExecutionRecords:
        def query(db: apsw.Connection) -> ExecutionRecords:
            _existing(db, params.name)
            uri = f"plans/{urllib.parse.quote(params.name, safe='')}/executions"
            return _executions(db, "WHERE plan = ?", (params.name,), uri, params.offset, params.limit)

        return await self._core.database.read(query)


def _existing(db: apsw.Connection, name: str) -> Row:
    row = fetch_one(db, f"{_PLAN} WHERE name = ?", (name,))
    if row is None:
        names = ", ".join(there for (there,) in fetch_all(db, "SELECT name FROM plan ORDER BY name LIMIT 20"))
        raise InvalidParams(f"`name`: there is no plan {name[:200]!r}; there are: {names or 'none'}", field="name")
    return row


def _plan(row: Row) -> PlanRecord:
    name, definition, created, updated, status = row
    return PlanRecord(
        name=name, status=status, definition=json.loads(definition), created_at=times.rfc3339(created),
        updated_at=times.rfc3339(updated),
    )  # fmt: skip


def _executions(
    db: apsw.Connection, where: str, bindings: Sequence[str], uri: str, offset: int, limit: int
) -> ExecutionRecords:
    rows = fetch_all(db, f"{_EXECUTION} {where} ORDER BY id DESC LIMIT ? OFFSET ?", (*bindings, limit, offset))
    found, _ = fitting(map(_execution, rows))
    total: int = fetch_value(db, f"SELECT count(*) FROM execution {where}", bindings)
    end = offset + len(found)
    return ExecutionRecords(
        executions=found, total=total, offset=offset, has_more=end < total,
        next=next_page(uri, end, limit) if end < total else "",
    )  # fmt: skip


def _execution(row: Row) -> ExecutionRecord:
    id_, plan, status, started, finished, processed, matched, applied, failed, error = row
    return ExecutionRecord(
        execution_id=id_, plan_name=plan, status=status, started_at=started // times.NS,
        completed_at=None if finished is None else finished // times.NS, entries_processed=processed,
        entries_matched=matched, outcomes_applied=applied, outcomes_failed=failed, error=error,
    )  # fmt: skip
