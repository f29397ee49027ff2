"""Operations that the kernel itself answers: what is running, and the operator's hand on it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from linckia.proto.frames import Backlog
from linckia.proto.front import SERVICE as FRONT
from linckia.proto.grants import TokenTable
from linckia.proto.later import MAX_LATER_CALLS, LaterCall
from linckia.proto.operation import CLIENT, OPERATOR, Family, Params, Role, Route

SERVICE = "kernel"

tool = Family(SERVICE, callers=(CLIENT, OPERATOR))
operator = Family(SERVICE, callers=(OPERATOR,))
internal = Family(SERVICE, role=Role.INTERNAL)

ServiceName = Annotated[str, Meta(min_length=1, max_length=64, description="Name of the service, as `status` shows it")]


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One service, as the supervisor and the router see it."""

    name: str
    state: Annotated[str, Meta(description="starting, ready, draining, backoff, waiting, failed, stopped or resting")]
    reason: Annotated[str, Meta(description="Why it is in that state, where it is not ready")] = ""
    generation: Annotated[int, Meta(description="How many times it has been started")] = 0
    pid: int | None = None
    standby_pid: Annotated[int | None, Meta(description="Process that waits to take its place at its death")] = None
    mode: Annotated[str, Meta(description="Fall-back mode it runs in (cuda, cpu), where it has any")] = ""
    uptime_s: float | None = None
    restarts: Annotated[int, Meta(description="Starts after the first that a crash caused")] = 0
    deaths: Annotated[dict[str, int], Meta(description="Number of deaths by cause")] = {}
    last_death: Annotated[str, Meta(description="Cause of the latest death")] = ""
    rss_bytes: int | None = None
    pss_bytes: Annotated[int | None, Meta(description="Memory with shared pages divided among their sharers")] = None
    in_flight: int = 0
    queued: int = 0
    retry_in_s: Annotated[float | None, Meta(description="When a service that failed is started next")] = None
    recovery_ms: Annotated[float | None, Meta(description="From the latest death to ready again")] = None
    info: Annotated[dict[str, str], Meta(description="What the service says of itself")] = {}
    backlogs: Annotated[dict[str, Backlog], Meta(description="Work in the background that is not done")] = {}


class ZygoteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has loaded what its services need, and forks them."""

    name: str
    state: str
    pid: int | None
    rss_bytes: int | None
    pss_bytes: int | None
    load_ms: float | None


class AuditStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The log of changes and refusals."""

    path: str
    problem: Annotated[str, Meta(description="Why lines wait for the disk; empty where none do")]
    waiting: Annotated[int, Meta(description="Lines that wait")]
    lost: Annotated[int, Meta(description="Lines that could not be kept")]


class BackupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The latest backup."""

    to: Annotated[str, Meta(description="Where it went, or is to go")]
    every_s: Annotated[float | None, Meta(description="How often, by the settings; null where they do not say")] = None
    snapshot: Annotated[str, Meta(description="The last one that was made")] = ""
    age_s: Annotated[float | None, Meta(description="Time since its moment; null where there is none")] = None
    error: Annotated[str, Meta(description="Why the latest try failed; empty where it did not")] = ""
    problems: Annotated[list[str], Meta(description="What is wrong with what was backed up")] = []


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """What a day brings to a service, by the record of the last week."""

    name: str
    days: Annotated[float, Meta(description="That are on record; at least 1")]
    deaths_per_day: float
    bytes: Annotated[int | None, Meta(description="Of its folder, as it was looked at last; null where it is closed")]
    growth_bytes_per_day: Annotated[float | None, Meta(description="Null in the first hour")]


class KernelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole system."""

    version: str
    pid: int
    started_at: Annotated[str, Meta(description="RFC 3339, UTC")]
    uptime_s: float
    data_dir: str
    roots: list[str]
    read_only_roots: Annotated[list[str], Meta(description="Those of the roots that are only read")] = []
    read_only: Annotated[bool, Meta(description="Whether clients may change nothing at all")] = False
    packages: Annotated[list[str], Meta(description="Python packages from outside whose services are served")] = []
    http_url: Annotated[str | None, Meta(description="Where MCP is served over HTTP")]
    page_url: Annotated[str | None, Meta(description="The operator's page, with its key, for the command line")] = None
    token: Annotated[str | None, Meta(description="The token of this kernel over HTTP, for the command line")] = None
    open: Annotated[bool, Meta(description="Whether HTTP asks for no token")] = False
    clients: Annotated[int, Meta(description="Clients connected over stdio")]
    audit: Annotated[AuditStatus | None, Meta(description="None where it is switched off")] = None
    backup: Annotated[BackupStatus | None, Meta(description="None where there is none, and is to be none")] = None
    rss_bytes: int
    pss_bytes: int | None
    services: list[ServiceStatus]
    zygotes: list[ZygoteStatus] = []
    trends: Annotated[list[Trend], Meta(description="Of each service")] = []


