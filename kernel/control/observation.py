"""Handlers of the operations with which the operator observes the system (`proto.ops.observation`)."""

from __future__ import annotations

import collections
import datetime
import fnmatch
import hmac
import itertools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio
from msgspec import structs

from kernel.chronicle import audit
from kernel.chronicle.history import Recorder, rounded
from kernel.chronicle.samples import Point
from kernel.chronicle.trends import Trends
from kernel.configure import token_editing, tokens
from kernel.configure.config import Config
from kernel.configure.launch import LaunchConfigs
from kernel.router.generation import Undecoded, answering
from kernel.router.ports import LocalHandler
from kernel.router.record import PAGE, PREVIEW, is_work
from kernel.router.router import Router
from kernel.supervisor import processes
from kernel.supervisor.supervisor import Supervisor
from proto.control.address import log_dir
from proto.errors import Forbidden, InvalidParams, OperationError
from proto.grants import Token
from proto.names import module
from proto.operation import CLIENT, OPERATOR, Operation, Params
from proto.ops import observation as ops
from proto.ops.kernel import SERVICE, Done, KernelStatus
from proto.origin import Mandated, Origin

SAME_S = 0.5
"""Readers within this time get the same overview, so that several of them cost no more than one."""

LOG_BYTES = 64 * 1024
"""How much of a log is read at once."""

_HERTZ = os.sysconf("SC_CLK_TCK")

_SUPERVISION = (
    "restart", "intensity", "period_s", "backoff", "startup_timeout_s", "ping_interval_s", "hang_timeout_s", "stall_s",
    "shutdown_timeout_s", "rests_after_s", "standby", "zygote", "modes", "depends_on", "lazy", "in_flight", "queue",
    "memory_limit_bytes", "disk_limit_bytes", "thread_limit",
)  # fmt: skip
_WALLS = ("confined", "roots", "network", "connections", "programs", "watches", "folders", "open_files")


class Load(msgspec.Struct, frozen=True):
    """Load of a process and its service since the previous reading; None where there was none."""

    cpu: float | None
    calls_per_s: float
    failed: int


