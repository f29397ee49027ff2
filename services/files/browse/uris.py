"""What is read at `synthesis://…`: the same as the tools answer, page by page."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Awaitable, Callable

import apsw
import msgspec

from proto.mcp import BlobContents, ResourceResult, TextContents
from proto.ops.files.index import Job, JobList, JobProgress, JobStatus
from proto.ops.files.reading import Inspect, InspectResult
from proto.ops.files.resources import Children, Metric, Parents, ResourceChildren, ResourceParent, SumResult
from proto.ops.files.sets import ResourceSet
from proto.ops.files.uris import (
    CancelledJobs,
    CompletedJobs,
    ExecutionRecords,
    ExecutionsOfPlan,
    ExecutionsRead,
    FailedJobs,
    Jobs,
    Node,
    NodeMetadata,
    NodePage,
    Nodes,
    NodeThumbnail,
    OneJob,
    OneSet,
    PendingJobs,
    PlanRead,
    PlanRecord,
    PlanRecords,
    PlansRead,
    RunningJobs,
    SetChildren,
    SetEntries,
    SetMetric,
    SetParents,
    Sets,
    SetStatistics,
    SetStats,
    SetSummaries,
)
from proto.ops.pages import JSON, Paged, place
from services.files import times
from services.files.browse import media
from services.files.browse.indexing import Indexing
from services.files.browse.reading import Reading
from services.files.core import Core
from services.files.plans.executions import EXECUTION, execution_of
from services.files.query import named, sets
from services.files.query.entries import SELECTED, Select, entry_of, fitting
from services.files.query.grouping import all_sets, set_of
from services.files.query.resources import SetSearch, first_entries, sum_of
from services.files.store.sql import Row, fetch_all, fetch_value
from services.runtime.handlers import Context, handles

METRICS: tuple[Metric, ...] = ("size", "count", "files", "directories")


class Uris:
    """The operations of `proto.ops.files.uris`."""

    def __init__(self, core: Core, indexing: Indexing, reading: Reading, searches: SetSearch) -> None:
        self._core = core
        self._indexing = indexing
        self._reading = reading
        self._searches = searches

    # Entries

    @handles(Nodes)
    async def nodes(self, params: Nodes, ctx: Context) -> NodePage:
        def query(db: apsw.Connection) -> NodePage:
            # In this order the indexes deliver them, without a sort of all.
            rows = db.execute(
                "SELECT f.path || e.name, e.name, e.kind, e.size, e.disk, e.mtime, e.ctime FROM folder f"
                " JOIN entry e ON e.parent = f.id WHERE e.scanned > 0 ORDER BY f.path, e.name LIMIT ? OFFSET ?",
                (params.limit, params.offset),
            )
            found, _ = fitting(map(entry_of, rows))
            total: int = fetch_value(db, "SELECT count(*) FROM entry WHERE scanned > 0")
            return NodePage(entries=found, **place("nodes", params, len(found), total))

        return await self._core.database.read(query)

    @handles(Node)
    async def node(self, params: Node, ctx: Context) -> InspectResult:
        return await self._reading.inspect(Inspect(path=f"/{params.path}"), ctx)

    async def _of_file(
        self, path: str, name: str, mime_type: str, ctx: Context, made: Callable[[str], Awaitable[bytes]]
    ) -> ResourceResult:
        """Data derived from a file; below a directory, `name` is an ordinary entry."""
        found = await self._reading.inspect(Inspect(path=f"/{path}"), ctx)
        uri = f"{found.resource_uri}/{name}"
        if found.kind == "directory":
            entry = await self._reading.inspect(Inspect(path=f"/{path}/{name}"), ctx)
            text = msgspec.json.encode(entry).decode()
            return ResourceResult(contents=[TextContents(uri=uri, text=text, mime_type=JSON)])
        data = await made(found.path)
        if mime_type == JSON:
            return ResourceResult(contents=[TextContents(uri=uri, text=data.decode(), mime_type=JSON)])
        return ResourceResult(contents=[BlobContents(uri=uri, blob=data, mime_type=mime_type)])

    @handles(NodeMetadata)
    async def node_metadata(self, params: NodeMetadata, ctx: Context) -> ResourceResult:
        async def made(path: str) -> bytes:
            found = await media.artifacts(ctx, path)
            return msgspec.json.encode({"path": path, "metadataCount": len(found), "metadata": found})

        return await self._of_file(params.path, "metadata", JSON, ctx, made)

    @handles(NodeThumbnail)
    async def node_thumbnail(self, params: NodeThumbnail, ctx: Context) -> ResourceResult:
        return await self._of_file(params.path, "thumbnail", "image/jpeg", ctx, lambda path: media.thumbnail(ctx, path))

    # Resource sets

    @handles(Sets)
    async def sets(self, params: Sets, ctx: Context) -> SetSummaries:
        def query(db: apsw.Connection) -> SetSummaries:
            found, _ = fitting(all_sets(db, params.limit, params.offset))
            total: int = fetch_value(db, "SELECT count(*) FROM resource_set")
            return SetSummaries(resource_sets=found, **place("resource-sets", params, len(found), total))

        return await self._core.database.read(query)

    @handles(OneSet)
    async def one_set(self, params: OneSet, ctx: Context) -> ResourceSet:
        return await self._core.database.read(lambda db: set_of(db, sets.find(db, params.name)))

    @handles(SetEntries)
    async def set_entries(self, params: SetEntries, ctx: Context) -> NodePage:
        def query(db: apsw.Connection) -> NodePage:
            id_ = sets.find(db, params.name)
            found = first_entries(db, id_, params.limit, params.offset)
            total, _ = sets.counts(db, id_)
            uri = f"resource-sets/{urllib.parse.quote(params.name, safe='')}/entries"
            return NodePage(entries=found, **place(uri, params, len(found), total))

        return await self._core.database.read(query)

    @handles(SetChildren)
    async def set_children(self, params: SetChildren, ctx: Context) -> Children:
        return await self._searches.children(ResourceChildren(name=params.name), ctx)

    @handles(SetParents)
    async def set_parents(self, params: SetParents, ctx: Context) -> Parents:
        return await self._searches.parent(ResourceParent(name=params.name), ctx)

    @handles(SetStats)
    async def set_stats(self, params: SetStats, ctx: Context) -> SetStatistics:
        return await self._core.database.read(lambda db: _statistics(db, params.name))

    @handles(SetMetric)
    async def set_metric(self, params: SetMetric, ctx: Context) -> SumResult:
        return await self._core.database.read(lambda db: sum_of(db, params.name, params.metric, None))

    # Jobs

    async def _jobs(self, params: Paged, *statuses: JobStatus) -> JobList:
        found, total = await self._core.jobs.list(statuses, None, None, params.offset + params.limit)
        return JobList(jobs=fitting(found[params.offset :])[0], total=total)

    @handles(Jobs)
    async def all_jobs(self, params: Jobs, ctx: Context) -> JobList:
        return await self._jobs(params)

    @handles(PendingJobs)
    async def pending_jobs(self, params: PendingJobs, ctx: Context) -> JobList:
        return await self._jobs(params, "pending")

    @handles(RunningJobs)
    async def running_jobs(self, params: RunningJobs, ctx: Context) -> JobList:
        return await self._jobs(params, "running")

    @handles(CompletedJobs)
    async def completed_jobs(self, params: CompletedJobs, ctx: Context) -> JobList:
        return await self._jobs(params, "completed")

    @handles(FailedJobs)
    async def failed_jobs(self, params: FailedJobs, ctx: Context) -> JobList:
        return await self._jobs(params, "failed")

    @handles(CancelledJobs)
    async def cancelled_jobs(self, params: CancelledJobs, ctx: Context) -> JobList:
        return await self._jobs(params, "cancelled")

    @handles(OneJob)
    async def one_job(self, params: OneJob, ctx: Context) -> Job:
        return await self._indexing.job_progress(JobProgress(job_id=params.id), ctx)

    # Plans

    @handles(PlansRead)
    async def plans(self, params: PlansRead, ctx: Context) -> PlanRecords:
        def query(db: apsw.Connection) -> PlanRecords:
            rows = fetch_all(db, "SELECT * FROM plan ORDER BY name LIMIT ? OFFSET ?", (params.limit, params.offset))
            found, _ = fitting(map(_plan, rows))
            total: int = fetch_value(db, "SELECT count(*) FROM plan")
            return PlanRecords(plans=found, **place("plans", params, len(found), total))

        return await self._core.database.read(query)

    @handles(PlanRead)
    async def plan(self, params: PlanRead, ctx: Context) -> PlanRecord:
        return await self._core.database.read(lambda db: _plan(named.find(db, "plan", params.name)))

    @handles(ExecutionsRead)
    async def executions(self, params: ExecutionsRead, ctx: Context) -> ExecutionRecords:
        return await self._core.database.read(lambda db: _executions(db, "plan-executions", params))

    @handles(ExecutionsOfPlan)
    async def executions_of_plan(self, params: ExecutionsOfPlan, ctx: Context) -> ExecutionRecords:
        def query(db: apsw.Connection) -> ExecutionRecords:
            named.find(db, "plan", params.name)
            uri = f"plans/{urllib.parse.quote(params.name, safe='')}/executions"
            return _executions(db, uri, params, params.name)

        return await self._core.database.read(query)


def _statistics(db: apsw.Connection, name: str) -> SetStatistics:
    start = sets.find(db, name)
    every = sets.with_children(db, start)
    own, children = sets.counts(db, start)
    select = Select((), every)
    ((oldest, newest),) = select.run(db, "min(n.mtime), max(n.mtime)")
    largest = next(iter(select.run(db, SELECTED, "ORDER BY n.size DESC, n.path LIMIT 1")), None)
    extensions = select.run(db, "n.extension, count(*)", "AND n.kind = 0 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20")
    return SetStatistics(
        resource_set=name, entry_count=own, child_count=children,
        parent_count=len(sets.around(db, start, down=False, depth=1)),
        **{metric: sets.sums_by_part(db, [every], metric)[0] for metric in METRICS},
        largest=None if largest is None else entry_of(largest), oldest=times.rfc3339_or_none(oldest),
        newest=times.rfc3339_or_none(newest), extensions=dict(extensions),
    )  # fmt: skip


def _plan(row: Row) -> PlanRecord:
    name, definition, created, updated, status = row
    return PlanRecord(
        name=name, status=status, definition=json.loads(definition), created_at=times.rfc3339(created),
        updated_at=times.rfc3339(updated),
    )  # fmt: skip


def _executions(db: apsw.Connection, uri: str, params: Paged, plan: str | None = None) -> ExecutionRecords:
    """Those of a plan, or of all plans, latest first."""
    where, bindings = ("WHERE plan = ?", (plan,)) if plan is not None else ("", ())
    query = f"SELECT {EXECUTION} FROM execution {where} ORDER BY id DESC LIMIT ? OFFSET ?"
    found, _ = fitting(map(execution_of, fetch_all(db, query, (*bindings, params.limit, params.offset))))
    total: int = fetch_value(db, f"SELECT count(*) FROM execution {where}", bindings)
    return ExecutionRecords(executions=found, **place(uri, params, len(found), total))
