"""Operations of `files`: plans, which find entries, filter them and act on each, once or continuously.

A plan has sources (where entries come from), conditions (which entries it applies to) and outcomes (actions on them).
Each run is recorded as an execution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from proto.later import LaterCall
from proto.operation import OPERATOR, Family, Params, Role
from services.files.operations.classifier import Classifier
from services.files.operations.shared import Deleted, Description, Filter, Instant, Path, SetName, Whole, tool

carried = Family("files", role=Role.INTERNAL, callers=(OPERATOR,))

PlanName = Annotated[str, Meta(min_length=1, max_length=1024, description="Name of a plan")]

Mode = Literal["oneshot", "continuous"]
PlanStatus = Literal["active", "paused", "disabled"]
SourceType = Literal["filesystem.index", "filesystem.watch", "query", "resource-set"]
UpdateMode = Literal["replace", "append", "merge"]
MediaType = Literal["image", "video", "audio", "document"]


class SourceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Configuration of a source."""

    path: Annotated[Path | None, Meta(description="For filesystem sources: path to scan or watch")] = None
    recursive: Annotated[bool, Meta(description="For filesystem sources: include folders below it")] = True
    debounce_ms: Annotated[
        int, Meta(ge=0, le=3_600_000, description="While watching: combine changes this close together")
    ] = 500
    query: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | Filter | None,
        Meta(
            description="For query sources: the name of a saved query, or a query",
            extra_json_schema={"x-form-of": "queries_create, or a saved one's name"},
        ),
    ] = None
    resource_set: Annotated[SetName | None, Meta(description="For resource-set sources: its name")] = None
    name: Annotated[str, Meta(min_length=1, max_length=1024, description="The same as `query` or `resource_set`")] = ""
    include_children: Annotated[bool, Meta(description="For resource-set sources: include the sets below it")] = True
    include_directories: Annotated[bool, Meta(description="For filesystem sources: include directories")] = False


class PlanSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where entries come from."""

    type: Annotated[
        SourceType,
        Meta(
            description="filesystem.index scans a path and filesystem.watch follows it; query and resource-set read the"
            " index. In a continuous plan both filesystem sources are followed."
        ),
    ]
    name: Annotated[str, Meta(max_length=1024, description="Its name in errors")] = ""
    target_set: Annotated[SetName | None, Meta(description="Resource set to add all its entries to")] = None
    update_mode: Annotated[
        UpdateMode,
        Meta(
            description="For entries already in `target_set`: `replace` removes those that this run does not"
            " find, `append` and `merge` keep them"
        ),
    ] = "append"
    config: SourceConfig = SourceConfig()


class _Tagged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """A condition or an outcome, told apart by `type`."""


class _Group(_Tagged, frozen=True, kw_only=True):
    conditions: Annotated[list[Condition], Meta(max_length=1000, description="Its conditions")]


class All(_Group, frozen=True, kw_only=True, tag="all"):
    """Met if all of them are."""


class AnyOf(_Group, frozen=True, kw_only=True, tag="any"):
    """Met if at least one of them is."""


class NoneOf(_Group, frozen=True, kw_only=True, tag="none"):
    """Met if not one of them is."""


class MediaCondition(_Tagged, frozen=True, kw_only=True, tag="media_type"):
    """Files of a kind, by their extension."""

    mediaType: MediaType


class SizeCondition(_Tagged, frozen=True, kw_only=True, omit_defaults=True, tag="size"):
    """Entries of a size, both ends inclusive."""

    minSize: Annotated[Whole | None, Meta(description="Bytes")] = None
    maxSize: Annotated[Whole | None, Meta(description="Bytes")] = None


class TimeCondition(_Tagged, frozen=True, kw_only=True, omit_defaults=True, tag="time"):
    """Entries of a time, both ends inclusive: RFC 3339, a date, or Unix seconds."""

    minMtime: Instant | None = None
    maxMtime: Instant | None = None
    minCtime: Instant | None = None
    maxCtime: Instant | None = None


_Part = Annotated[str, Meta(max_length=8192)]


class PathCondition(_Tagged, frozen=True, kw_only=True, omit_defaults=True, tag="path"):
    """Entries whose path has all of these, in either case."""

    pathContains: _Part | None = None
    pathPrefix: _Part | None = None
    pathSuffix: _Part | None = None
    pathPattern: Annotated[
        _Part | None,
        Meta(
            description="A glob of the whole path (`*` crosses `/`), or a regular expression (RE2) if it has signs"
            " that only those have, as `\\`, `^`, `$`, `+`, `|`, `(` or `.*`"
        ),
    ] = None


Condition: TypeAlias = All | AnyOf | NoneOf | MediaCondition | SizeCondition | TimeCondition | PathCondition


class SelectionOutcome(_Tagged, frozen=True, kw_only=True, tag="selection_set"):
    """Add entries to a resource set, creating it if missing, or remove them."""

    selectionSetName: SetName
    operation: Literal["add", "remove"] = "add"


class ClassifierOutcome(_Tagged, frozen=True, kw_only=True, tag="classifier"):
    """Make thumbnails and metadata of files, one job each."""

    operations: Annotated[list[Classifier], Meta(max_length=100, description="Which; default all")] = []


class ToolOutcome(_Tagged, frozen=True, kw_only=True, tag="tool"):
    """Call an operation for each entry, with the rights of the client who set this outcome."""

    tool: Annotated[str, Meta(min_length=1, max_length=200, description="Name of the operation")]
    arguments: Annotated[
        dict[str, Any],
        Meta(
            description="Its parameters. {{entry.path}} and {{entry.name}}, parent, kind, extension, size, mtime and"
            " ctime stand for what the entry has"
        ),
    ] = {}


class ChainedOutcome(_Tagged, frozen=True, kw_only=True, tag="chained"):
    """Several outcomes in sequence."""

    outcomes: Annotated[list[Outcome], Meta(max_length=1000)]
    stopOnError: Annotated[bool, Meta(description="Skip the rest for an entry after a failure")] = False


def calls_of(outcomes: Iterable[Outcome]) -> Iterator[LaterCall]:
    """Yield the operations that outcomes call for each entry."""
    for outcome in outcomes:
        if isinstance(outcome, ToolOutcome):
            yield LaterCall(outcome.tool, outcome.arguments)
        elif isinstance(outcome, ChainedOutcome):
            yield from calls_of(outcome.outcomes)


Outcome: TypeAlias = SelectionOutcome | ClassifierOutcome | ToolOutcome | ChainedOutcome

Sources = Annotated[list[PlanSource], Meta(min_length=1, max_length=100, description="Where entries come from")]
Outcomes = Annotated[list[Outcome], Meta(max_length=100, description="Actions on each")]
Conditions = Annotated[Condition, Meta(description="Which entries it applies to; default all")]


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plan's definition."""

    name: str
    description: str
    mode: Mode
    status: PlanStatus
    sources: list[PlanSource]
    outcomes: list[Outcome]
    created_at: Annotated[str, Meta(description="RFC 3339")]
    updated_at: Annotated[str, Meta(description="RFC 3339")]
    execution_count: int
    conditions: Condition | None = None
    last_execution_at: Annotated[str | None, Meta(description="Start of the last run, RFC 3339")] = None


@tool.write("plans_create", idempotent=False, deadline_s=30)
class PlanCreate(Params[Plan], frozen=True, kw_only=True):
    """Create a plan, a rule that acts on files automatically: entries from `sources` that meet `conditions` (image,
    video, size, time, path) get `outcomes` (into a group, any tool), once or for each new file. In a tool's arguments
    {{entry.path}}, {{entry.name}} and such stand for the entry's. plans_execute begins it. Only to find:
    files_find."""

    name: PlanName
    sources: Sources
    description: Description = ""
    mode: Annotated[Mode, Meta(description="continuous: on each later change")] = "oneshot"
    conditions: Conditions | None = None
    outcomes: Outcomes = []

    def later_calls(self) -> Iterable[LaterCall]:
        return calls_of(self.outcomes)

    def later_source(self) -> str:
        return f"plan {self.name}"