class Meter:
    """Turns counters into rates, for one reader."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._at = trio.current_time()
        self._ticks: dict[int, int] = {}
        self._counts: dict[str, tuple[int, int]] = {}

    def read(self, pids: Mapping[str, int | None], services: Mapping[str, str]) -> dict[str, Load]:
        """Return the load of each process by its name, given its pid and its service. Takes 30 µs for each."""
        now = trio.current_time()
        span_s, self._at = max(now - self._at, 1e-3), now
        ticks = {pid: processes.progress_of(pid)[1] for pid in pids.values() if pid is not None}
        calls = self._router.calls.services
        counts = {each: (calls[each].ended, calls[each].failed) for each in set(services.values()) if each in calls}
        found = {}
        for name, pid in pids.items():
            known = pid is not None and pid in self._ticks
            cpu = max(0, ticks[pid] - self._ticks[pid]) / _HERTZ / span_s if known and pid is not None else None
            before, after = (kept.get(services.get(name, name), (0, 0)) for kept in (self._counts, counts))
            found[name] = Load(rounded(cpu, 3), round((after[0] - before[0]) / span_s, 2), after[1] - before[1])
        self._ticks, self._counts = ticks, counts
        return found


@dataclass(kw_only=True, eq=False)
class Observation:
    """Registers the handlers with the router. `recorder` keeps the history; it must be running. `status` is the
    kernel's report for the operator, which is set before the first call."""

    config: Config
    router: Router
    supervisor: Supervisor
    launches: LaunchConfigs
    trends: Trends
    tokens: tokens.LiveTokens
    page_key: str
    status: Callable[[], Awaitable[KernelStatus]] = field(init=False)
    alerts: Callable[[], list[ops.Alert]] = list

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.config.data_dir, self._points)
        self._sampled = Meter(self.router)
        self._shown = Meter(self.router)
        self._overview_until = float("-inf")
        self._last_overview: ops.Overview | None = None
        handlers: dict[type[Params[Any]], LocalHandler] = {
            ops.KernelOverview: self._overview,
            ops.KernelCalls: self._calls,
            ops.KernelTimeline: self._timeline,
            ops.KernelService: self._service,
            ops.KernelAudit: self._audit,
            ops.KernelDoctor: self._doctor,
            ops.KernelTokenList: self._token_list,
            ops.KernelTokenCreate: self._token_create,
            ops.KernelTokenRevoke: self._token_revoke,
            ops.KernelSpans: self._spans,
            ops.KernelNewLogLines: self._new_log_lines,
            ops.KernelPageCall: self._page_call,
        }
        self.router.serve_local(handlers)

    def _service_of(self) -> dict[str, str]:
        """Return the service of each process."""
        return {name: self.router.lane(name).service for name in self.supervisor.plan.specs}

    def _points(self) -> Mapping[str, Point]:
        """Return the figures of each service, and of the kernel, for the history."""
        reports = self.supervisor.status().services
        services = self._service_of()
        pids = {each.name: each.pid for each in reports} | {SERVICE: os.getpid()}
        loads = self._sampled.read(pids, services)
        found = {
            SERVICE: Point(loads[SERVICE].cpu, processes.resident_bytes(os.getpid()), None, None, None, None, None)
        }
        now = trio.current_time()
        for each in reports:
            if each.pid is None or each.name not in services:
                continue
            load, own = loads[each.name], each.name == services[each.name]
            p50_ms, p99_ms = self.router.calls.services[services[each.name]].quantiles_ms(now)
            found[each.name] = Point(
                load.cpu,
                each.rss_bytes,
                load.calls_per_s if own else None,
                load.failed if own else None,
                self.router.lane(each.name).queued if own else None,
                rounded(p50_ms) if own else None,
                rounded(p99_ms) if own else None,
            )
        return found

    async def _overview(self, params: ops.KernelOverview, caller: str) -> ops.Overview:
        if self._last_overview is not None and trio.current_time() < self._overview_until:
            return self._last_overview
        found = self._overview_of(await self.status())
        self._last_overview, self._overview_until = found, trio.current_time() + SAME_S
        return found

    def _overview_of(self, status: KernelStatus) -> ops.Overview:
        services = self._service_of()
        pids = {each.name: each.pid for each in status.services} | {SERVICE: status.pid}
        loads = self._shown.read(pids, services)
        now, calls = trio.current_time(), self.router.calls.services
        figures = []
        for each in status.services:
            service = services.get(each.name, each.name)
            p50_ms, p99_ms = calls[service].quantiles_ms(now)
            entry = self.launches.entries.get(each.name)
            load = loads[each.name]
            figures.append(
                ops.ProcessFigures(
                    **{name: getattr(each, name) for name in each.__struct_fields__ if name != "in_flight"},
                    in_flight=self._in_flight(each.name), service=service,
                    mount=bool(entry is not None and entry.mount), cpu=load.cpu, calls_per_s=load.calls_per_s,
                    calls=calls[service].ended, failed=calls[service].failed,
                    p50_ms=rounded(p50_ms), p99_ms=rounded(p99_ms),
                )
            )  # fmt: skip
        return ops.Overview(
            version=status.version, at=time.time(), pid=status.pid, uptime_s=status.uptime_s, data_dir=status.data_dir,
            roots=status.roots, read_only_roots=status.read_only_roots, read_only=status.read_only,
            clients=status.clients, kernel_pss_bytes=status.pss_bytes, total_pss_bytes=status.total_pss_bytes,
            kernel_cpu=loads[SERVICE].cpu, backup=status.backup, events=self.recorder.last, services=figures,
            cluster=status.cluster, alerts=self.alerts(),
        )  # fmt: skip

    def _in_flight(self, name: str) -> int:
        """Return how many calls the process works on; those that only wait for news are left out."""
        if name not in self.supervisor.plan.specs:
            return 0
        generation = self.router.lane(name).instances[name].generation
        return 0 if generation is None else sum(map(is_work, generation.calls.values()))

    async def _calls(self, params: ops.KernelCalls, caller: str) -> ops.CallRecords:
        return ops.CallRecords(calls=self.router.calls.find(params), last=self.router.calls.last)

    async def _spans(self, params: ops.KernelSpans, caller: str) -> ops.Spans:
        log = self.router.calls
        after = params.after if params.kernel == log.run else 0
        calls, lost = log.since(after, params.limit)
        return ops.Spans(kernel=log.run, calls=calls, lost=lost)

    async def _new_log_lines(self, params: ops.KernelNewLogLines, caller: str) -> ops.NewLogLines:
        return await trio.to_thread.run_sync(new_lines, log_dir(self.config.data_dir), params.positions)

    async def _timeline(self, params: ops.KernelTimeline, caller: str) -> ops.Timeline:
        chosen = (each for each in reversed(self.recorder.events) if params.service in ("", each.service))
        return ops.Timeline(events=list(itertools.islice(chosen, params.limit)))

    async def _service(self, params: ops.KernelService, caller: str) -> ops.ServiceDetails:
        lane = self.router.lane(self.supervisor.known(params.service))
        entry = self.launches.entries[next(iter(lane.instances))]
        spec, manifest = entry.spec, entry.manifest
        trend = next((each for each in self.trends.trends() if each.name == lane.service), None)
        settings = self.config.services.get(lane.service, {}) if entry.table is None else entry.table
        return ops.ServiceDetails(
            name=lane.service,
            processes=list(lane.instances),
            operations=sorted(op.name for op in self.router.table.of_service(lane.service)),
            settings=_without_secrets(msgspec.to_builtins(settings)),
            supervision={name: msgspec.to_builtins(getattr(spec, name)) for name in _SUPERVISION},
            walls={name: msgspec.to_builtins(getattr(manifest, name)) for name in _WALLS},
            stores=[
                ops.StoreDetails(path=each.path, keep=each.keep.value, schema=each.schema) for each in manifest.stores
            ],
            store_bytes=None if trend is None else trend.bytes,
            growth_bytes_per_day=None if trend is None else trend.growth_bytes_per_day,
        )

    async def _audit(self, params: ops.KernelAudit, caller: str) -> ops.AuditLines:
        return ops.AuditLines(entries=await trio.to_thread.run_sync(self._read_audit, params))

    def _read_audit(self, params: ops.KernelAudit) -> list[dict[str, Any]]:
        """Return the latest matching entries. Blocks."""
        found: collections.deque[audit.AuditEntry] = collections.deque(maxlen=params.limit)
        for path in audit.files_of(self.config.data_dir):
            try:
                lines = path.read_bytes().splitlines()
            except FileNotFoundError:
                # It has just been rotated away.
                continue
            found.extend(
                each
                for each in audit.entries(lines)
                if params.who in ("", each.who)
                and (not params.operation or fnmatch.fnmatchcase(each.operation, params.operation))
                and not (params.failed and each.outcome == "ok")
            )
        return [msgspec.to_builtins(each) for each in reversed(found)]

    async def _doctor(self, params: ops.KernelDoctor, caller: str) -> ops.DoctorFindings:
        status = await self.status()
        command = [sys.executable, "-P", "-m", module("kernel.cli"), "doctor", "--json", "--status", "-"]
        ended = await trio.run_process(
            [*command, "--data", str(self.config.data_dir)], stdin=msgspec.json.encode(status), capture_stdout=True,
            capture_stderr=True, check=False,
        )  # fmt: skip
        try:
            return ops.DoctorFindings(findings=msgspec.json.decode(ended.stdout, type=list[ops.DoctorFinding]))
        except msgspec.DecodeError:
            lines = ended.stderr.decode(errors="replace").strip().splitlines()
            raise OperationError(lines[-1] if lines else f"it ended with {ended.returncode}") from None

    async def _token_list(self, params: ops.KernelTokenList, caller: str) -> ops.TokenList:
        found = await trio.to_thread.run_sync(tokens.listed, self.config.data_dir)
        return ops.TokenList(tokens=[ops.TokenDetails(**_token_fields(each)) for each in found])

    async def _token_create(self, params: ops.KernelTokenCreate, caller: str) -> ops.NewToken:
        create = partial(
            token_editing.create, self.config.data_dir, name=params.name, surfaces=params.surfaces, roots=params.roots,
            read_only=params.read_only, expires=params.expires or None, rate=params.rate or None,
            known_surfaces=self.router.table.surfaces, known_roots=lambda: list(map(str, self.config.roots)),
        )  # fmt: skip
        try:
            made, secret = await trio.to_thread.run_sync(create)
        except token_editing.Unfit as error:
            raise InvalidParams(str(error), field=error.field) from None
        await self.tokens.reload()
        return ops.NewToken(**_token_fields(made), token=secret)

    async def _token_revoke(self, params: ops.KernelTokenRevoke, caller: str) -> Done:
        try:
            await trio.to_thread.run_sync(token_editing.revoke, self.config.data_dir, params.name)
        except token_editing.Unfit as error:
            raise InvalidParams(str(error), field=error.field) from None
        applied = await self.tokens.reload()
        return Done(message="in force" if applied else "in force once an unresponsive front has been replaced")

    async def _page_call(self, params: ops.KernelPageCall, caller: str) -> object:
        if not hmac.compare_digest(params.key.encode(), self.page_key.encode()):
            raise Forbidden("the key is not this kernel's: open the address shown by `linckia status`")
        operation = self.router.table.find(params.operation)
        # What clients may call, too, the page calls as a client, with its token.
        of_clients = operation.admits(CLIENT) and operation.service != SERVICE
        is_preview = of_clients and _is_dry_run(operation, params.arguments)
        if (of_clients and not is_preview) or not operation.admits(OPERATOR):
            raise Forbidden(f"{operation.name} is not an operation for the operator alone")
        asking = answering.get()
        # A client's page has no more rights than the client.
        origin = Origin(OPERATOR, peer=PAGE, grant=None if asking is None else asking.origin.grant)
        if is_preview:
            # What a call that waits for an approval would do. A client's dry run would wait for one itself.
            origin = structs.replace(origin, mandate=Mandated(PREVIEW, OPERATOR))
        found = await self.router.call(operation, operation.parse(params.arguments), origin=origin)
        if isinstance(found, Undecoded):
            raise OperationError(f"{operation.name}: the result is too long for the page; use `linckia call`")
        return found


