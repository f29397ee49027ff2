"""What the command asks of the storm."""

from __future__ import annotations

import msgspec

from proto.json_types import JsonObject
from services.mounts.torture.kinds import STORMS


class Call(msgspec.Struct, frozen=True):
    """A tool with its arguments."""

    tool: str
    arguments: JsonObject


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        limit_s: how long an answer may take before the call counts as hung.
        calls: made instead of the read-only tools.
        write: a call that stores `$ID`, which `read` gives back.
    """

    command: list[str]
    seed: int
    seconds: float = 60.0
    storms: list[str] = msgspec.field(default_factory=lambda: list(STORMS))
    limit_s: float = 10.0
    calls: list[Call] = []  # msgspec makes an empty list for each Struct
    write: Call | None = None
    read: Call | None = None
    json: bool = False
    verbose: bool = False
