"""Resources of `files`: entries, resource sets, jobs and plans at `synthesis://…` URIs, in JSON."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.mcp import ResourceResult
from proto.operation import Family, Params, Role
from proto.ops.completing import Completing
from proto.ops.pages import Page, Paged, PageLimit, resource
from proto.wire.front import SERVICE as FRONT
from services.files.operations.index import Job, JobId, JobList
from services.files.operations.plans import ExecutionRecord, PlanName
from services.files.operations.reading import InspectResult
from services.files.operations.resources import Children, Metric, Parents, SumResult
from services.files.operations.sets import ResourceSet
from services.files.operations.shared import FileEntry, SetName

completing = Family("files", role=Role.INTERNAL, surfaces=("files",), callers=(FRONT,))
SET_NAMES, PLAN_NAMES = "files_set_names", "files_plan_names"

NodePath = Annotated[str, Meta(max_length=32768, description="Absolute path without its first slash")]


class NodePage(Page, frozen=True, kw_only=True):
    """A page of entries."""

    entries: list[FileEntry]


@resource("files_nodes", "nodes", "nodes")
class Nodes(Paged, Params[NodePage], frozen=True, kw_only=True):
    """All entries of the index, directory by directory; page with `?offset=` and `?limit=`."""


@resource("files_node", "nodes/{+path}", "node", within_roots=True)
class NodeEntry(Params[InspectResult], frozen=True, kw_only=True):
    """One entry of the index: `synthesis://nodes` and its absolute path, percent-encoded."""

    path: NodePath = ""


@resource("files_node_metadata", "nodes/{+path}/metadata", "node-metadata", deadline_s=60, within_roots=True)
class NodeMetadata(Params[ResourceResult], frozen=True, kw_only=True):
    """Artefacts and metadata of a file, as `files_inspect` lists them; made now if missing. Below a directory, which
    has none, it is the entry of that name."""

    path: NodePath


@resource(
    "files_node_thumbnail", "nodes/{+path}/thumbnail", "node-thumbnail", mime_type="image/jpeg", deadline_s=60,
    within_roots=True,
)  # fmt: skip
class NodeThumbnail(Params[ResourceResult], frozen=True, kw_only=True):
    """The thumbnail of a file, a JPEG; made now if missing. Below a directory, which has none, it is the entry of that
    name."""

    path: NodePath


class SetSummaries(Page, frozen=True, kw_only=True):
    """A page of resource sets, by name."""

    resource_sets: list[ResourceSet]


@resource("files_sets", "resource-sets", "resource-sets")
class Sets(Paged, Params[SetSummaries], frozen=True, kw_only=True):
    """All resource sets."""

    limit: PageLimit = 1000


@resource("files_set", "resource-sets/{name}", "resource-set", completion=SET_NAMES)
class OneSet(Params[ResourceSet], frozen=True, kw_only=True):
    """A resource set by its name."""

    name: SetName


@resource("files_set_entries", "resource-sets/{name}/entries", "resource-set-entries", completion=SET_NAMES)
class SetEntries(Paged, Params[NodePage], frozen=True, kw_only=True):
    """The entries of a resource set itself, by path; page with `?offset=` and `?limit=`."""

    name: SetName


@resource("files_set_children", "resource-sets/{name}/children", "resource-set-children", completion=SET_NAMES)
class SetChildren(Params[Children], frozen=True, kw_only=True):
    """The sets directly below a resource set."""

    name: SetName


@resource("files_set_parents", "resource-sets/{name}/parents", "resource-set-parents", completion=SET_NAMES)
class SetParents(Params[Parents], frozen=True, kw_only=True):
    """The sets directly above a resource set."""

    name: SetName


class SetStatistics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set in numbers, with all sets below it; each entry counts once."""

    resource_set: str
    entry_count: Annotated[int, Meta(description="Entries of the set itself")]
    child_count: int
    parent_count: int
    count: Annotated[int, Meta(description="Entries of the set and all below it")]
    files: int
    directories: int
    size: Annotated[int, Meta(description="Bytes; files in a directory of the set count once")]
    largest: FileEntry | None = None
    oldest: Annotated[str | None, Meta(description="Least mtime, RFC 3339")] = None
    newest: Annotated[str | None, Meta(description="Greatest mtime, RFC 3339")] = None
    extensions: Annotated[dict[str, int], Meta(description="Files by extension, the 20 most frequent")] = {}


