"""What is read at `synthesis://…`: the same as the tools answer, page by page."""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable, Iterable

import apsw
import msgspec

from proto.mcp import BlobContents, ResourceResult, TextContents
from proto.ops.files.index import Job, JobList, JobProgress
from proto.ops.files.reading import Inspect, InspectResult
from proto.ops.files.resources import SUMS, Children, Parents, ResourceChildren, ResourceParent, SumResult
from proto.ops.files.uris import (
    JSON,
    CancelledJobs,
    CompletedJobs,
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
    RunningJobs,
    SetChildren,
    SetEntries,
    SetMetric,
    SetParents,
    Sets,
    SetStatistics,
    SetStats,
    SetSummaries,
    SetSummary,
)
from services.files import times
from services.files.browse import media
from services.files.browse.indexing import Indexing
from services.files.browse.reading import Reading
from services.files.core import Core
from services.files.query.entries import SELECTED, Select, entry_of, fitting, known
from services.files.sets import sets, sums
from services.files.sets.resources import SetSearch, first_entries, sum_of
from services.files.store.rows import Row, fetch_all, fetch_one, fetch_value
from services.runtime.handlers import Context, handles

SET_COLUMNS = "id, name, description, created, updated"


class Uris:
    """The operations of `proto.ops.files.uris`."""

    def __init__(self, core: Core, indexing: Indexing, reading: Reading, searches: SetSearch) -> None:
        self._core = core
        self._indexing = indexing
        self._reading = reading
        self._searches = searches

    @handles(Nodes)
    async def nodes(self, params: Nodes, ctx: Context) -> NodePage:
        def query(db: apsw.Connection) -> NodePage:
            # In this order the indexes deliver them, without a sort of all.
            rows = db.execute(
                "SELECT f.path || e.name, e.name, e.kind, e.size, e.disk, e.mtime, e.ctime FROM folder f"
                " JOIN entry e ON e.parent = f.id WHERE e.scanned > 0 ORDER BY f.path, e.name LIMIT ? OFFSET ?",
                (params.limit, params.offset),
            )
            total: int = fetch_value(db, "SELECT count(*) FROM entry WHERE scanned > 0")
            return _page(rows, total, params.offset, params.limit, "nodes")

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

    @handles(Sets)
    async def all_sets(self, params: Sets, ctx: Context) -> SetSummaries:
        def query(db: apsw.Connection) -> SetSummaries:
            rows = fetch_all(
                db, f"SELECT {SET_COLUMNS} FROM resource_set ORDER BY name LIMIT ? OFFSET ?",
                (params.limit, params.offset),
            )  # fmt: skip
            found, _ = fitting(_summary(db, row) for row in rows)
            total: int = fetch_value(db, "SELECT count(*) FROM resource_set")
            end = params.offset + len(found)
            more = end < total
            return SetSummaries(
                resource_sets=found, total=total, offset=params.offset, has_more=more,
                next=next_page("resource-sets", end, params.limit) if more else "",
            )  # fmt: skip

        return await self._core.database.read(query)

    @handles(OneSet)
    async def one_set(self, params: OneSet, ctx: Context) -> SetSummary:
        def query(db: apsw.Connection) -> SetSummary:
            row = fetch_one(db, f"SELECT {SET_COLUMNS} FROM resource_set WHERE id = ?", (sets.find(db, params.name),))
            assert row is not None
            return _summary(db, row)

        return await self._core.database.read(query)

    @handles(SetEntries)
    async def set_entries(self, params: SetEntries, ctx: Context) -> NodePage:
        def query(db: apsw.Connection) -> NodePage:
            id_ = sets.find(db, params.name)
            found = first_entries(db, id_, params.limit, params.offset)
            total, _ = sets.counts(db, id_)
            end = params.offset + len(found)
            uri = f"resource-sets/{urllib.parse.quote(params.name, safe='')}/entries"
            return NodePage(
                entries=found, total=total, offset=params.offset, has_more=end < total,
                next=next_page(uri, end, params.limit) if end < total else "",
            )  # fmt: skip

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
        metric = known(params.metric, SUMS, "metric")
        return await self._core.database.read(
            lambda db: sum_of(db, params.name, metric, include_children=True, depth=None)
        )

    async def _jobs(self, offset: int, limit: int, *statuses: str) -> JobList:
        found, total = await self._core.jobs.list(statuses, None, None, offset + limit)
        return JobList(jobs=fitting(found[offset:])[0], total=total)

    @handles(Jobs)
    async def all_jobs(self, params: Jobs, ctx: Context) -> JobList:
        return await self._jobs(params.offset, params.limit)

    @handles(PendingJobs)
    async def pending_jobs(self, params: PendingJobs, ctx: Context) -> JobList:
        return await self._jobs(params.offset, params.limit, "pending")

    @handles(RunningJobs)
    async def running_jobs(self, params: RunningJobs, ctx: Context) -> JobList:
        return await self._jobs(params.offset, params.limit, "running")

    @handles(CompletedJobs)
    async def completed_jobs(self, params: CompletedJobs, ctx: Context) -> JobList:
        return await self._jobs(params.offset, params.limit, "completed")

    @handles(FailedJobs)
    async def failed_jobs(self, params: FailedJobs, ctx: Context) -> JobList:
        return await self._jobs(params.offset, params.limit, "failed")

    @handles(CancelledJobs)
    async def cancelled_jobs(self, params: CancelledJobs, ctx: Context) -> JobList:
        return await self._jobs(params.offset, params.limit, "cancelled")

    @handles(OneJob)
    async def one_job(self, params: OneJob, ctx: Context) -> Job:
        return await self._indexing.job_progress(JobProgress(job_id=params.id), ctx)


def _page(rows: Iterable[Row], total: int, offset: int, limit: int, uri: str) -> NodePage:
    found, _ = fitting(map(entry_of, rows))
    end = offset + len(found)
    more = end < total
    return NodePage(
        entries=found, total=total, offset=offset, has_more=more, next=next_page(uri, end, limit) if more else ""
    )


def next_page(uri: str, offset: int, limit: int) -> str:
    """The URI that a page names as the one after it."""
    return f"synthesis://{uri}?offset={offset}&limit={limit}"


def _summary(db: apsw.Connection, row: Row) -> SetSummary:
    id_, name, description, created, updated = row
    entries, children = sets.counts(db, id_)
    return SetSummary(
        name=name, description=description, entry_count=entries, child_count=children,
        created_at=times.rfc3339(created), updated_at=times.rfc3339(updated),
    )  # fmt: skip


def _statistics(db: apsw.Connection, name: str) -> SetStatistics:
    start = sets.find(db, name)
    every = sets.with_children(db, start)
    own, children = sets.counts(db, start)
    select = Select((), every)
    ((oldest, newest),) = select.run(db, "min(n.mtime), max(n.mtime)")
    largest = next(iter(select.run(db, SELECTED, "ORDER BY n.size DESC, n.path LIMIT 1")), None)
    extensions = select.run(db, "n.extension, count(*)", "AND n.kind = 0 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20")
    metric = {each: sums.by_part(db, [every], each)[0] for each in SUMS}
    return SetStatistics(
        resource_set=name, entry_count=own, child_count=children,
        parent_count=len(sets.around(db, start, down=False, depth=1)), count=metric["count"], files=metric["files"],
        directories=metric["directories"], size=metric["size"], largest=None if largest is None else entry_of(largest),
        oldest=None if oldest is None else times.rfc3339(oldest),
        newest=None if newest is None else times.rfc3339(newest), extensions=dict(extensions),
    )  # fmt: skip
