"""Operations of the kernel itself: status, and the operator's control of services."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from proto.grants import TokenTable
from proto.later import MAX_LATER_CALLS, LaterCall
from proto.mounts import MountTable
from proto.operation import CLIENT, OPERATOR, Family, Params, Role, Route
from proto.wire.frames import Backlog
from proto.wire.front import SERVICE as FRONT

SERVICE = "kernel"

tool = Family(SERVICE, callers=(CLIENT, OPERATOR))
step = Family(SERVICE, callers=(CLIENT, OPERATOR), role=Role.STEP)
operator = Family(SERVICE, callers=(OPERATOR,))
internal = Family(SERVICE, role=Role.INTERNAL)

ServiceName = Annotated[str, Meta(min_length=1, max_length=64, description="Name of the service")]


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One service, as the supervisor and the router see it."""

    name: str
    state: Annotated[str, Meta(description="starting, ready, draining, backoff, waiting, failed, stopped or resting")]
    reason: Annotated[str, Meta(description="Why it is not ready")] = ""
    generation: Annotated[int, Meta(description="Number of starts")] = 0
    pid: Annotated[int | None, Meta(description="Null if it runs on a node of the cluster")] = None
    node: Annotated[str, Meta(description="Node of the cluster, and process there; empty: this machine")] = ""
    standby_pid: Annotated[int | None, Meta(description="Process ready to replace it if it dies")] = None
    mode: Annotated[str, Meta(description="Fall-back mode it runs in (cuda, cpu), if any")] = ""
    uptime_s: float | None = None
    restarts: Annotated[int, Meta(description="Restarts after a crash")] = 0
    deaths: Annotated[dict[str, int], Meta(description="Number of deaths by cause")] = {}
    last_death: Annotated[str, Meta(description="Cause of the latest death")] = ""
    rss_bytes: int | None = None
    pss_bytes: Annotated[int | None, Meta(description="Memory, shared pages divided among their users")] = None
    in_flight: int = 0
    queued: int = 0
    retry_in_s: Annotated[float | None, Meta(description="Time to the next start after a failure")] = None
    recovery_ms: Annotated[float | None, Meta(description="From the latest death to ready")] = None
    info: Annotated[dict[str, str], Meta(description="Details from the service itself")] = {}
    backlogs: Annotated[dict[str, Backlog], Meta(description="Pending background work")] = {}


class ZygoteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has loaded the modules of its services, and forks them."""

    name: str
    state: str
    pid: int | None
    rss_bytes: int | None
    pss_bytes: int | None
    load_ms: float | None


class AuditStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The log of changes and refusals."""

    path: str
    problem: Annotated[str, Meta(description="Why lines wait for the disk; empty if none do")]
    waiting: Annotated[int, Meta(description="Waiting lines")]
    lost: Annotated[int, Meta(description="Lines lost")]


class BackupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The latest backup."""

    to: Annotated[str, Meta(description="Destination")]
    every_s: Annotated[float | None, Meta(description="Interval in the settings; null if there is none")] = None
    snapshot: Annotated[str, Meta(description="The last one made")] = ""
    age_s: Annotated[float | None, Meta(description="Age of the last one; null if there is none")] = None
    error: Annotated[str, Meta(description="Why the latest attempt failed; empty if it did not")] = ""
    problems: Annotated[list[str], Meta(description="Problems of the data that was backed up")] = []


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """Daily averages of a service over the last week."""

    name: str
    days: Annotated[float, Meta(description="Days on record; at least 1")]
    deaths_per_day: float
    bytes: Annotated[int | None, Meta(description="Size of its folder when last checked; null if unreadable")]
    growth_bytes_per_day: Annotated[float | None, Meta(description="Null in the first hour")]


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster that is alive."""

    name: Annotated[str, Meta(description="Its address, and the beginning of its id")]
    num_cpus: float
    num_gpus: float
    memory_bytes: int
    services: Annotated[list[str], Meta(description="Processes of this system that run there")] = []


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster that stateless services may run on."""

    engine: str
    address: str
    problem: Annotated[str, Meta(description="Why it is not connected; empty if it is")] = ""
    restarts: Annotated[int, Meta(description="Times the connection was started again")] = 0
    nodes: list[ClusterNode] = []


class KernelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole system."""

    version: str
    pid: int
    started_at: Annotated[str, Meta(description="RFC 3339, UTC")]
    uptime_s: float
    data_dir: str
    roots: list[str]
    read_only_roots: Annotated[list[str], Meta(description="Roots that are read-only")] = []
    read_only: Annotated[bool, Meta(description="Whether clients may change nothing")] = False
    packages: Annotated[list[str], Meta(description="External Python packages whose services run")] = []
    http_url: Annotated[str | None, Meta(description="URL of MCP over HTTP")]
    page_url: Annotated[str | None, Meta(description="The operator's page, with its key, for the command line")] = None
    token: Annotated[str | None, Meta(description="The token of this kernel over HTTP, for the command line")] = None
    open: Annotated[bool, Meta(description="Whether HTTP needs no token")] = False
    clients: Annotated[int, Meta(description="Clients connected over stdio")]
    audit: Annotated[AuditStatus | None, Meta(description="Null if switched off")] = None
    backup: Annotated[BackupStatus | None, Meta(description="Null if there is none and none is scheduled")] = None
    rss_bytes: Annotated[int, Meta(description="Of the kernel")]
    pss_bytes: Annotated[int | None, Meta(description="Of the kernel")]
    total_pss_bytes: Annotated[int, Meta(description="Of all processes: the kernel, services, standbys, zygotes")] = 0
    services: list[ServiceStatus]
    zygotes: list[ZygoteStatus] = []
    cluster: Annotated[ClusterStatus | None, Meta(description="Null if none is set")] = None
    trends: Annotated[list[Trend], Meta(description="By service")] = []


