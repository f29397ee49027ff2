"""The settings of `tasks`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.keys import KEPT_S

MIB = 1 << 20


class TasksSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings table `[tasks]`. The owner of a task or timer is the token of its client."""

    kept_s: Annotated[float, Meta(ge=60, description="How long the result of a task is kept after its end")] = KEPT_S
    after_s: Annotated[float, Meta(gt=0, le=600, description="How long clients wait for a long call")] = 50.0
    at_once: Annotated[int, Meta(ge=1, le=64, description="How many tasks run at the same time; others wait")] = 16
    max_unfinished: Annotated[int, Meta(ge=1, description="Most tasks of an owner that have not ended")] = 200
    max_timers: Annotated[int, Meta(ge=1, description="Most timers of an owner")] = 500
    max_bytes: Annotated[
        int, Meta(ge=1024, description="Most bytes of the stored calls of an owner: unfinished tasks and timers")
    ] = 16 * MIB
