"""Operations that only the operator's page calls; the kernel serves them beside those of `proto.ops.observation`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from kernel.configure.shown_settings import SettingShown
from proto.operation import OPERATOR, Family, Params
from proto.ops.kernel import SERVICE, ServiceName

operator = Family(SERVICE, callers=(OPERATOR,))

Figure = Literal["cpu", "memory_bytes", "calls_per_s", "failed", "queued", "p50_ms", "p99_ms"]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over time."""

    at: Annotated[list[float], Meta(description="Unix times, in seconds, oldest first")]
    services: Annotated[
        dict[str, dict[str, list[float | int | None]]],
        Meta(description="By service and figure, one value for each time; null while it had no process"),
    ]


@operator.read("kernel_history", deadline_s=10)
class KernelHistory(Params[Figures], frozen=True, kw_only=True):
    """Return the figures of the last hour (every 15 s), day (every minute) or month (every hour), also from before the
    kernel's last start."""

    span: Literal["hour", "day", "month"] = "hour"
    service: Annotated[str, Meta(max_length=64, description="Only of this service")] = ""
    figures: Annotated[tuple[Figure, ...], Meta(description="Only these; empty: all")] = ()
    after: Annotated[float, Meta(ge=0, description="Only what is later than this Unix time")] = 0.0
    points: Annotated[int, Meta(ge=2, le=2000, description="At most so many, each for several samples")] = 2000


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a log."""

    path: Annotated[str, Meta(description="The whole file")]
    lines: list[str]
    position: Annotated[int, Meta(description="For the next call")]
    again: Annotated[bool, Meta(description="Whether these are the last lines, not those after the position")]


@operator.read("kernel_log_after", deadline_s=10)
class KernelLogAfter(Params[LogPart], frozen=True, kw_only=True):
    """Return the lines of a log after a position; without one, or if the file was rotated, the last lines."""

    service: ServiceName
    position: Annotated[int, Meta(ge=-1, le=2**53 - 1)] = -1
    lines: Annotated[int, Meta(ge=1, le=100_000, description="How many of the last lines")] = 200


class ToolFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a tool of a mounted server since the kernel started."""

    name: Annotated[str, Meta(description="As the server names it")]
    calls: int
    failed: int
    p50_ms: Annotated[float, Meta(description="Median of the last 100 calls")]


class MountFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A mounted server."""

    tools: Annotated[list[ToolFigures], Meta(description="Those that were called")]
    ping_ms: Annotated[float | None, Meta(description="Round trip of the latest ping of its adapter")] = None


@operator.read("kernel_mount", deadline_s=5)
class KernelMount(Params[MountFigures], frozen=True, kw_only=True):
    """Return the figures of a mounted server that its service does not have itself."""

    service: ServiceName


class SettingsShown(msgspec.Struct, frozen=True, kw_only=True):
    """All settings but those of single mounted servers."""

    settings: list[SettingShown]


@operator.read("kernel_settings", deadline_s=30)
class KernelSettings(Params[SettingsShown], frozen=True, kw_only=True):
    """List the settings with their values and sources. Secrets are left out."""


@operator.write("kernel_set", idempotent=True, deadline_s=120)
class KernelSet(Params[SettingShown], frozen=True, kw_only=True):
    """Change a setting in `linckia.toml`, or return to its default. A value that a start would refuse changes
    nothing."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    value: Any = None
    reset: Annotated[bool, Meta(description="Remove it from the file instead")] = False


class SettingsEditor(Protocol):
    """Reads and changes the settings; its methods block."""

    def shown(self) -> list[SettingShown]: ...

    def change(self, name: str, value: object, *, reset: bool) -> tuple[SettingShown, Any]:
        """Raises Refused, OSError."""