@tool.read("kernel_status", deadline_s=5, title="System status", http=Route("GET", "/status"))
class KernelStatusParams(Params[KernelStatus], frozen=True, kw_only=True):
    """Health of this system: which services run, why and how often each died, how long each took to come back. Not of
    your projects."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, in a sentence."""

    message: str


@operator.write("kernel_restart", idempotent=False, deadline_s=300, text="message")
class KernelRestart(Params[Done], frozen=True, kw_only=True):
    """Stop a service in order and start it again; answers once it is ready. The processes of a pool, one by one."""

    service: ServiceName


@operator.write("kernel_start", idempotent=True, deadline_s=60, text="message")
class KernelStart(Params[Done], frozen=True, kw_only=True):
    """Start a service that was stopped or that failed, at once; answers once it is ready."""

    service: ServiceName


@operator.write("kernel_stop", idempotent=True, deadline_s=60, text="message")
class KernelStop(Params[Done], frozen=True, kw_only=True):
    """Stop a service in order; it stays stopped until it is started by hand."""

    service: ServiceName


@operator.write("kernel_tokens_changed", idempotent=True, deadline_s=10, text="message")
class KernelTokensChanged(Params[Done], frozen=True, kw_only=True):
    """Take up what `linckia token` has changed; answers once it is in force. What that was is for the audit log."""

    action: Annotated[str, Meta(max_length=20)] = ""
    name: Annotated[str, Meta(max_length=200)] = ""


@internal.read("kernel_tokens", deadline_s=60, callers=(FRONT,))
class KernelTokens(Params[TokenTable], frozen=True, kw_only=True):
    """The operator's tokens once they are others than those of `version`, or after a while."""

    front: Annotated[str, Meta(max_length=200, description="Name of the process that asks")]
    version: int


@operator.write("kernel_backup", idempotent=False, deadline_s=24 * 3600, text="snapshot")
class KernelBackup(Params[BackupStatus], frozen=True, kw_only=True):
    """Make a backup now, to where the settings say; answers once it is made and verified."""


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log."""

    path: Annotated[str, Meta(description="The whole file")]
    lines: list[str]


@operator.read("kernel_logs", deadline_s=10)
class KernelLogs(Params[LogLines], frozen=True, kw_only=True):
    """The last lines of the log of a service, or of `kernel` itself."""

    service: ServiceName
    lines: Annotated[int, Meta(ge=1, le=100_000, description="How many lines")] = 100


@operator.destroy("kernel_shutdown", idempotent=True, deadline_s=10, text="message")
class KernelShutdown(Params[Done], frozen=True, kw_only=True):
    """End the whole system in order: every service finishes what it has in hand."""


@internal.read("kernel_content_url", deadline_s=5, callers=("files", OPERATOR))
class KernelContentUrl(Params[str | None], frozen=True, kw_only=True):
    """The URL at which a client has files, and what was made from them, without its `?path=`; null where nothing is
    served over HTTP."""


@internal.read("kernel_mandate", deadline_s=30, callers=("files",))
class KernelMandate(Params[list[str]], frozen=True, kw_only=True):
    """Seal calls that the client whose call is being served asks to have made later, with that client's rights."""

    calls: Annotated[list[LaterCall], Meta(max_length=MAX_LATER_CALLS)]


