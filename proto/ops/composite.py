"""Operations that consist of others: `query` reads in steps, `execute` changes in order, `session` frames the work.

They are answered by the kernel's gateway, which calls the operations that the steps name.  What a step may be depends
on the surface: on `documents` it is an operation on documents, on `all` and `compact` any that a client may call.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from proto.mcp import Content
from proto.operation import Family, Params, Role

SERVICE = "kernel"

step = Family(SERVICE, role=Role.STEP, surfaces=("documents",))

SURFACES = ("documents", "compact")

MAX_STEPS = 100
MAX_OPERATIONS = 1000

tool = Family(SERVICE, surfaces=SURFACES, both_spellings=True)


_OP = {"type": "string"}
_PARAMS = {"type": "object"}

Step: TypeAlias = Annotated[
    dict[str, Any], Meta(extra_json_schema={"properties": {"op": _OP, "params": _PARAMS}, "required": ["op"]})
]
Change: TypeAlias = Annotated[
    dict[str, Any], Meta(extra_json_schema={"properties": {"op": _OP, "params": _PARAMS}, "required": ["op", "params"]})
]


@tool.read("query", deadline_s=3600, title="Read in steps")
class Query(Params[Content], frozen=True, kw_only=True):
    """Read. One step answers its result; several answer {steps: [{stepIndex, op, result, isError}], totalSteps,
    completedSteps} and end at the first that fails. A string param that starts with $prev is the last step's result
    or part of it: $prev.results[0].hash."""

    steps: Annotated[list[Step], Meta(min_length=1, max_length=MAX_STEPS, description="Ops to run, in order")]


@tool.destroy("execute", idempotent=False, deadline_s=24 * 3600, title="Change in order", open_world=True)
class Execute(Params[Content], frozen=True, kw_only=True):
    """Change what is stored: all operations are checked, then done in order up to the first that fails, or
    with continueOnError to the last. Answers {results: [{op, success, …, error}], totalOps, succeeded, failed}."""

    operations: Annotated[
        list[Change], Meta(min_length=1, max_length=MAX_OPERATIONS, description="Ops to do, in order")
    ]
    continueOnError: Annotated[bool, Meta(description="Go on after one that fails")] = False


@tool.write("session", idempotent=False, deadline_s=120, title="Session")
class Session(Params[Content], frozen=True, kw_only=True):
    """Sessions mark what was stored while they lasted, pin documents and watch folders."""

    action: Annotated[str | None, Meta(description="Start, stop, pin, unpin or watch")] = None
    params: Annotated[dict[str, Any] | None, Meta(description="Of the action")] = None


@step.read("describe", deadline_s=10)
class Describe(Params[dict[str, Any]], frozen=True, kw_only=True):
    """The parameters of an op; without a target, the names of all ops."""

    target: Annotated[str | None, Meta(description="Name of an op")] = None