@tool.read("kernel_status", deadline_s=5, title="System status", http=Route("GET", "/status"))
class KernelStatusParams(Params[KernelStatus], frozen=True, kw_only=True):
    """Health of this system: which services run, why and how often each died, how long each took to come back. Not of
    your projects."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome, as a sentence."""

    message: str


@operator.write("kernel_restart", idempotent=False, deadline_s=300, text="message")
class KernelRestart(Params[Done], frozen=True, kw_only=True):
    """Restart a service in order; returns once it is ready. The processes of a pool restart one by one."""

    service: ServiceName


@step.write("services_restart", idempotent=False, deadline_s=300, title="Restart a service", text="message")
class ServicesRestart(Params[Done], frozen=True, kw_only=True):
    """Restart one service of this system in order, for example one that misbehaves; no call is lost. Returns once it is
    ready."""

    service: ServiceName


@operator.write("kernel_start", idempotent=True, deadline_s=60, text="message")
class KernelStart(Params[Done], frozen=True, kw_only=True):
    """Start a stopped or failed service at once; returns once it is ready."""

    service: ServiceName


@operator.write("kernel_stop", idempotent=True, deadline_s=60, text="message")
class KernelStop(Params[Done], frozen=True, kw_only=True):
    """Stop a service in order; it stays stopped until started by hand."""

    service: ServiceName