ExecutionStatus = Literal["running", "completed", "failed", "cancelled"]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The execution that was started."""

    execution_id: int
    plan_name: str
    status: ExecutionStatus
    started_at: Annotated[int, Meta(description="Unix seconds")]


@tool.destroy("plans_execute", idempotent=False, deadline_s=30)
class PlanExecute(Params[Started], frozen=True, kw_only=True):
    """Run a plan now; returns at once, plans_get shows progress. Its tools are
    called with the rights of the client who set its outcomes."""

    name: PlanName


class Plans(msgspec.Struct, frozen=True, kw_only=True):
    """All plans, by name."""

    plans: list[Plan]
    total: int


@tool.read("plans_list", deadline_s=30)
class PlanList(Params[Plans], frozen=True, kw_only=True):
    """List all plans (rules for files)."""


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a plan, in numbers."""

    execution_id: int
    plan_name: str
    status: ExecutionStatus
    started_at: Annotated[int, Meta(description="Unix seconds")]
    entries_processed: Annotated[int, Meta(description="Entries of its sources examined")]
    entries_matched: Annotated[int, Meta(description="Of those, entries that met the conditions")]
    outcomes_applied: Annotated[int, Meta(description="Outcomes done, counted per entry")]
    outcomes_failed: int
    completed_at: Annotated[int | None, Meta(description="Unix seconds")] = None
    error: Annotated[str | None, Meta(description="Why it ended, or the first failed outcome and why")] = None


class Execution(ExecutionRecord, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a plan."""

    mode: Mode
    duration_ms: int


class PlanDetails(Plan, frozen=True, kw_only=True, omit_defaults=True):
    """A plan and its executions, latest first."""

    executions: list[Execution] | None = None


@tool.read("plans_get", deadline_s=30)
class PlanGet(Params[PlanDetails], frozen=True, kw_only=True):
    """Read a plan's definition and how its runs went."""

    name: PlanName
    include_executions: Annotated[bool, Meta(description="Return its executions too")] = True
    execution_limit: Annotated[int, Meta(ge=1, le=10_000, description="Executions at most")] = 10


_AS_CREATED = Meta(extra_json_schema={"x-form-of": "plans_create"})


@tool.destroy("plans_update", idempotent=True, deadline_s=60)
class PlanUpdate(Params[Plan], frozen=True, kw_only=True):
    """Change a plan: given fields replace the old ones, the rest stays. `status` pauses, disables or resumes it. Forms
    as in plans_create."""

    name: PlanName
    description: Description | None = None
    mode: Mode | None = None
    status: Annotated[PlanStatus | None, Meta(description="active, paused or disabled")] = None
    sources: Annotated[Sources | None, _AS_CREATED] = None
    conditions: Annotated[Conditions | None, _AS_CREATED] = None
    outcomes: Annotated[Outcomes | None, _AS_CREATED] = None
    clear_conditions: Annotated[bool, Meta(description="Remove conditions: applies to all entries")] = False

    def later_calls(self) -> Iterable[LaterCall]:
        return calls_of(self.outcomes or ())

    def later_source(self) -> str:
        return f"plan {self.name}"


@tool.destroy("plans_delete", idempotent=False, deadline_s=60)
class PlanDelete(Params[Deleted], frozen=True, kw_only=True):
    """Delete a plan with the record of its runs. Use plans_update to pause it."""

    name: PlanName


class CarriedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finished run of a plan, as in `linckia export`; times in ns."""

    plan: Annotated[str, Meta(min_length=1, max_length=1024)]
    definition: Annotated[dict[str, Any], Meta(description="The plan at that time")]
    status: Literal["completed", "failed", "cancelled"]
    started: int
    finished: int
    processed: int
    matched: int
    applied: int
    failed: int
    error: str | None = None


class CarriedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, oldest first, empty at the end; `next` is the value of `after` for the next page."""

    runs: list[CarriedRun]
    next: int


@carried.read("files_export_runs", deadline_s=60)
class FilesExportRuns(Params[CarriedRuns], frozen=True, kw_only=True):
    """Read the finished runs of plans."""

    after: Annotated[int, Meta(ge=0)] = 0


class RunsImported(msgspec.Struct, frozen=True, kw_only=True):
    """How many were new."""

    changed: int


@carried.write("files_import_runs", idempotent=True, deadline_s=60)
class FilesImportRuns(Params[RunsImported], frozen=True, kw_only=True):
    """Add runs to the record of existing plans; a run of the same plan and start time is the same run."""

    runs: Annotated[list[CarriedRun], Meta(max_length=1000)]
