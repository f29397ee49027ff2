"""The operations that the kernel itself answers: status, and a person's hand on the services."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import trio

from kernel.config import Config
from kernel.ports import ServiceState
from kernel.router.router import Router
from kernel.supervisor import procfs
from kernel.supervisor.status import ServiceReport
from kernel.supervisor.supervisor import Supervisor
from kernel.version import VERSION
from proto.errors import Forbidden, InvalidParams, OperationError, Unavailable
from proto.http import CONTENT_PATH
from proto.operation import CLIENT, OPERATOR, Role
from proto.ops.kernel import (
    SERVICE,
    Called,
    ContentUrl,
    Done,
    KernelCall,
    KernelContentUrl,
    KernelLogs,
    KernelRestart,
    KernelShutdown,
    KernelStart,
    KernelStatus,
    KernelStatusParams,
    KernelStop,
    LogLines,
    ServiceStatus,
    ZygoteStatus,
)

_TAIL_BLOCK_BYTES = 64 * 1024

_TOOLS = (Role.TOOL, Role.STEP)

_SETTLED = (ServiceState.READY, ServiceState.FAILED, ServiceState.STOPPED)


class KernelOperations:
    """Handlers of the operations in `proto.ops.kernel`."""

    def __init__(
        self,
        config: Config,
        router: Router,
        supervisor: Supervisor,
        log_dir: Path,
        *,
        clients: Callable[[], int],
        http_url: Callable[[], str | None],
        page_url: Callable[[], str | None],
        shut_down: Callable[[], None],
    ) -> None:
        self._config = config
        self._router = router
        self._supervisor = supervisor
        self._log_dir = log_dir
        self._clients = clients
        self._http_url = http_url
        self._page_url = page_url
        self._shut_down = shut_down
        self._started_at = datetime.datetime.now(datetime.UTC)
        self._started = trio.current_time()

    def register(self) -> None:
        """Have the router answer these operations here."""
        serve = self._router.serve_local
        serve("kernel_status", self._status)
        serve("kernel_restart", self._restart)
        serve("kernel_start", self._start)
        serve("kernel_stop", self._stop)
        serve("kernel_logs", self._logs)
        serve("kernel_shutdown", self._shutdown)
        serve("kernel_content_url", self._content_url)
        serve("kernel_call", self._call)

    async def _status(self, params: KernelStatusParams, caller: str) -> KernelStatus:
        pid = os.getpid()
        report = self._supervisor.status()
        running = [*(s.pid for s in report.services), *(z.pid for z in report.zygotes)]
        pids = [found for found in running if found is not None]
        # Walks the page tables of every process: milliseconds that the event loop has not.
        shares = await trio.to_thread.run_sync(_proportional_bytes, (pid, *pids))
        return KernelStatus(
            version=VERSION,
            pid=pid,
            started_at=self._started_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            uptime_s=trio.current_time() - self._started,
            data_dir=str(self._config.data_dir),
            roots=[str(root) for root in self._config.roots],
            http_url=self._http_url(),
            # With it one may restart services.
            page_url=self._page_url() if caller == OPERATOR else None,
            clients=self._clients(),
            rss_bytes=procfs.resident_bytes(pid) or 0,
            pss_bytes=shares[pid],
            services=[self._service(service, shares) for service in report.services],
            zygotes=[
                ZygoteStatus(
                    name=zygote.name,
                    state=zygote.state,
                    pid=zygote.pid,
                    rss_bytes=procfs.resident_bytes(zygote.pid) if zygote.pid else None,
                    pss_bytes=shares.get(zygote.pid) if zygote.pid else None,
                    load_ms=zygote.load_ms,
                )
                for zygote in report.zygotes
            ],
        )

    def _service(self, report: ServiceReport, shares: Mapping[int, int | None]) -> ServiceStatus:
        lane = self._router.lane(report.name)
        last = report.recoveries[-1] if report.recoveries else None
        return ServiceStatus(
            name=report.name,
            state=report.state.value,
            reason=report.reason,
            generation=report.generation,
            pid=report.pid,
            standby_pid=report.standby_pid,
            mode=report.mode,
            uptime_s=report.uptime_s,
            restarts=report.restarts,
            deaths=report.deaths,
            last_death="" if report.last_death is None else report.last_death.text or report.last_death.kind.value,
            rss_bytes=report.rss_bytes,
            pss_bytes=shares.get(report.pid) if report.pid else None,
            in_flight=lane.in_flight_of(report.name),
            # Those who wait are waiting for whichever of a pool comes first.
            queued=lane.queued if report.name == lane.service else 0,
            retry_in_s=report.retry_in_s,
            recovery_ms=None if last is None else last.ready_ms,
            info=report.info,
        )

    async def _restart(self, params: KernelRestart, caller: str) -> Done:
        self._known(params.service)
        done: list[Done] = []
        # One after the other: those of a pool that are not its turn go on answering.
        for name in self._processes_of(params.service):
            before = self._supervisor.generation(name)
            self._supervisor.restart(name)
            done.append(await self._until_ready(name, before))
        return _all(done)

    async def _start(self, params: KernelStart, caller: str) -> Done:
        self._known(params.service)
        done: list[Done] = []
        for name in self._processes_of(params.service):
            if self._supervisor.state(name) is ServiceState.READY:
                done.append(Done(message=f"{name} was running already"))
                continue
            before = self._supervisor.generation(name)
            self._supervisor.start(name)
            done.append(await self._until_ready(name, before))
        return _all(done)

    async def _until_ready(self, name: str, after_generation: int) -> Done:
        state = await self._supervisor.wait_for(name, _SETTLED, after_generation=after_generation)
        if state is not ServiceState.READY:
            reason = next(report.reason for report in self._supervisor.status().services if report.name == name)
            raise Unavailable(f"{name} is {state}: {reason}; its log says more (linckia logs {name})")
        return Done(message=f"{name} is ready, generation {self._supervisor.generation(name)}")

    async def _stop(self, params: KernelStop, caller: str) -> Done:
        self._known(params.service)
        names = self._processes_of(params.service)
        for name in names:
            self._supervisor.stop(name)
        for name in names:
            await self._supervisor.wait_for(name, (ServiceState.STOPPED,), after_generation=-1)
        return Done(message=f"{params.service} is stopped, until `linckia start {params.service}`")

    async def _logs(self, params: KernelLogs, caller: str) -> LogLines:
        if params.service != "kernel":
            self._known(params.service)
        path = self._log_dir / f"{params.service}.log"
        try:
            lines = await trio.to_thread.run_sync(_tail, path, params.lines)
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise OperationError(f"cannot read {path}: {error.strerror}") from error
        return LogLines(path=str(path), lines=lines)

    async def _shutdown(self, params: KernelShutdown, caller: str) -> Done:
        self._shut_down()
        return Done(message="the kernel is ending")

    async def _content_url(self, params: KernelContentUrl, caller: str) -> ContentUrl:
        url = self._http_url()
        return ContentUrl(url=None if url is None else url.removesuffix("/mcp") + CONTENT_PATH)

    async def _call(self, params: KernelCall, caller: str) -> Called:
        operation = self._router.operation(params.operation)
        # The kernel's own are a person's hand on the services, or need the client's connection.
        if not operation.admits(CLIENT) or operation.service == SERVICE or operation.role not in _TOOLS:
            raise Forbidden(f"{operation.name} may not be called on behalf of a client")
        return Called(result=await self._router.call(operation, operation.parse(params.arguments), caller=CLIENT))

    def _processes_of(self, name: str) -> list[str]:
        """All of the pool that a service's name stands for; one process where it names a process."""
        lane = self._router.lane(name)
        return list(lane.instances) if name == lane.service else [name]

    def _known(self, name: str) -> None:
        names = [report.name for report in self._supervisor.status().services]
        if name not in names:
            raise InvalidParams(f"there is no service {name!r}; services: {', '.join(names)}", field="service")


def _all(done: Sequence[Done]) -> Done:
    return Done(message="; ".join(each.message for each in done))


def _proportional_bytes(pids: tuple[int, ...]) -> dict[int, int | None]:
    return {pid: procfs.proportional_bytes(pid) for pid in pids}


def _tail(path: Path, count: int) -> list[str]:
    """The last `count` lines of a file, reading only its end."""
    with path.open("rb") as file:
        position = file.seek(0, os.SEEK_END)
        data = b""
        while position > 0 and data.count(b"\n") <= count:
            step = min(_TAIL_BLOCK_BYTES, position)
            position -= step
            file.seek(position)
            data = file.read(step) + data
    return data.decode("utf-8", "replace").removesuffix("\n").split("\n")[-count:]
