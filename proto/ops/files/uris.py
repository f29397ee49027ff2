"""Resources of `files`: entries, resource sets and jobs as `synthesis://…` URIs, in JSON.

Lists are read page by page: `?offset=100&limit=50` may follow their URIs.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.mcp import ResourceResult
from proto.operation import Access, Params, Resource, Role, operation
from proto.ops.files.index import Job, JobId, JobList
from proto.ops.files.reading import InspectResult
from proto.ops.files.resources import Children, Parents, SumResult
from proto.ops.files.shared import SERVICE, SURFACES, FileEntry, Offset

JSON = "application/json"

PAGED = ("offset", "limit")

NodePath = Annotated[str, Meta(max_length=32768, description="Absolute path without its first slash")]

PageLimit = Annotated[int, Meta(ge=1, le=10_000, description="Items to answer at most")]


def resource(uri: str, name: str, *, paged: bool = False, mime_type: str = JSON) -> dict[str, Any]:
    """What `@operation` is told of a resource at `synthesis://` and `uri`; `paged` ones take `PAGED`."""
    return {
        "service": SERVICE, "access": Access.READ, "idempotent": True, "deadline_s": 30, "role": Role.RESOURCE,
        "surfaces": SURFACES,
        "resource": Resource(
            uri=f"synthesis://{uri}", name=name, mime_type=mime_type, query=PAGED if paged else ()
        ),
    }  # fmt: skip


class NodePage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of entries."""

    entries: list[FileEntry]
    total: int
    offset: int
    has_more: bool = False
    next: Annotated[str, Meta(description="The URI of the next page")] = ""


@operation("files_nodes", **resource("nodes", "nodes", paged=True))
class Nodes(Params[NodePage], frozen=True, kw_only=True):
    """All entries of the index, directory by directory; `?offset=` and `?limit=` lead through them."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_node", **resource("nodes/{+path}", "node"))
class Node(Params[InspectResult], frozen=True, kw_only=True):
    """One entry of the index: `synthesis://nodes` and its absolute path, percent-encoded."""

    path: NodePath = ""


@operation(
    "files_node_metadata",
    **resource("nodes/{+path}/metadata", "node-metadata") | {"deadline_s": 60},
)
class NodeMetadata(Params[ResourceResult], frozen=True, kw_only=True):
    """What was made from a file and is said of its content, as `inspect` lists it; made now where it is not there yet.
    Below a directory, of which there is none, it is the entry of that name."""

    path: NodePath


@operation(
    "files_node_thumbnail",
    **resource("nodes/{+path}/thumbnail", "node-thumbnail", mime_type="image/jpeg") | {"deadline_s": 60},
)
class NodeThumbnail(Params[ResourceResult], frozen=True, kw_only=True):
    """The thumbnail of a file, a JPEG; made now where it is not there yet. Below a directory, of which there is none,
    it is the entry of that name."""

    path: NodePath


class SetSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set."""

    name: str
    description: str
    entry_count: int
    child_count: int
    created_at: str
    updated_at: str


class SetSummaries(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of resource sets, by name."""

    resource_sets: list[SetSummary]
    total: int
    offset: int
    has_more: bool = False
    next: Annotated[str, Meta(description="The URI of the next page")] = ""


@operation("files_sets", **resource("resource-sets", "resource-sets", paged=True))
class Sets(Params[SetSummaries], frozen=True, kw_only=True):
    """All resource sets."""

    offset: Offset = 0
    limit: PageLimit = 1000


SetNameOfUri = Annotated[str, Meta(min_length=1, max_length=1024, description="Name of a resource set")]


@operation("files_set", **resource("resource-sets/{name}", "resource-set"))
class OneSet(Params[SetSummary], frozen=True, kw_only=True):
    """A resource set by its name."""

    name: SetNameOfUri


@operation("files_set_entries", **resource("resource-sets/{name}/entries", "resource-set-entries", paged=True))
class SetEntries(Params[NodePage], frozen=True, kw_only=True):
    """The entries of a resource set itself, by path; `?offset=` and `?limit=` lead through them."""

    name: SetNameOfUri
    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_set_children", **resource("resource-sets/{name}/children", "resource-set-children"))
class SetChildren(Params[Children], frozen=True, kw_only=True):
    """The sets directly below a resource set."""

    name: SetNameOfUri


@operation("files_set_parents", **resource("resource-sets/{name}/parents", "resource-set-parents"))
class SetParents(Params[Parents], frozen=True, kw_only=True):
    """The sets directly above a resource set."""

    name: SetNameOfUri


class SetStatistics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set in numbers, with all sets below it; each entry counts once."""

    resource_set: str
    entry_count: Annotated[int, Meta(description="Entries of the set itself")]
    child_count: int
    parent_count: int
    count: Annotated[int, Meta(description="Entries of the set and all below it")]
    files: int
    directories: int
    size: Annotated[int, Meta(description="Bytes; what lies in a directory of the set counts once")]
    largest: FileEntry | None = None
    oldest: Annotated[str | None, Meta(description="Least mtime, RFC 3339")] = None
    newest: Annotated[str | None, Meta(description="Greatest mtime, RFC 3339")] = None
    extensions: Annotated[dict[str, int], Meta(description="Files by extension, the 20 most frequent")] = {}


@operation("files_set_stats", **resource("resource-sets/{name}/stats", "resource-set-stats"))
class SetStats(Params[SetStatistics], frozen=True, kw_only=True):
    """A resource set in numbers."""

    name: SetNameOfUri


@operation("files_set_metric", **resource("resource-sets/{name}/metrics/{metric}", "resource-set-metric"))
class SetMetric(Params[SumResult], frozen=True, kw_only=True):
    """A metric (size, count, files or directories) over a resource set and those below it."""

    name: SetNameOfUri
    metric: str


@operation("files_jobs", **resource("jobs", "jobs", paged=True))
class Jobs(Params[JobList], frozen=True, kw_only=True):
    """All indexing jobs, newest first."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_jobs_pending", **resource("jobs/pending", "jobs-pending", paged=True))
class PendingJobs(Params[JobList], frozen=True, kw_only=True):
    """Indexing jobs that wait."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_jobs_running", **resource("jobs/running", "jobs-running", paged=True))
class RunningJobs(Params[JobList], frozen=True, kw_only=True):
    """Indexing jobs that run."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_jobs_completed", **resource("jobs/completed", "jobs-completed", paged=True))
class CompletedJobs(Params[JobList], frozen=True, kw_only=True):
    """Indexing jobs that came to their end."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_jobs_failed", **resource("jobs/failed", "jobs-failed", paged=True))
class FailedJobs(Params[JobList], frozen=True, kw_only=True):
    """Indexing jobs that failed, with the reason."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_jobs_cancelled", **resource("jobs/cancelled", "jobs-cancelled", paged=True))
class CancelledJobs(Params[JobList], frozen=True, kw_only=True):
    """Indexing jobs that were cancelled."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_job", **resource("jobs/{id}", "job"))
class OneJob(Params[Job], frozen=True, kw_only=True):
    """An indexing job by its number."""

    id: JobId
