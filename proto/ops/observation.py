"""Operations with which the operator observes the system: live figures, calls, history, logs of changes, and tokens.

The operator's page and the command line call them; clients may not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from proto.ops.kernel import SERVICE, BackupStatus, ClusterStatus, Done, ServiceName, ServiceStatus
from proto.wire.front import SERVICE as FRONT

operator = Family(SERVICE, callers=(OPERATOR,))
internal = Family(SERVICE, role=Role.INTERNAL)

TraceId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$", description="W3C trace id, 32 hexadecimal digits")]
Limit = Annotated[int, Meta(ge=1, le=1000, description="At most this many")]

MAX_WAIT_S = 600.0


class ProcessFigures(ServiceStatus, frozen=True, kw_only=True):
    """One process of a service with its current load."""

    service: Annotated[str, Meta(description="Service that it belongs to; pools have several processes")]
    mount: Annotated[bool, Meta(description="Whether it runs a mounted MCP server")] = False
    cpu: Annotated[float | None, Meta(description="Share of one core since the previous report; null at first")] = None
    calls_per_s: Annotated[float | None, Meta(description="Calls of the service ended since the previous report")] = (
        None
    )
    calls: Annotated[int, Meta(description="Calls of the service that have ended, since the kernel started")] = 0
    failed: Annotated[int, Meta(description="How many of them failed")] = 0
    p50_ms: Annotated[float | None, Meta(description="Median duration of the service's calls in the last minute")] = (
        None
    )
    p99_ms: Annotated[float | None, Meta(description="99th percentile of the same")] = None


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the operator should see to."""

    id: str
    kind: Annotated[str, Meta(description="death, disk, backup or mount")]
    subject: Annotated[str, Meta(description="Service that it is about, or kernel")]
    text: str
    since: Annotated[float, Meta(description="Unix time, seconds")]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The whole system at one moment."""

    version: str
    at: Annotated[float, Meta(description="Unix time, seconds")]
    pid: int
    uptime_s: float
    data_dir: str
    roots: list[str]
    read_only_roots: list[str] = []
    read_only: bool = False
    clients: Annotated[int, Meta(description="Clients connected over stdio")]
    kernel_pss_bytes: int | None
    total_pss_bytes: Annotated[int, Meta(description="Of all processes")]
    kernel_cpu: float | None
    backup: BackupStatus | None = None
    events: Annotated[int, Meta(description="Number of the latest event of the timeline")]
    services: list[ProcessFigures]
    cluster: Annotated[ClusterStatus | None, Meta(description="Null without one")] = None
    alerts: list[Alert] = []


@operator.read("kernel_overview", deadline_s=5)
class KernelOverview(Params[Overview], frozen=True, kw_only=True):
    """Return the state and load of every process, for a live display."""


class CallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A call that has ended. It is one span of its trace; `parent` is the span of the call that made it."""

    number: Annotated[int, Meta(description="Counts all recorded calls of this kernel")]
    at: Annotated[float, Meta(description="Arrival, Unix time in seconds")]
    trace: str
    span: str
    parent: Annotated[str, Meta(description="Span of the caller; empty for the first call of a trace")] = ""
    operation: str
    service: str
    process: Annotated[str, Meta(description="Process that handled it; empty if none did")] = ""
    generation: int = 0
    who: Annotated[str, Meta(description="Token, stdio, http, operator, or the calling service")]
    target: str = ""
    queued_ms: Annotated[float | None, Meta(description="Until it was sent to a process; null if it never was")] = None
    duration_ms: float
    outcome: Annotated[str, Meta(description="ok, or the kind of failure")] = "ok"
    message: str = ""
    deaths: Annotated[int, Meta(description="Processes that died while they handled it")] = 0
    of_client: Annotated[bool, Meta(description="Whether a client or the operator made it, and not to wait")] = False


class CallRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Calls, latest first."""

    calls: list[CallRecord]
    last: Annotated[int, Meta(description="Number of the latest recorded call")]


@operator.read("kernel_calls", deadline_s=5)
class KernelCalls(Params[CallRecords], frozen=True, kw_only=True):
    """List calls that have ended: recent ones, slow ones, failed ones, or all calls of one trace."""

    kind: Literal["recent", "slow", "failed"] = "recent"
    trace: TraceId | None = None
    operation: Annotated[str, Meta(max_length=200, description="Only of this operation")] = ""
    service: Annotated[str, Meta(max_length=64, description="Only of this service")] = ""
    who: Annotated[str, Meta(max_length=200, description="Only of this caller")] = ""
    of_clients: Annotated[bool, Meta(description="Only calls that clients and the operator made")] = False
    after: Annotated[int, Meta(ge=0, description="Only calls recorded after the call of this number")] = 0
    limit: Limit = 200


TELEMETRY = "telemetry"
"""The service that sends calls and logs to a collector."""


class Spans(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that have ended, oldest first."""

    kernel: Annotated[str, Meta(description="Names this run of the kernel; numbers of calls begin anew with each")]
    calls: list[CallRecord]
    lost: Annotated[int, Meta(description="Calls after the given number that are no longer kept")] = 0


@internal.read("kernel_spans", deadline_s=10, callers=(TELEMETRY, OPERATOR))
class KernelSpans(Params[Spans], frozen=True, kw_only=True):
    """Return the calls that ended after the one with this number."""

    kernel: Annotated[str, Meta(max_length=64, description="Run of the kernel that `after` belongs to")] = ""
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Limit = 500


class NewLogLines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of logs, and the positions to continue from."""

    lines: list[tuple[str, str]]
    positions: dict[str, int]


@internal.read("kernel_new_log_lines", deadline_s=10, callers=(TELEMETRY, OPERATOR))
class KernelNewLogLines(Params[NewLogLines], frozen=True, kw_only=True):
    """Return the name of the log and the text of each line written since these positions; without any, only the
    current positions."""

    positions: dict[str, int] = {}


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a service or to the kernel."""

    number: int = 0
    at: Annotated[float, Meta(description="Unix time, seconds")] = 0.0
    service: str
    kind: Annotated[str, Meta(description="started, died, recovered, failed, stopped, alert or alert_ended")]
    generation: int = 0
    cause: Annotated[str, Meta(description="Kind of death")] = ""
    text: Annotated[str, Meta(description="Cause in words, with the last line that the process wrote")] = ""
    recovery_ms: Annotated[float | None, Meta(description="From the detection of the death to ready")] = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Events, latest first."""

    events: list[TimelineEvent]


@operator.read("kernel_timeline", deadline_s=5)
class KernelTimeline(Params[Timeline], frozen=True, kw_only=True):
    """List deaths and recoveries, also from before the kernel's last start."""

    service: Annotated[str, Meta(max_length=64, description="Only of this service")] = ""
    limit: Limit = 200


EVENTS = "events"
"""The service that keeps what happened, for clients."""


class AuditedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit log about something that was changed, or may have been. Fields as in that log."""

    at: Annotated[float, Meta(description="Unix time, seconds")]
    who: str
    operation: str
    service: Annotated[str, Meta(description="Service that handled it; empty if it is no longer known")]
    target: str
    outcome: str
    executed: str
    message: str
    source: str
    count: int


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel has recorded after two positions, oldest first, and the positions after these."""

    changes: list[AuditedChange]
    audit: Annotated[str, Meta(description="Position in the audit log")]
    audit_lost: Annotated[bool, Meta(description="Whether lines after the given position were rotated away")]
    timeline: list[TimelineEvent]
    last: Annotated[int, Meta(description="Number of the latest of these events")]
    timeline_lost: Annotated[bool, Meta(description="Whether events after the given number are no longer kept")]
    more: Annotated[bool, Meta(description="Whether more are available now")]


@internal.read("kernel_happened", deadline_s=MAX_WAIT_S + 15, callers=(EVENTS, OPERATOR))
class KernelHappened(Params[Happened], frozen=True, kw_only=True):
    """Return the changes in the audit log and the events of the timeline after these positions, waiting if there are
    none yet. Positions outlive the kernel and the rotation of the log."""

    audit: Annotated[
        str,
        Meta(max_length=64, pattern=r"^([0-9a-f]{32}:[0-9]{1,15})?$", description="An earlier position; empty: oldest"),
    ] = ""
    last: Annotated[int, Meta(ge=0, le=2**53 - 1, description="An earlier number; 0: oldest")] = 0
    limit: Limit = 500
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0.0


class StoreDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a service."""

    path: Annotated[str, Meta(description="Pattern below its folder; empty for the folder")]
    keep: Annotated[str, Meta(description="source, items, derived or passing: what a backup does with it")]
    schema: Annotated[int, Meta(description="Version of the database's schema; 0 if it has none")] = 0


class ServiceDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How a service is set up."""

    name: str
    processes: list[str]
    operations: list[str]
    settings: Annotated[dict[str, Any], Meta(description="Those that the settings file or environment give")]
    supervision: Annotated[dict[str, Any], Meta(description="Restart policy, time limits and queue limits")]
    walls: Annotated[dict[str, Any], Meta(description="What the process may access")]
    stores: list[StoreDetails]
    store_bytes: Annotated[int | None, Meta(description="Size of its folder when last measured")] = None
    growth_bytes_per_day: float | None = None


@operator.read("kernel_service", deadline_s=10)
class KernelService(Params[ServiceDetails], frozen=True, kw_only=True):
    """Return how a service is supervised, confined, and set, and what it stores."""

    service: ServiceName


class AuditLines(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of the audit log, latest first."""

    entries: list[dict[str, Any]]


@operator.read("kernel_audit", deadline_s=30)
class KernelAudit(Params[AuditLines], frozen=True, kw_only=True):
    """Read the audit log: who changed what, and what was refused."""

    who: Annotated[str, Meta(max_length=200, description="Only of this token, client or service")] = ""
    operation: Annotated[str, Meta(max_length=200, description="Only of operations that match, as `yaml_*`")] = ""
    failed: Annotated[bool, Meta(description="Only what failed or was refused")] = False
    limit: Limit = 200


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of `linckia doctor`."""

    what: str
    verdict: Annotated[str, Meta(description="ok, note or bad")]
    found: str
    remedy: str = ""


class DoctorFindings(msgspec.Struct, frozen=True, kw_only=True):
    """All results."""

    findings: list[DoctorFinding]


@operator.read("kernel_doctor", deadline_s=120)
class KernelDoctor(Params[DoctorFindings], frozen=True, kw_only=True):
    """Check what this machine provides and lacks, as `linckia doctor` does."""


class TokenDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    name: str
    created: Annotated[str, Meta(description="RFC 3339")]
    expires: Annotated[str | None, Meta(description="RFC 3339; null if it never does")] = None
    expired: bool = False
    surfaces: list[str] = []
    roots: list[str] = []
    read_only: bool = False
    rate: str | None = None


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    """All tokens, by name."""

    tokens: list[TokenDetails]


@operator.read("kernel_token_list", deadline_s=10)
class KernelTokenList(Params[TokenList], frozen=True, kw_only=True):
    """List the tokens for clients over HTTP."""


class NewToken(TokenDetails, frozen=True, kw_only=True):
    """A token that was just created."""

    token: Annotated[str, Meta(description="The secret, which is shown only this once")]


@operator.write("kernel_token_create", idempotent=False, deadline_s=30)
class KernelTokenCreate(Params[NewToken], frozen=True, kw_only=True):
    """Create a token for a client over HTTP; it is in force when this returns."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Its name in the audit log")]
    surfaces: Annotated[list[str], Meta(max_length=100, description="Only operations on these; empty: all")] = []
    roots: Annotated[list[str], Meta(max_length=64, description="Only files below these folders; empty: all")] = []
    read_only: Annotated[bool, Meta(description="Only operations that change nothing")] = False
    expires: Annotated[str, Meta(max_length=40, description="A time span (30d, 12h) or a date; empty: never")] = ""
    rate: Annotated[
        str, Meta(max_length=40, description="Maximum rate, such as 600/min; empty: as in the settings")
    ] = ""


@operator.destroy("kernel_token_revoke", idempotent=True, deadline_s=30, text="message")
class KernelTokenRevoke(Params[Done], frozen=True, kw_only=True):
    """Revoke a token at once, also in open sessions."""

    name: Annotated[str, Meta(min_length=1, max_length=64, description="Its name")]


# Declared as a read: the call that it carries gets its own audit line.
@internal.read("kernel_page_call", deadline_s=300, idempotent=False, callers=(FRONT,))
class KernelPageCall(Params[Any], frozen=True, kw_only=True):
    """Make a call of the operator's page that only the operator may make; the command line alone prints its key."""

    operation: Annotated[str, Meta(max_length=200)]
    arguments: dict[str, Any] = {}
    key: Annotated[str, Meta(max_length=200)]
