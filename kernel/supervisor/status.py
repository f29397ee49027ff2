"""What the supervisor tells of itself: plain data for `status`, the operator's page and the metrics."""

from __future__ import annotations

import msgspec

from kernel.ports import Cause, ServiceState


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """How one death was got over.  Times in ms, from the moment that the death was noticed.

    `answered_ms`: until all its callers had an answer or were queued for the next generation; `ready_ms`: until the
    next generation was READY (None: not yet).
    """

    generation: int
    cause: Cause
    answered_ms: float
    ready_ms: float | None = None
    how: str = ""


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One service as the supervisor sees it."""

    name: str
    state: ServiceState
    reason: str
    generation: int
    pid: int | None
    standby_pid: int | None
    how: str
    mode: str
    uptime_s: float | None
    restarts: int
    deaths: dict[str, int]
    last_death: Cause | None
    recoveries: tuple[Recovery, ...]
    memory_bytes: int | None
    rss_bytes: int | None
    retry_in_s: float | None
    in_flight: int
    ping_ms: float | None
    info: dict[str, str]


class ZygoteReport(msgspec.Struct, frozen=True, kw_only=True):
    """One zygote."""

    name: str
    state: str
    pid: int | None
    deaths: int
    load_ms: float | None
    failed_modules: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole tree, in start order."""

    services: tuple[ServiceReport, ...]
    zygotes: tuple[ZygoteReport, ...] = ()