class MountsReloaded(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the mounts that were added, removed, or changed and restarted."""

    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []


@operator.write("kernel_tokens_changed", idempotent=True, deadline_s=10, text="message")
class KernelTokensChanged(Params[Done], frozen=True, kw_only=True):
    """Reload the tokens after `linckia token`; returns once the change is in force. The parameters are for the audit
    log."""

    action: Annotated[str, Meta(max_length=20)] = ""
    name: Annotated[str, Meta(max_length=200)] = ""


@internal.read("kernel_tokens", deadline_s=660, callers=(FRONT,))
class KernelTokens(Params[TokenTable], frozen=True, kw_only=True):
    """Return the operator's tokens once they differ from `version`, or after a while."""

    front: Annotated[str, Meta(max_length=200, description="Name of the calling process")]
    version: int


@internal.read("kernel_mounts", deadline_s=660, callers=(FRONT, OPERATOR))
class KernelMounts(Params[MountTable], frozen=True, kw_only=True):
    """Return the mounted servers once they differ from `version`, or after a while."""

    version: int


@operator.write("kernel_reload_mounts", idempotent=True, deadline_s=60)
class KernelReloadMounts(Params[MountsReloaded], frozen=True, kw_only=True):
    """Read the tables `[mcp.NAME]` of the settings again: start, restart and end the servers that changed."""


@operator.write("kernel_backup", idempotent=False, deadline_s=24 * 3600, text="snapshot")
class KernelBackup(Params[BackupStatus], frozen=True, kw_only=True):
    """Make a backup now, at the destination in the settings; returns once it is verified."""


class LogLines(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a log."""

    path: Annotated[str, Meta(description="The whole file")]
    lines: list[str]


@operator.read("kernel_logs", deadline_s=10)
class KernelLogs(Params[LogLines], frozen=True, kw_only=True):
    """Read the last lines of the log of a service, or of `kernel`."""

    service: ServiceName
    lines: Annotated[int, Meta(ge=1, le=100_000, description="How many lines")] = 100


@operator.destroy("kernel_shutdown", idempotent=True, deadline_s=10, text="message")
class KernelShutdown(Params[Done], frozen=True, kw_only=True):
    """Shut the whole system down in order: every service finishes its calls in flight."""


@internal.read("kernel_content_url", deadline_s=5, callers=("files", OPERATOR))
class KernelContentUrl(Params[str | None], frozen=True, kw_only=True):
    """Return the URL that serves files and their artefacts, without `?path=`; null if HTTP is off."""


@internal.read("kernel_mandate", deadline_s=30, callers=("files", "tasks"))
class KernelMandate(Params[list[str]], frozen=True, kw_only=True):
    """Seal calls to be made later with the rights of the client being served."""

    calls: Annotated[list[LaterCall], Meta(max_length=MAX_LATER_CALLS)]
    complete: Annotated[bool, Meta(description="They have no placeholders, so their arguments can be checked")] = False


class KernelCalled(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call that a client requested beforehand, as the body that its service returned."""

    body: bytes


@internal.destroy("kernel_call", idempotent=False, deadline_s=24 * 3600, callers=("files", "tasks"))
class KernelCall(Params[KernelCalled], frozen=True, kw_only=True):
    """Make a call that a client requested beforehand, as a plan does: with that client's rights instead of the
    service's. Operations of the kernel itself cannot be called this way."""

    mandate: Annotated[str, Meta(description="From `kernel_mandate`")]
    entry: Annotated[
        dict[str, str | int] | None, Meta(description="Values of the placeholders in its arguments; null: it has none")
    ] = None
    key: Annotated[str, Meta(max_length=256, description="Idempotency key of the call; empty for none")] = ""


@internal.read("kernel_name_call", deadline_s=10, callers=("front",))
class KernelNameCall(Params[str], frozen=True, kw_only=True):
    """Return a secret name by which `tasks` can take over an unanswered call of this front."""

    call: Annotated[int, Meta(description="Number of the call on the front's link")]


@internal.destroy("kernel_take_over", idempotent=False, deadline_s=24 * 3600, callers=("tasks",))
class KernelTakeOver(Params[KernelCalled], frozen=True, kw_only=True):
    """Take over a call that a client no longer waits for, and return its result. Its front is told the task's id
    instead. The same caller may repeat this after its own death, for as long as the kernel lives."""

    call: Annotated[str, Meta(max_length=64, description="From `kernel_name_call`")]
    task: Annotated[str, Meta(max_length=64)]


class ServiceFigures(ServiceStatus, frozen=True, kw_only=True):
    """Metrics of one process of a service."""

    answered_ms: float | None = None
    ping_ms: float | None = None


class LaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Call counts of one service, over all its processes."""

    queued: int
    calls: int
    replays: int
    failures: dict[str, int]


class ZygoteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A process that services are forked from."""

    name: str
    up: bool
    deaths: int


class OperationFigures(msgspec.Struct, kw_only=True):
    """Calls of one operation since the kernel started. Bucket n counts times up to `BUCKETS_S[n]`; the last, all
    longer ones."""

    service: str
    failures: int
    seconds: float
    buckets: list[int]
    queued_seconds: float
    queued_buckets: Annotated[list[int], Meta(description="Time before the call was sent to a process")]


BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper limits of the buckets of durations, in seconds."""


class KernelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the supervisor and the router; `states` and `causes` list every possible value."""

    version: str
    rss_bytes: int
    worst_turn_s: Annotated[float, Meta(description="Longest turn of the event loop in the last minute or two")]
    worst_turn_cpu_s: Annotated[float, Meta(description="The same in processor time")]
    late_turns: Annotated[int, Meta(description="Turns of more than 20 ms processor time since the start")]
    backup: BackupStatus | None = None
    services: list[ServiceFigures]
    lanes: dict[str, LaneFigures]
    zygotes: list[ZygoteFigures]
    cluster: ClusterStatus | None = None
    operations: Annotated[dict[str, OperationFigures], Meta(description="By name, if called at least once")] = {}
    stores: Annotated[dict[str, int], Meta(description="Size of each service's folder in bytes, measured hourly")] = {}
    states: list[str]
    causes: list[str]


@internal.read("kernel_figures", deadline_s=5, callers=(FRONT,))
class KernelFiguresParams(Params[KernelFigures], frozen=True, kw_only=True):
    """Return the figures for `GET /metrics`."""


@internal.read("kernel_ready", deadline_s=5, callers=(FRONT,))
class KernelReady(Params[bool], frozen=True, kw_only=True):
    """Return whether every service that should run is ready."""


SessionName = Annotated[str, Meta(min_length=1, max_length=64, description="Name of an HTTP session, shared by fronts")]


@internal.write("kernel_keep_session", idempotent=True, deadline_s=5, callers=(FRONT,))
class KernelKeepSession(Params[None], frozen=True, kw_only=True):
    """Store the state of an HTTP session for other fronts, replacing the previous state."""

    name: SessionName
    state: Annotated[str, Meta(max_length=8192)]


@internal.read("kernel_kept_session", deadline_s=5, callers=(FRONT,))
class KernelKeptSession(Params[str | None], frozen=True, kw_only=True):
    """Return the stored state of a session, or null."""

    name: SessionName


_Field = Annotated[str, Meta(max_length=500)]


# Declared as a read: a write would get an audit line of its own.
@internal.read("kernel_refused", deadline_s=5, idempotent=False, callers=(FRONT,))
class KernelRefused(Params[None], frozen=True, kw_only=True):
    """Record a request that a front refused before it became a call: who, from where, what, and how often."""

    who: _Field
    peer: _Field
    operation: _Field
    target: _Field = ""
    outcome: _Field
    message: _Field
    count: Annotated[int, Meta(ge=1, le=2**53 - 1)] = 1