@resource("files_set_stats", "resource-sets/{name}/stats", "resource-set-stats", completion=SET_NAMES)
class SetStats(Params[SetStatistics], frozen=True, kw_only=True):
    """A resource set in numbers."""

    name: SetName


@resource("files_set_metric", "resource-sets/{name}/metrics/{metric}", "resource-set-metric", completion=SET_NAMES)
class SetMetric(Params[SumResult], frozen=True, kw_only=True):
    """A metric (size, count, files or directories) over a resource set and those below it."""

    name: SetName
    metric: Metric


@resource("files_jobs", "jobs", "jobs")
class Jobs(Paged, Params[JobList], frozen=True, kw_only=True):
    """All indexing jobs, newest first."""


@resource("files_jobs_pending", "jobs/pending", "jobs-pending")
class PendingJobs(Paged, Params[JobList], frozen=True, kw_only=True):
    """Waiting indexing jobs."""


@resource("files_jobs_running", "jobs/running", "jobs-running")
class RunningJobs(Paged, Params[JobList], frozen=True, kw_only=True):
    """Running indexing jobs."""


@resource("files_jobs_completed", "jobs/completed", "jobs-completed")
class CompletedJobs(Paged, Params[JobList], frozen=True, kw_only=True):
    """Completed indexing jobs."""


@resource("files_jobs_failed", "jobs/failed", "jobs-failed")
class FailedJobs(Paged, Params[JobList], frozen=True, kw_only=True):
    """Failed indexing jobs, with the reason."""


@resource("files_jobs_cancelled", "jobs/cancelled", "jobs-cancelled", is_own=True)
class CancelledJobs(Paged, Params[JobList], frozen=True, kw_only=True):
    """Cancelled indexing jobs."""


@resource("files_job", "jobs/{id}", "job")
class OneJob(Params[Job], frozen=True, kw_only=True):
    """An indexing job by its number."""

    id: JobId


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan."""

    name: str
    status: str
    definition: Annotated[dict[str, Any], Meta(description="As given to plans_create")]
    created_at: Annotated[str, Meta(description="RFC 3339")]
    updated_at: Annotated[str, Meta(description="RFC 3339")]


class PlanRecords(Page, frozen=True, kw_only=True):
    """A page of plans, by name."""

    plans: list[PlanRecord]


@resource("files_plans", "plans", "plans")
class PlansRead(Paged, Params[PlanRecords], frozen=True, kw_only=True):
    """All plans."""


@resource("files_plan", "plans/{name}", "plan", completion=PLAN_NAMES)
class PlanRead(Params[PlanRecord], frozen=True, kw_only=True):
    """A plan by its name."""

    name: PlanName


class ExecutionRecords(Page, frozen=True, kw_only=True):
    """A page of executions, latest first."""

    executions: list[ExecutionRecord]


@resource("files_plan_executions", "plan-executions", "plan-executions")
class ExecutionsRead(Paged, Params[ExecutionRecords], frozen=True, kw_only=True):
    """All executions of plans, latest first."""


@resource("files_executions_of_plan", "plans/{name}/executions", "plan-execution-history", completion=PLAN_NAMES)
class ExecutionsOfPlan(Paged, Params[ExecutionRecords], frozen=True, kw_only=True):
    """The executions of a plan, latest first."""

    name: PlanName


@completing.read(SET_NAMES, deadline_s=5)
class SetNames(Completing, Params[list[str]], frozen=True, kw_only=True):
    """Complete the argument `name` with resource sets that contain the typed text."""


@completing.read(PLAN_NAMES, deadline_s=5)
class PlanNames(Completing, Params[list[str]], frozen=True, kw_only=True):
    """Complete the argument `name` with plans that contain the typed text."""
