"""The operations that the kernel itself handles: status, and control of the services."""

from __future__ import annotations

import datetime
import os
import time
import urllib.parse
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import trio

from kernel import VERSION
from kernel.chronicle.audit import Audit, AuditEntry, now
from kernel.chronicle.trends import Trends
from kernel.configure.config import STANDS_BY, Config, ConfigError
from kernel.configure.tokens import CannotRead, LiveTokens
from kernel.control.handoff import Handoff
from kernel.control.mounts import LiveMounts
from kernel.control.schedule import Schedule
from kernel.router.generation import MAX_DECODED_BYTES, Reports, ServiceState, Undecoded, answering, served
from kernel.router.mandates import Mandates
from kernel.router.ports import CauseKind, Injector, LocalHandler
from kernel.router.record import who
from kernel.router.router import Router
from kernel.supervisor import processes
from kernel.supervisor.supervisor import Supervisor
from proto.control.address import last_lines, log_dir
from proto.errors import Forbidden, InvalidParams, OperationError, Unavailable
from proto.grants import TokenTable
from proto.http import CONTENT_PATH
from proto.later import filled
from proto.mounts import TOOLS_CALL, MountRequest, MountTable
from proto.operation import CLIENT, OPERATOR, Operation, Params, Role
from proto.ops import kernel as ops
from proto.origin import Mandated, Origin
from proto.wire import frames
from proto.wire.front import OFF
from proto.wire.front import SERVICE as FRONT

S = TypeVar("S", bound=msgspec.Struct)

_TOOLS = (Role.TOOL, Role.STEP)

SHARES_FRESH_S = 1.0

SHARES_COST = 0.004
"""Share of a processor for measuring PSS: one pass over all processes takes 0.1 s, and some clients ask constantly."""

LATE_S = 0.02
"""Turns longer than this are counted: clients would notice a few of them in a row."""

SAMPLE_S = 0.005
MINUTE_S = 60.0

_SETTLED = (ServiceState.READY, ServiceState.FAILED, ServiceState.STOPPED)


class Lateness(trio.abc.Instrument):
    """Measures how late the kernel's event loop is: its longest turn, since events that arrive during one have to wait.

    A turn is what trio runs between two waits for I/O. Its wall time includes time that the system gave to other
    processes; its processor time is the kernel's own work. Reading that clock costs as much as a short turn, so it is
    read before a turn only every `SAMPLE_S`, and after each long turn, whose processor time is overestimated by that
    much at most. `worst_s` and `worst_cpu_s` cover the last full minute and the current one.
    """

    def __init__(self) -> None:
        self.late = 0
        """Number of turns so far whose processor time exceeded `LATE_S`."""
        self._began = self._sampled = self._minute = time.monotonic()
        self._cpu = time.thread_time()
        self._worst = self._worst_cpu = 0.0
        self._before = (0.0, 0.0)

    def after_io_wait(self, timeout: float) -> None:
        self._began = now = time.monotonic()
        if now - self._sampled >= SAMPLE_S:
            self._sampled, self._cpu = now, time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        now = time.monotonic()
        wall = now - self._began
        if now - self._minute >= MINUTE_S:
            self._minute, self._before = now, (self._worst, self._worst_cpu)
            self._worst = self._worst_cpu = 0.0
        self._worst = max(self._worst, wall)
        if wall > self._worst_cpu or wall > LATE_S:
            cpu = min(wall, time.thread_time() - self._cpu)
            self._worst_cpu = max(cpu, self._worst_cpu)
            self.late += cpu > LATE_S

    @property
    def worst_s(self) -> float:
        return max(self._worst, self._before[0])

    @property
    def worst_cpu_s(self) -> float:
        return max(self._worst_cpu, self._before[1])