@internal.destroy("kernel_call", idempotent=False, deadline_s=24 * 3600, callers=("files",))
class KernelCall(Params[None], frozen=True, kw_only=True):
    """Make a call that a client asked for beforehand, as a plan does: with that client's rights, whatever the
    service's own are. What the kernel itself answers cannot be called so."""

    mandate: Annotated[str, Meta(description="What `kernel_mandate` answered")]
    entry: Annotated[dict[str, str | int], Meta(description="The values of the placeholders in its arguments")]


class ServiceFigures(ServiceStatus, frozen=True, kw_only=True):
    """One process of a service, as metrics have it."""

    answered_ms: float | None = None
    ping_ms: float | None = None


class LaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one service, in all its processes."""

    queued: int
    calls: int
    replays: int
    failures: dict[str, int]


class ZygoteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A process that services are forked from."""

    name: str
    up: bool
    deaths: int


class KernelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor and the router count; `states` and `causes` are all that there are."""

    version: str
    rss_bytes: int
    worst_turn_s: Annotated[float, Meta(description="Of the event loop, in the last minute or two")]
    worst_turn_cpu_s: Annotated[float, Meta(description="The same in its own processor time")]
    late_turns: Annotated[int, Meta(description="Those of more than 20 ms of it since the start")]
    backup: BackupStatus | None = None
    services: list[ServiceFigures]
    lanes: dict[str, LaneFigures]
    zygotes: list[ZygoteFigures]
    states: list[str]
    causes: list[str]


@internal.read("kernel_figures", deadline_s=5, callers=(FRONT,))
class KernelFiguresParams(Params[KernelFigures], frozen=True, kw_only=True):
    """The figures of `GET /metrics`."""


@internal.read("kernel_ready", deadline_s=5, callers=(FRONT,))
class KernelReady(Params[bool], frozen=True, kw_only=True):
    """Whether every service that is to run does."""


SessionName = Annotated[str, Meta(min_length=1, max_length=64, description="Of a session over HTTP, among fronts")]


@internal.write("kernel_keep_session", idempotent=True, deadline_s=5, callers=(FRONT,))
class KernelKeepSession(Params[None], frozen=True, kw_only=True):
    """Keep what a session over HTTP has come to, in place of what was kept before: for other fronts."""

    name: SessionName
    state: Annotated[str, Meta(max_length=8192)]


@internal.read("kernel_kept_session", deadline_s=5, callers=(FRONT,))
class KernelKeptSession(Params[str | None], frozen=True, kw_only=True):
    """What was kept of a session; null where that is nothing."""

    name: SessionName


@internal.write("kernel_page_restart", idempotent=False, deadline_s=300, text="message", callers=(FRONT,))
class KernelPageRestart(Params[Done], frozen=True, kw_only=True):
    """Restart a service for the operator's page, whose key only the command line prints."""

    service: ServiceName
    key: Annotated[str, Meta(max_length=200)]


_Told = Annotated[str, Meta(max_length=500)]


# Not a write, which the log would have a line of.
@internal.read("kernel_refused", deadline_s=5, idempotent=False, callers=(FRONT,))
class KernelRefused(Params[None], frozen=True, kw_only=True):
    """Record what a front refused before there was a call: who asked, from where, for what, and how often."""

    who: _Told
    peer: _Told
    operation: _Told
    target: _Told = ""
    outcome: _Told
    message: _Told
    count: Annotated[int, Meta(ge=1, le=2**53 - 1)] = 1