def _is_dry_run(operation: Operation[Any], arguments: dict[str, Any]) -> bool:
    """Return whether a call only reports what it would change. Raises InvalidParams."""
    is_named = "dry_run" in arguments or "dryRun" in arguments
    return is_named and getattr(operation.parse(arguments), "dry_run", None) is True


def new_lines(folder: Path, positions: Mapping[str, int]) -> ops.NewLogLines:
    """Return the lines written since these positions, at most `LOG_BYTES` of each log. Blocks."""
    found: list[tuple[str, str]] = []
    reached: dict[str, int] = {}
    for path in sorted(folder.glob("*.log")):
        name = path.stem
        try:
            size = path.stat().st_size
            start = positions.get(name, size if not positions else 0)
            # A shorter file is a new one: the old one was rotated away.
            reached[name] = start = start if start <= size else 0
            if start == size:
                continue
            with path.open("rb") as file:
                file.seek(start)
                data = file.read(LOG_BYTES)
        except OSError:
            continue
        whole = data[: data.rfind(b"\n") + 1] if b"\n" in data else data if len(data) == LOG_BYTES else b""
        reached[name] = start + len(whole)
        found += [(name, line) for line in whole.decode(errors="replace").splitlines() if line.strip()]
    return ops.NewLogLines(lines=found, positions=reached)


def _token_fields(each: Token) -> dict[str, Any]:
    """Return the fields of `TokenDetails`."""
    return {
        "name": each.name,
        "created": _at(each.created),
        "expires": None if each.expires is None else _at(each.expires),
        "expired": token_editing.is_expired(each),
        "surfaces": list(each.surfaces),
        "roots": list(each.roots),
        "read_only": each.read_only,
        "rate": each.rate,
    }


def _at(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def _without_secrets(settings: Any) -> Any:
    """Return settings with the values of keys that name secrets replaced."""
    if isinstance(settings, dict):
        return {name: "…" if _is_secret(name) else _without_secrets(value) for name, value in settings.items()}
    return [_without_secrets(each) for each in settings] if isinstance(settings, list) else settings


def _is_secret(name: str) -> bool:
    words = name.lower().replace("-", "_").split("_")
    return any(word in words for word in ("token", "secret", "password", "key", "authorization", "headers", "env"))