@dataclass(kw_only=True, eq=False)
class KernelOperations:
    """Handlers for the operations in `proto.ops.kernel`; the URLs are None until HTTP is served."""

    config: Config
    router: Router
    supervisor: Supervisor
    tokens: LiveTokens
    handoff: Handoff
    mandates: Mandates
    mounts: LiveMounts
    read_settings: Callable[[], Config]
    shut_down: Callable[[], None]
    schedule: Schedule
    trends: Trends
    audit: Audit | None
    page_key: str
    injector: Injector | None
    http_url: str | None = None

    def __post_init__(self) -> None:
        self._started_at = datetime.datetime.now(datetime.UTC)
        self._started = trio.current_time()
        self._lateness = Lateness()
        trio.lowlevel.add_instrument(self._lateness)
        self._shares: dict[int, int | None] = {}
        self._shares_until = float("-inf")
        handlers: dict[type[Params[Any]], LocalHandler] = {
            ops.KernelStatusParams: self._status,
            ops.KernelRestart: self._restart,
            ops.ServicesRestart: self._restart_for_client,
            ops.KernelStart: self._start,
            ops.KernelStop: self._stop,
            ops.KernelLogs: self._logs,
            ops.KernelShutdown: self._shutdown,
            ops.KernelContentUrl: self._content_url,
            ops.KernelMandate: self._mandate,
            ops.KernelCall: self._call,
            ops.KernelNameCall: self._name_call,
            ops.KernelTakeOver: self._take_over,
            ops.KernelFiguresParams: self._figures,
            ops.KernelReady: self._ready,
            ops.KernelTokens: self._tokens_after,
            ops.KernelTokensChanged: self._tokens_changed,
            ops.KernelMounts: self._mounts_after,
            ops.KernelReloadMounts: self._reload_mounts,
            ops.KernelKeepSession: self._keep_session,
            ops.KernelKeptSession: self._kept_session,
            ops.KernelRefused: self._refused,
            ops.KernelBackup: self._backup,
        }
        if self.injector is not None:
            handlers |= self.injector.handlers(self.supervisor.known)
        self.router.serve_local(handlers)

    async def _status(self, params: ops.KernelStatusParams, caller: str) -> ops.KernelStatus:
        return await self.status(caller)

    async def status(self, caller: str = OPERATOR) -> ops.KernelStatus:
        """Return the report for a client or the operator."""
        pid = os.getpid()
        report = self.supervisor.status()
        running = [*(each.pid for each in report.services), *(each.pid for each in report.zygotes)]
        running += [each.standby_pid for each in report.services]
        pids = {pid, *(each for each in running if each is not None)}
        with_programs = {each.pid for each in report.services if each.programs}
        shares = await self._shares_of(pids, with_programs)
        return ops.KernelStatus(
            version=VERSION,
            pid=pid,
            started_at=self._started_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            uptime_s=trio.current_time() - self._started,
            data_dir=str(self.config.data_dir),
            roots=[str(root) for root in self.config.roots],
            read_only_roots=[str(root) for root in self.config.read_only_roots],
            read_only=self.config.read_only,
            packages=list(self.config.packages),
            http_url=self.http_url,
            # Its address lets the bearer restart services.
            page_url=self.page_url if caller == OPERATOR else None,
            token=self._token if caller == OPERATOR else None,
            open=self._is_open,
            clients=self.handoff.clients,
            audit=None if self.audit is None else self.audit.state,
            backup=await self.schedule.status(),
            rss_bytes=processes.resident_bytes(pid) or 0,
            pss_bytes=shares[pid],
            total_pss_bytes=sum(shares[each] or 0 for each in pids),
            services=[
                _as(ops.ServiceStatus, each, pss_bytes=shares.get(each.pid or 0), **self._waiting(each.name))
                for each in report.services
            ],
            zygotes=[_as(ops.ZygoteStatus, each, pss_bytes=shares.get(each.pid or 0)) for each in report.zygotes],
            trends=self.trends.trends(),
            cluster=report.cluster,
        )

    async def _shares_of(self, pids: set[int], with_programs: Container[int | None]) -> Mapping[int, int | None]:
        """Return the PSS of processes, possibly some seconds old, since clients ask for the status often.

        `with_programs` are those whose child processes are included.
        """

        def share(pid: int) -> int | None:
            return processes.total(processes.proportional_bytes, pid, with_programs=pid in with_programs)

        if (now := trio.current_time()) >= self._shares_until:
            self._shares, self._shares_until = {}, now + SHARES_FRESH_S
        shares = self._shares
        if missing := pids - shares.keys():
            began = trio.current_time()
            # Takes milliseconds for every process, so it runs outside the event loop.
            shares |= await trio.to_thread.run_sync(lambda: {pid: share(pid) for pid in missing})
            ended = trio.current_time()
            self._shares_until = max(self._shares_until, ended + (ended - began) / SHARES_COST)
        return shares

    @property
    def page_url(self) -> str | None:
        """URL of the operator's page, with its key and the token after the #: browsers do not send that part."""
        if self.http_url is None:
            return None
        token = "" if self._token is None else f".{urllib.parse.quote(self._token, safe='').replace('.', '%2E')}"
        return f"{self.http_url.removesuffix('/mcp')}/#{self.page_key}{token}"

    @property
    def _is_open(self) -> bool:
        return self.config.http is not None and self.config.http.token == OFF

    @property
    def _token(self) -> str | None:
        return None if self.config.http is None or self._is_open else self.config.http.token

    async def _ready(self, params: ops.KernelReady, caller: str) -> bool:
        settled = (ServiceState.READY, ServiceState.STOPPED, ServiceState.RESTING)
        # A mounted server that cannot start does not make the rest unready.
        own = (name for name in self.supervisor.plan.specs if name not in self.mounts)
        if not all(self.supervisor.state(name) in settled for name in own):
            return False
        # Another kernel serves what these stand by for.
        return not any(STANDS_BY in self.supervisor.info(name) for name in self.supervisor.plan.specs)

    async def _mounts_after(self, params: ops.KernelMounts, caller: str) -> MountTable:
        return await self.mounts.after(params.version)

    async def _reload_mounts(self, params: ops.KernelReloadMounts, caller: str) -> ops.MountsReloaded:
        try:
            return await self.mounts.reload()
        except ConfigError as error:
            raise InvalidParams(f"nothing was changed: {error}") from None

    async def _tokens_after(self, params: ops.KernelTokens, caller: str) -> TokenTable:
        return await self.tokens.after(params.version, params.front)

    async def _tokens_changed(self, params: ops.KernelTokensChanged, caller: str) -> ops.Done:
        try:
            applied = await self.tokens.reload()
        except CannotRead as error:
            raise OperationError(str(error)) from None
        return ops.Done(message="in force" if applied else "in force once an unresponsive front has been replaced")

    async def _keep_session(self, params: ops.KernelKeepSession, caller: str) -> None:
        self.handoff.session_states.keep(params.name, params.state)

    async def _kept_session(self, params: ops.KernelKeptSession, caller: str) -> str | None:
        return self.handoff.session_states.get(params.name)

    async def _figures(self, params: ops.KernelFiguresParams, caller: str) -> ops.KernelFigures:
        report = self.supervisor.status()
        lanes = {
            name: ops.LaneFigures(
                queued=lane.queued, calls=lane.calls, replays=lane.replays, failures=dict(lane.failures)
            )
            for name, lane in self.router.lanes.items()
        }
        return ops.KernelFigures(
            version=VERSION,
            rss_bytes=processes.resident_bytes(os.getpid()) or 0,
            worst_turn_s=self._lateness.worst_s,
            worst_turn_cpu_s=self._lateness.worst_cpu_s,
            late_turns=self._lateness.late,
            backup=await self.schedule.status(),
            services=[
                _as(ops.ServiceFigures, each, pss_bytes=None, **self._waiting(each.name)) for each in report.services
            ],
            lanes=lanes,
            operations=self.router.calls.operations,
            stores={each.name: each.bytes for each in self.trends.trends() if each.bytes is not None},
            zygotes=[
                ops.ZygoteFigures(name=each.name, up=each.pid is not None, deaths=each.deaths)
                for each in report.zygotes
            ],
            cluster=report.cluster,
            states=[state.value for state in ServiceState],
            causes=[cause.value for cause in CauseKind if cause is not CauseKind.RESTED],
        )

    async def _refused(self, params: ops.KernelRefused, caller: str) -> None:
        if self.audit is not None:
            entry = AuditEntry(
                at=now(), who=params.who, operation=params.operation, target=params.target, outcome=params.outcome,
                message=params.message, peer=params.peer, count=params.count,
            )  # fmt: skip
            self.audit.record(entry)

    async def _backup(self, params: ops.KernelBackup, caller: str) -> ops.BackupStatus:
        if self.config.backup is None:
            raise OperationError(
                "the settings name no destination for backups: set `to` in [backup], or use `linckia backup DIR`"
            )
        await self.schedule.now()
        status = await self.schedule.status()
        assert status is not None
        if status.error:
            raise OperationError(status.error)
        return status

    def _waiting(self, name: str) -> dict[str, int]:
        if name not in self.supervisor.plan.specs:
            # It was removed a moment ago.
            return {"in_flight": 0, "queued": 0}
        lane = self.router.lane(name)
        # Queued calls wait for whichever process of a pool is free first.
        return {"in_flight": lane.instances[name].in_flight, "queued": lane.queued if name == lane.service else 0}

    async def _restart(self, params: ops.KernelRestart, caller: str) -> ops.Done:
        if params.service in self.mounts:
            await self._reload_mounts(ops.KernelReloadMounts(), caller)
            if params.service not in self.mounts:
                return ops.Done(message=f"{params.service} is no longer in the settings, and has ended")
        else:
            self._reload_table(params.service)
        # One after the other, so that the other processes of a pool keep serving.
        done = [await self._begun(name, self.supervisor.restart) for name in self._processes_of(params.service)]
        return ops.Done(message="; ".join(done))

    async def _restart_for_client(self, params: ops.ServicesRestart, caller: str) -> ops.Done:
        """Restart what runs or should run, with the settings that it has: anything else is the operator's to decide."""
        names = self._processes_of(params.service)
        service = self.router.lane(params.service).service
        if service == FRONT:
            raise OperationError(
                f"`service`: {service} carries this call, so it cannot be restarted by it; the operator can:"
                f" `linckia restart {service}`",
                field="service",
            )
        if any(self.supervisor.state(name) is ServiceState.STOPPED for name in names):
            raise OperationError(
                f"`service`: the operator has stopped {params.service}, and can start it: `linckia start {service}`",
                field="service",
            )
        done = [await self._begun(name, self.supervisor.restart) for name in names]
        return ops.Done(message="; ".join(done))

    def _reload_table(self, service: str) -> None:
        """Read the service's table in the settings again, which may have changed. Raises InvalidParams."""
        try:
            tables = self.read_settings().services
        except ConfigError as error:
            raise InvalidParams(f"nothing was restarted: {error}") from None
        for table in (self.config.services, tables):
            table.setdefault(service, {})
        self.config.services[service] = tables[service]

    async def _start(self, params: ops.KernelStart, caller: str) -> ops.Done:
        done = [await self._begun(name, self.supervisor.start) for name in self._processes_of(params.service)]
        return ops.Done(message="; ".join(done))

    async def _begun(self, name: str, begin: Callable[[str], None]) -> str:
        """Start the next generation and wait until it is READY; return a message. Raises Unavailable."""
        before = self.supervisor.generation(name)
        if begin == self.supervisor.start:
            match self.supervisor.state(name):
                case ServiceState.READY:
                    return f"{name} was already running"
                case ServiceState.STARTING:
                    # The generation that is starting already is the one to wait for.
                    before -= 1
        begin(name)
        state = await self.supervisor.wait_for(name, _SETTLED, after_generation=before)
        if state is not ServiceState.READY:
            reason = next(report.reason for report in self.supervisor.status().services if report.name == name)
            raise Unavailable(f"{name} is {state}: {reason}; see its log (linckia logs {name})")
        return f"{name} is ready, generation {self.supervisor.generation(name)}"

    async def _stop(self, params: ops.KernelStop, caller: str) -> ops.Done:
        names = self._processes_of(params.service)
        for name in names:
            self.supervisor.stop(name)
        for name in names:
            await self.supervisor.wait_for(name, (ServiceState.STOPPED,), after_generation=-1)
        return ops.Done(message=f"{params.service} is stopped until `linckia start {params.service}`")

    async def _logs(self, params: ops.KernelLogs, caller: str) -> ops.LogLines:
        if params.service != "kernel":
            self.supervisor.known(params.service)
        path = log_dir(self.config.data_dir) / f"{params.service}.log"
        try:
            lines = await trio.to_thread.run_sync(last_lines, path, params.lines) if path.exists() else []
        except OSError as error:
            raise OperationError(f"cannot read {path}: {error.strerror}") from error
        return ops.LogLines(path=str(path), lines=lines)

    async def _shutdown(self, params: ops.KernelShutdown, caller: str) -> ops.Done:
        self.shut_down()
        return ops.Done(message="the kernel is ending")

    async def _content_url(self, params: ops.KernelContentUrl, caller: str) -> str | None:
        url = self.http_url
        return None if url is None else url.removesuffix("/mcp") + CONTENT_PATH

    async def _mandate(self, params: ops.KernelMandate, caller: str) -> list[str]:
        asked = served.get()
        if asked is None or asked.origin.caller not in (CLIENT, OPERATOR):
            raise Forbidden("only a client whose call is being served may ask for later calls")
        if len(asked.params) > MAX_DECODED_BYTES:
            raise InvalidParams(f"{asked.op.name}: parameters of more than {MAX_DECODED_BYTES} bytes")
        given = frames.read_body(asked.params, asked.op.params)
        if params.complete:
            if asked.origin.mandate is not None:
                # No front has seen its parameters, and so none has checked which mounted tools they name.
                raise Forbidden("a call that is made later cannot ask for further ones")
            for call in params.calls:
                self._later(call.operation, call.arguments)
        origin = asked.origin
        return self.mandates.seal(given, params.calls, who(origin), origin.grant, origin.session)

    async def _call(self, params: ops.KernelCall, caller: str) -> ops.KernelCalled:
        mandate = self.mandates.opened(params.mandate)
        arguments = mandate.call.arguments
        if params.entry is not None:
            arguments = filled(arguments, params.entry, "arguments")
        operation, given = self._later(mandate.call.operation, arguments)
        asking = answering.get()
        origin = Origin(
            CLIENT, mandate.session, grant=mandate.grant, key=params.key, mandate=Mandated(mandate.source, mandate.who)
        )
        value = await self.router.call(
            operation, given, origin=origin, written=True,
            client_requests=None if asking is None or asking.progress is None else Reports(asking.progress),
        )  # fmt: skip
        if isinstance(value, Undecoded):
            return ops.KernelCalled(body=bytes(value.body))
        value = frames.Written(bytes(value)) if isinstance(value, msgspec.Raw) else value
        return ops.KernelCalled(body=frames.pack_body(value))

    async def _name_call(self, params: ops.KernelNameCall, caller: str) -> str:
        asking = answering.get()
        if asking is None or asking.maker is None:
            raise Forbidden("only a front may name its calls")
        return self.router.taken_over.name(asking.maker, params.call)

    async def _take_over(self, params: ops.KernelTakeOver, caller: str) -> ops.KernelCalled:
        asking = answering.get()
        if asking is None:
            raise Forbidden("only a service may take over a call")
        maker, report = asking.maker, asking.progress
        # If the service ends, the next generation takes the call over again.
        body = await self.router.taken_over.outcome(
            params.call, params.task, report, is_wanted=lambda: maker is None or not maker.takes_calls
        )
        return ops.KernelCalled(body=bytes(body))

    def _later(self, name: str, arguments: Mapping[str, object]) -> tuple[Operation[Any], Params[Any]]:
        """Return an operation that is called on behalf of a client, and its parameters.

        Raises:
            UnknownOperation, Forbidden, InvalidParams: such a call cannot be made.
        """
        operation = self.router.table.find(name)
        is_tool = operation.role in _TOOLS or (operation.params is MountRequest and _names_tool(arguments))
        # The kernel's own operations control services; the front's need the client's connection.
        if not operation.admits(CLIENT) or operation.service in (ops.SERVICE, FRONT) or not is_tool:
            raise Forbidden(f"{operation.name} may not be called on behalf of a client")
        try:
            return operation, operation.parse(arguments)
        except InvalidParams as error:
            inner = error.failure.field
            where = f"arguments.{inner}" if inner else "arguments"
            raise InvalidParams(f"`arguments` of {operation.name}: {error}", field=where) from None

    def _processes_of(self, name: str) -> list[str]:
        """Return the names of a service's processes, or `name` itself if it is a process. Raises InvalidParams."""
        lane = self.router.lane(self.supervisor.known(name))
        return list(lane.instances) if name == lane.service else [name]


def _names_tool(arguments: Mapping[str, object]) -> bool:
    """Whether the arguments of a `MountRequest` are a call of a tool."""
    return arguments.get("method") == TOOLS_CALL


def _as(tp: type[S], report: msgspec.Struct, **known: int | None) -> S:
    """Convert a report to `tp`, the form for clients, with additional `known` fields."""
    fields = {name: getattr(report, name) for name in tp.__struct_fields__}
    return tp(**{**fields, **known})
