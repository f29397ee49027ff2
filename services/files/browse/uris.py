"""Handlers of `synthesis://…` resources, which return the same data as the tools, in pages."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Awaitable, Callable

import apsw
import msgspec

from proto.mcp import BlobContents, ResourceResult, TextContents
from proto.ops.completing import NAMES_LIKE, Completing
from proto.ops.pages import JSON, Paged, place
from services.files.browse.indexing import IndexTools
from services.files.browse.navigation import BrowseTools, artifacts, thumbnail
from services.files.core import Core, Family, Handler, reads
from services.files.operations import uris as ops
from services.files.operations.index import Job, JobList, JobProgress, JobStatus
from services.files.operations.reading import Inspect, InspectResult
from services.files.operations.resources import Children, Metric, Parents, ResourceChildren, ResourceParent, SumResult
from services.files.operations.sets import ResourceSet
from services.files.plans.executions import EXECUTION, execution_of
from services.files.query import named, sets
from services.files.query.columns import Columns
from services.files.query.entries import SELECTED, Select, entry_of, fitting
from services.files.query.set_search import SetSearchTools, first_entries, sum_of
from services.files.query.set_tools import all_sets, set_of
from services.files.store.sql import Row, fetch_all, fetch_value
from services.runtime.handlers import Context, handles
from services.shared import times

METRICS: tuple[Metric, ...] = ("size", "count", "files", "directories")


def _jobs(*statuses: JobStatus) -> Handler[Family, Paged, JobList]:
    async def jobs(self: Family, params: Paged, ctx: Context) -> JobList:
        found, total = await self._core.jobs.list(statuses, None, None, params.offset + params.limit)
        return JobList(jobs=fitting(found[params.offset :])[0], total=total)

    return jobs


class UriResources(Family):
    """The operations of `services.files.operations.uris`."""

    def __init__(self, core: Core, indexing: IndexTools, reading: BrowseTools, searches: SetSearchTools) -> None:
        super().__init__(core)
        self._indexing = indexing
        self._reading = reading
        self._searches = searches

    # Entries

    @reads(ops.Nodes)
    def nodes(self, db: apsw.Connection, params: ops.Nodes) -> ops.NodePage:
        # In this order the rows come from the indexes, without sorting everything.
        rows = db.execute(
            "SELECT f.path || e.name, e.name, e.kind, e.size, e.disk, e.mtime, e.ctime FROM folder f"
            " JOIN entry e ON e.parent = f.id WHERE e.scanned > 0 ORDER BY f.path, e.name LIMIT ? OFFSET ?",
            (params.limit, params.offset),
        )
        found, _ = fitting(map(entry_of, rows))
        total: int = fetch_value(db, "SELECT count(*) FROM entry WHERE scanned > 0")
        return ops.NodePage(entries=found, **place("nodes", params, len(found), total))

    @handles(ops.NodeEntry)
    async def node(self, params: ops.NodeEntry, ctx: Context) -> InspectResult:
        return await self._reading.inspect(Inspect(path=f"/{params.path}"), ctx)

    async def _of_file(
        self, path: str, name: str, mime_type: str, ctx: Context, made: Callable[[str], Awaitable[bytes]]
    ) -> ResourceResult:
        """Return data derived from a file. If `path` is a directory, `name` is an ordinary entry in it."""
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

    @handles(ops.NodeMetadata)
    async def node_metadata(self, params: ops.NodeMetadata, ctx: Context) -> ResourceResult:
        async def made(path: str) -> bytes:
            found = await artifacts(ctx, path)
            return msgspec.json.encode({"path": path, "metadataCount": len(found), "metadata": found})

        return await self._of_file(params.path, "metadata", JSON, ctx, made)

    @handles(ops.NodeThumbnail)
    async def node_thumbnail(self, params: ops.NodeThumbnail, ctx: Context) -> ResourceResult:
        return await self._of_file(params.path, "thumbnail", "image/jpeg", ctx, lambda path: thumbnail(ctx, path))

    # Resource sets

    @reads(ops.Sets)
    def sets(self, db: apsw.Connection, params: ops.Sets) -> ops.SetSummaries:
        found, _ = fitting(all_sets(db, params.limit, params.offset))
        total: int = fetch_value(db, "SELECT count(*) FROM resource_set")
        return ops.SetSummaries(resource_sets=found, **place("resource-sets", params, len(found), total))

    @reads(ops.SetNames)
    def set_names(self, db: apsw.Connection, params: ops.SetNames) -> list[str]:
        return _names(db, "resource_set", params)

    @reads(ops.PlanNames)
    def plan_names(self, db: apsw.Connection, params: ops.PlanNames) -> list[str]:
        return _names(db, "plan", params)

    @reads(ops.OneSet)
    def one_set(self, db: apsw.Connection, params: ops.OneSet) -> ResourceSet:
        return set_of(db, sets.find(db, params.name))

    @reads(ops.SetEntries)
    def set_entries(self, db: apsw.Connection, params: ops.SetEntries) -> ops.NodePage:
        id_ = sets.find(db, params.name)
        found = first_entries(db, id_, params.limit, params.offset)
        total, _ = sets.counts(db, id_)
        uri = f"resource-sets/{urllib.parse.quote(params.name, safe='')}/entries"
        return ops.NodePage(entries=found, **place(uri, params, len(found), total))

    @handles(ops.SetChildren)
    async def set_children(self, params: ops.SetChildren, ctx: Context) -> Children:
        return await self._searches.children(ResourceChildren(name=params.name), ctx)

    @handles(ops.SetParents)
    async def set_parents(self, params: ops.SetParents, ctx: Context) -> Parents:
        return await self._searches.parent(ResourceParent(name=params.name), ctx)

    @reads(ops.SetStats)
    def set_stats(self, db: apsw.Connection, params: ops.SetStats) -> ops.SetStatistics:
        return _statistics(self._core.columns, db, params.name)

    @reads(ops.SetMetric)
    def set_metric(self, db: apsw.Connection, params: ops.SetMetric) -> SumResult:
        return sum_of(self._core.columns, db, params.name, params.metric, None)

    # Jobs

    all_jobs = handles(ops.Jobs)(_jobs())
    pending_jobs = handles(ops.PendingJobs)(_jobs("pending"))
    running_jobs = handles(ops.RunningJobs)(_jobs("running"))
    completed_jobs = handles(ops.CompletedJobs)(_jobs("completed"))
    failed_jobs = handles(ops.FailedJobs)(_jobs("failed"))
    cancelled_jobs = handles(ops.CancelledJobs)(_jobs("cancelled"))

    @handles(ops.OneJob)
    async def one_job(self, params: ops.OneJob, ctx: Context) -> Job:
        return await self._indexing.job_progress(JobProgress(job_id=params.id), ctx)

    # Plans

    @reads(ops.PlansRead)
    def plans(self, db: apsw.Connection, params: ops.PlansRead) -> ops.PlanRecords:
        rows = fetch_all(db, "SELECT * FROM plan ORDER BY name LIMIT ? OFFSET ?", (params.limit, params.offset))
        found, _ = fitting(map(_plan, rows))
        total: int = fetch_value(db, "SELECT count(*) FROM plan")
        return ops.PlanRecords(plans=found, **place("plans", params, len(found), total))

    @reads(ops.PlanRead)
    def plan(self, db: apsw.Connection, params: ops.PlanRead) -> ops.PlanRecord:
        return _plan(named.find(db, "plan", params.name))

    @reads(ops.ExecutionsRead)
    def executions(self, db: apsw.Connection, params: ops.ExecutionsRead) -> ops.ExecutionRecords:
        return _executions(db, "plan-executions", params)

    @reads(ops.ExecutionsOfPlan)
    def executions_of_plan(self, db: apsw.Connection, params: ops.ExecutionsOfPlan) -> ops.ExecutionRecords:
        named.find(db, "plan", params.name)
        uri = f"plans/{urllib.parse.quote(params.name, safe='')}/executions"
        return _executions(db, uri, params, params.name)


def _statistics(columns: Columns, db: apsw.Connection, name: str) -> ops.SetStatistics:
    start = sets.find(db, name)
    every = sets.with_children(db, start)
    own, children = sets.counts(db, start)
    select = Select((), every)
    ((oldest, newest),) = select.run(db, "min(n.mtime), max(n.mtime)")
    largest = next(iter(select.run(db, SELECTED, "ORDER BY n.size DESC, n.path LIMIT 1")), None)
    extensions = select.run(db, "n.extension, count(*)", "AND n.kind = 0 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20")
    return ops.SetStatistics(
        resource_set=name, entry_count=own, child_count=children,
        parent_count=len(sets.around(db, start, down=False, depth=1)),
        **{metric: sets.sums_by_part(columns, db, [every], metric)[0] for metric in METRICS},
        largest=None if largest is None else entry_of(largest), oldest=times.rfc3339_or_none(oldest),
        newest=times.rfc3339_or_none(newest), extensions=dict(extensions),
    )  # fmt: skip


def _plan(row: Row) -> ops.PlanRecord:
    name, definition, created, updated, status = row
    return ops.PlanRecord(
        name=name, status=status, definition=json.loads(definition), created_at=times.rfc3339(created),
        updated_at=times.rfc3339(updated),
    )  # fmt: skip


def _executions(db: apsw.Connection, uri: str, params: Paged, plan: str | None = None) -> ops.ExecutionRecords:
    """Return the executions of a plan, or of all plans, latest first."""
    where, bindings = ("WHERE plan = ?", (plan,)) if plan is not None else ("", ())
    query = f"SELECT {EXECUTION} FROM execution {where} ORDER BY id DESC LIMIT ? OFFSET ?"
    found, _ = fitting(map(execution_of, fetch_all(db, query, (*bindings, params.limit, params.offset))))
    total: int = fetch_value(db, f"SELECT count(*) FROM execution {where}", bindings)
    return ops.ExecutionRecords(executions=found, **place(uri, params, len(found), total))


def _names(db: apsw.Connection, table: str, params: Completing) -> list[str]:
    query = f"SELECT name FROM {table} WHERE {NAMES_LIKE.format('name')}"
    return [name for (name,) in fetch_all(db, query, (params.value,))] if params.argument == "name" else []
