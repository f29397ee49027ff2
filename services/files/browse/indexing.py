"""`index`, and the tools that report on its jobs."""

from __future__ import annotations

import time

import msgspec
import trio
from msgspec import structs

from proto.errors import OperationError
from services.files import paths
from services.files.core import Core
from services.files.index.jobs import ACTIVE
from services.files.index.listing import look
from services.files.index.scan import Counts
from services.files.index.tree import skip_reason, totals
from services.files.operations import index as ops
from services.files.query.entries import MAX_BYTES, fitting
from services.files.store import schema
from services.runtime import keyed
from services.runtime.handlers import Context, handles


class IndexTools:
    """The operations of `services.files.operations.index`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @handles(ops.Index)
    async def index(self, params: ops.Index, ctx: Context) -> ops.IndexResult:
        began = time.monotonic()
        asked = self._core.roots.clean(params.root, "root")
        root = await trio.to_thread.run_sync(self._core.roots.real, asked, "root")
        rows = schema.ALL if params.no_ignore else schema.RULED
        if not params.force and params.max_age:
            age, now = params.max_age, time.time_ns()
            reason, found = await self._core.database.read(
                lambda db: (skip_reason(db, root, age, now, rows), totals(db, root))
            )
            if reason:
                return ops.IndexResult(
                    root=root, status="completed", files=found.files, directories=found.directories,
                    total_size=found.size, duration_ms=int((time.monotonic() - began) * 1000), skipped=True,
                    skip_reason=reason,
                )  # fmt: skip
        if not params.async_ and await trio.to_thread.run_sync(look, root) is None:
            # This removes it from the index, if its parent directory exists.
            await self._core.jobs.scan(root)
            raise OperationError(await trio.to_thread.run_sync(self._core.roots.missing, root))
        job = await self._core.jobs.start(
            root, background=params.async_, force=params.force, max_age_s=params.max_age, rows=rows
        )
        if params.async_:
            return ops.IndexResult(root=root, status="pending", job_id=job.id, status_url=f"synthesis://jobs/{job.id}")

        def on_progress(counts: Counts) -> None:
            ctx.progress(counts.progress, 100, f"{counts.files + counts.directories} entries")

        await self._core.jobs.wait(job, on_progress)
        ended = await self._core.jobs.get(job.id)
        if ended.status == "failed":
            raise OperationError(f"could not index {paths.shown(root)}: {ended.error}")
        return structs.replace(
            msgspec.convert(ended, ops.IndexResult, from_attributes=True),
            job_id=None, status_url=None, duration_ms=int((time.monotonic() - began) * 1000),
            ignored=self._core.settings.ignore,
        )  # fmt: skip

    @handles(ops.JobProgress)
    async def job_progress(self, params: ops.JobProgress, ctx: Context) -> ops.Job:
        return await self._core.jobs.get(int(params.job_id))

    @handles(ops.ListJobs)
    async def list_jobs(self, params: ops.ListJobs, ctx: Context) -> ops.JobList:
        statuses: tuple[str, ...] = (params.status,) if params.status is not None else ()
        if params.active_only:
            statuses = tuple(status for status in ACTIVE if not statuses or status in statuses) or ("none",)
        jobs, total = await self._core.jobs.list(statuses, params.min_progress, params.max_progress, params.limit)
        shown, cut = fitting(jobs)
        summary = (
            f"{total} jobs match; truncated to the {len(shown)} newest to fit into {MAX_BYTES} bytes. Filter by"
            " status or progress, or page through synthesis://jobs."
        )
        return ops.JobList(jobs=shown, total=total, summary=summary if cut else None)

    @handles(ops.CancelJob, resumes=True)
    async def cancel_job(self, params: ops.CancelJob, ctx: Context) -> ops.CancelledJob:
        id_ = int(params.job_id)
        if self._core.env.keys is not None:
            await self._core.env.keys.begin()
        call = keyed.serving()
        is_done = call is not None and call.is_repeated and (await self._core.jobs.get(id_)).status == "cancelled"
        if not is_done:
            await self._core.jobs.cancel(id_)
        return ops.CancelledJob(job_id=id_, status="cancelled", message=f"job {id_} was cancelled")
