"""Tasks made of calls in flight whose clients no longer wait. The kernel keeps such a call; this service follows it."""

from __future__ import annotations

from typing import Final

from proto.errors import Failure, InvalidParams, LinckiaError, MaybeExecuted
from proto.ops.kernel import KernelTakeOver
from services.tasks.store import Unfinished

_PREFIX: Final = "call:"


def order(call: str) -> str:
    """Return what is stored instead of a mandate; `call` is the name that the kernel gave the call."""
    return _PREFIX + call


def is_adopted(task: Unfinished) -> bool:
    return task.mandate.startswith(_PREFIX)


def call_of(task: Unfinished) -> KernelTakeOver:
    """Return the operation that takes over the task's call."""
    return KernelTakeOver(call=task.mandate.removeprefix(_PREFIX), task=task.id)


def has_ended(error: LinckiaError) -> bool:
    """Whether the kernel does not know the call, or no longer."""
    return isinstance(error, InvalidParams) and error.failure.field == "call"


def interrupted(task: Unfinished) -> Failure:
    """Return the failure of a task whose call ended with the kernel."""
    return MaybeExecuted(
        f"{task.operation} was interrupted when Linckia ended; look at what it concerns, and call it again if needed"
    ).failure
