"""Resources of `files`: plans and their executions as `synthesis://…` URIs, in JSON, page by page."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import Params, operation
from proto.ops.files.shared import Offset
from proto.ops.files.uris import PageLimit, resource

PlanNameOfUri = Annotated[str, Meta(min_length=1, max_length=1024, description="Name of a plan")]


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plan."""

    name: str
    status: str
    definition: Annotated[dict[str, Any], Meta(description="As plan-create took it")]
    created_at: Annotated[str, Meta(description="RFC 3339")]
    updated_at: Annotated[str, Meta(description="RFC 3339")]


class PlanRecords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of plans, by name."""

    plans: list[PlanRecord]
    total: int
    offset: int
    has_more: bool = False
    next: Annotated[str, Meta(description="The URI of the next page")] = ""


@operation("files_plans", **resource("plans", "plans", paged=True))
class PlansRead(Params[PlanRecords], frozen=True, kw_only=True):
    """All plans."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_plan", **resource("plans/{name}", "plan"))
class PlanRead(Params[PlanRecord], frozen=True, kw_only=True):
    """A plan by its name."""

    name: PlanNameOfUri


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a plan."""

    execution_id: int
    plan_name: str
    status: str
    started_at: Annotated[int, Meta(description="Unix seconds")]
    entries_processed: int
    entries_matched: int
    outcomes_applied: int
    outcomes_failed: int
    completed_at: Annotated[int | None, Meta(description="Unix seconds")] = None
    error: str | None = None


class ExecutionRecords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of executions, latest first."""

    executions: list[ExecutionRecord]
    total: int
    offset: int
    has_more: bool = False
    next: Annotated[str, Meta(description="The URI of the next page")] = ""


@operation("files_plan_executions", **resource("plan-executions", "plan-executions", paged=True))
class ExecutionsRead(Params[ExecutionRecords], frozen=True, kw_only=True):
    """All executions of plans, latest first."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("files_executions_of_plan", **resource("plans/{name}/executions", "plan-execution-history", paged=True))
class ExecutionsOfPlan(Params[ExecutionRecords], frozen=True, kw_only=True):
    """The executions of a plan, latest first."""

    name: PlanNameOfUri
    offset: Offset = 0
    limit: PageLimit = 100
