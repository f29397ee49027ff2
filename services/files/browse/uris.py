"""What is read at `synthesis://…`: the same as the tools answer, page by page."""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import apsw
import msgspec

from proto.content import BlobContents, ResourceResult, TextContents
from proto.operation import Params, operation_of
from proto.ops.files_index import Job, JobList, JobProgress
from proto.ops.files_reading import Inspect, InspectResult
from proto.ops.files_resources import SUMS, Children, Parents, ResourceChildren, ResourceParent, SumResult
from proto.ops.files_uris import (
    JOBS_OF,
    JSON,
    Node,
    NodeMetadata,
    NodePage,
    Nodes,
    NodeThumbnail,
    OneJob,
    OneSet,
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
from services.files.core import Core
from services.files.query.entries import SELECTED, Select, entry_of, fitting, known
from services.files.sets import sets, sums
from services.files.sets.resources import first_entries, sum_of
from services.files.store.rows import Row, fetch_all, fetch_one, fetch_value
from services.runtime.handlers import Context, Handlers

R = TypeVar("R")

SET_COLUMNS = "id, name, description, created, updated"


def add_uris(handlers: Handlers, core: Core) -> None:
    """The operations of `proto.ops.files_uris`; those of the tools must be there."""

    async def as_tool(params: Params[R], ctx: Context) -> R:
        _, handler = handlers.by_name[operation_of(params).name]
        answer: R = await handler(params, ctx)  # type: ignore[assignment]  # of the operation's own result type
        return answer

    @handlers.handle(Nodes)
    async def nodes(params: Nodes, ctx: Context) -> NodePage:
        def query(db: apsw.Connection) -> NodePage:
            # In this order the indexes deliver them, without a sort of all.
            rows = db.execute(
                "SELECT f.path || e.name, e.name, e.kind, e.size, e.disk, e.mtime, e.ctime FROM folder f"
                " JOIN entry e ON e.parent = f.id WHERE e.scanned > 0 ORDER BY f.path, e.name LIMIT ? OFFSET ?",
                (params.limit, params.offset),
            )
            total: int = fetch_value(db, "SELECT count(*) FROM entry WHERE scanned > 0")
            return _page(rows, total, params.offset, params.limit, "nodes")

        return await core.database.read(query)

    @handlers.handle(Node)
    async def node(params: Node, ctx: Context) -> InspectResult:
        return await as_tool(Inspect(path=f"/{params.path}"), ctx)

    async def of_file(
        path: str, name: str, mime_type: str, ctx: Context, made: Callable[[str], Awaitable[bytes]]
    ) -> ResourceResult:
        """What is made of a file; what is called `name` below a directory is an entry like any other."""
        found = await as_tool(Inspect(path=f"/{path}"), ctx)
        uri = f"{found.resource_uri}/{name}"
        if found.kind == "directory":
            entry = await as_tool(Inspect(path=f"/{path}/{name}"), ctx)
            text = msgspec.json.encode(entry).decode()
            return ResourceResult(contents=[TextContents(uri=uri, text=text, mime_type=JSON)])
        data = await made(found.path)
        if mime_type == JSON:
            return ResourceResult(contents=[TextContents(uri=uri, text=data.decode(), mime_type=JSON)])
        return ResourceResult(contents=[BlobContents(uri=uri, blob=data, mime_type=mime_type)])

    @handlers.handle(NodeMetadata)
    async def node_metadata(params: NodeMetadata, ctx: Context) -> ResourceResult:
        async def made(path: str) -> bytes:
            found = await media.artifacts(ctx, path)
            return msgspec.json.encode({"path": path, "metadataCount": len(found), "metadata": found})

        return await of_file(params.path, "metadata", JSON, ctx, made)

    @handlers.handle(NodeThumbnail)
    async def node_thumbnail(params: NodeThumbnail, ctx: Context) -> ResourceResult:
        return await of_file(params.path, "thumbnail", "image/jpeg", ctx, lambda path: media.thumbnail(ctx, path))

    @handlers.handle(Sets)
    async def all_sets(params: Sets, ctx: Context) -> SetSummaries:
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

        return await core.database.read(query)

    @handlers.handle(OneSet)
    async def one_set(params: OneSet, ctx: Context) -> SetSummary:
        def query(db: apsw.Connection) -> SetSummary:
            row = fetch_one(db, f"SELECT {SET_COLUMNS} FROM resource_set WHERE id = ?", (sets.find(db, params.name),))
            assert row is not None
            return _summary(db, row)

        return await core.database.read(query)

    @handlers.handle(SetEntries)
    async def set_entries(params: SetEntries, ctx: Context) -> NodePage:
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

        return await core.database.read(query)

    @handlers.handle(SetChildren)
    async def set_children(params: SetChildren, ctx: Context) -> Children:
        return await as_tool(ResourceChildren(name=params.name), ctx)

    @handlers.handle(SetParents)
    async def set_parents(params: SetParents, ctx: Context) -> Parents:
        return await as_tool(ResourceParent(name=params.name), ctx)

    @handlers.handle(SetStats)
    async def set_stats(params: SetStats, ctx: Context) -> SetStatistics:
        return await core.database.read(lambda db: _statistics(db, params.name))

    @handlers.handle(SetMetric)
    async def set_metric(params: SetMetric, ctx: Context) -> SumResult:
        metric = known(params.metric, SUMS, "metric")
        return await core.database.read(lambda db: sum_of(db, params.name, metric, include_children=True, depth=None))

    for listed, statuses in JOBS_OF:
        handlers.handle(listed)(_jobs(core, statuses))

    @handlers.handle(OneJob)
    async def one_job(params: OneJob, ctx: Context) -> Job:
        return await as_tool(JobProgress(job_id=params.id), ctx)


def _jobs(core: Core, statuses: tuple[str, ...]) -> Callable[[Any, Context], Awaitable[JobList]]:
    async def jobs(params: Any, ctx: Context) -> JobList:
        found, total = await core.jobs.list(statuses, None, None, params.offset + params.limit)
        return JobList(jobs=fitting(found[params.offset :])[0], total=total)

    return jobs


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
