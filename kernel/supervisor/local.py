"""Generations as processes on this machine, forked by a zygote or started from scratch. Linux only (pidfd).

Each process has its own session and process group, dies with the kernel, and is watched through a pidfd.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from kernel.chronicle.isolation import keep_running, run_isolated
from kernel.configure.spec import ServiceSpec, ZygoteSpec
from kernel.supervisor.placement import Exit, Running
from kernel.supervisor.processes import (
    STOPPED,
    Activity,
    OomCounter,
    Reaper,
    activity,
    become_subreaper,
    memory_bytes,
    progress_of,
)
from kernel.supervisor.service_log import ServiceLog
from kernel.supervisor.spawn import SERVICE, Prestarted, SpawnError, settle, spawn
from kernel.supervisor.standby import Standby
from kernel.supervisor.start_queue import StartQueue
from kernel.supervisor.zygote import Zygote, ZygoteDown, ZygoteReport
from proto.wire import frames
from proto.wire.channel import Link, SocketLink, socket_pair
from proto.wire.launch import EXIT_PROGRAM_KILLED, LaunchConfig

LINK_MESSAGE_BYTES = 4 * frames.PART_BYTES
"""Maximum size of a message on the link: a part and its frame. Our services send nothing longer."""

TURN_S = 0.5
"""How long a starting service has a core to itself, unless it is ready earlier."""

LOOK_INTERVAL_S = 1.0
"""Interval between checks for zombies and for zygotes that are not needed. Neither is urgent."""

_log = logging.getLogger("linckia.supervisor")


@dataclass(slots=True)
class LocalProcess:
    """`placement.Running`: one process of this machine."""

    pid: int
    how: str
    link: Link
    pidfd: int
    log: ServiceLog
    reaper: Reaper
    oom: OomCounter
    popen: subprocess.Popen[bytes] | None
    on_ready: Callable[[], None]
    on_use: Callable[[], None]
    handoff: socket.socket | None = None
    oom_kills: int = 0
    node: str = field(default="", init=False)
    exit: Exit | None = field(default=None, init=False)

    async def wait(self) -> Exit:
        if self.exit is None:
            await trio.lowlevel.wait_readable(self.pidfd)
            self.exit = self._collect()
        return self.exit

    def _collect(self) -> Exit:
        # The group's number cannot be reused while this process is a zombie.
        self._kill_group()
        try:
            result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        except ChildProcessError:
            # Another part of this process collected it. It is certainly dead.
            result = None
        self.reaper.buried(self.pid)
        last_words = self.log.last_words()
        if result is None:
            ended = Exit(last_words=last_words)
        elif result.si_code == os.CLD_EXITED:
            oom = result.si_status == EXIT_PROGRAM_KILLED and self.oom.read() > self.oom_kills
            ended = Exit(code=result.si_status, oom=oom, last_words=last_words)
        else:
            oom = result.si_status == signal.SIGKILL and self.oom.read() > self.oom_kills
            ended = Exit(signal=result.si_status, oom=oom, last_words=last_words)
        if self.popen is not None:
            # So that `subprocess` does not wait for it.
            self.popen.returncode = ended.code if ended.code is not None else -(ended.signal or 0)
        self.log.note(f"process {self.pid} ended: {msgspec.json.encode(ended).decode()}")
        return ended

    def became_ready(self) -> None:
        self.on_ready()

    def said_bye(self) -> None:
        """No-op: the system reports how it ends."""

    def signal(self, number: int) -> None:
        if self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)
                # A stopped process handles signals only after it is continued.
                signal.pidfd_send_signal(self.pidfd, signal.SIGCONT)

    def kill(self) -> None:
        if self.exit is None:
            self._kill_group()
            with contextlib.suppress(ProcessLookupError):
                # Its process group may not exist yet.
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def is_stopped(self) -> bool:
        return progress_of(self.pid)[0] == STOPPED

    def activity(self) -> Activity | None:
        return activity(self.pid)

    def memory_bytes(self) -> int | None:
        return memory_bytes(self.pid)

    async def tend(self, used: bool) -> None:
        if used:
            self.on_use()
        # Kills counted so far hit other processes.
        self.oom_kills = self.oom.read()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        self.link.close()
        if self.handoff is not None:
            self.handoff.close()
        os.close(self.pidfd)


class LocalPlacement:
    """`placement.Placement` for this machine.

    `log_dir` holds NAME.log for each service. `prestarted` becomes the first front. First starts follow `order`, except
    that services somebody waits for go first. `pause` waits between two checks for zombies.
    """

    def __init__(
        self,
        zygotes: tuple[ZygoteSpec, ...],
        log_dir: Path,
        prestarted: Prestarted | None = None,
        order: Sequence[str] = (),
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._log_dir = log_dir
        self._pause = pause
        self._prestarted = prestarted
        self.reaper = Reaper()
        if prestarted is not None:
            self.reaper.own.add(prestarted.process.pid)
        self._oom = OomCounter()
        self._standbys: dict[str, Standby] = {}
        """Keyed by service name."""
        # At start-up, the quick zygotes must not compete for cores with the one that loads for seconds.
        cores = os.cpu_count() or 1
        self._loading = StartQueue([spec.name for spec in zygotes], max(1, cores - 1))
        self._starting = StartQueue(order, max(1, cores - 1))
        self._prioritized: set[str] = set()
        self.zygotes = {spec.name: Zygote(spec, log_dir, self.reaper, self._loading) for spec in zygotes}
        self._logs: dict[str, ServiceLog] = {}
        self._log_scopes: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        become_subreaper()
        self._log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._close_logs)
            stack.callback(self.reaper.end_all_strays)
            nursery = await stack.enter_async_context(trio.open_nursery())
            self._nursery = nursery
            for index, zygote in enumerate(self.zygotes.values()):
                nursery.start_soon(keep_running, f"zygote {zygote.spec.name}", zygote.run)
                if index == 0:
                    # Loads in parallel with the first front, which all services wait for.
                    nursery.start_soon(zygote.until_ready, math.inf)
            task_status.started()
            await keep_running("the periodic check of processes", self._look_after)

    async def _look_after(self) -> None:
        while True:
            await self._pause(LOOK_INTERVAL_S)
            self.reaper.collect(trio.current_time())
            for zygote in self.zygotes.values():
                zygote.rest_if_unneeded()

    def _close_logs(self) -> None:
        while self._logs:
            self._logs.popitem()[1].close()

    def _take_prestarted(self, spec: ServiceSpec) -> Prestarted | None:
        """Return the prestarted process, once, to a start that it is suitable for."""
        if not spec.handoff or spec.env:
            return None
        prestarted, self._prestarted = self._prestarted, None
        return prestarted

    def _log_of(self, spec: ServiceSpec, pipe: tuple[int, int] | None) -> ServiceLog:
        """Return the service's log, which all its generations share: a standby writes to it before its turn."""
        log = self._logs.get(spec.name)
        if log is None:
            log = self._logs[spec.name] = ServiceLog(self._log_dir, spec.name, spec.log_max_bytes, pipe)
            assert self._nursery is not None, "`run` comes first"
            scope = self._log_scopes[spec.name] = trio.CancelScope()
            self._nursery.start_soon(self._write_log, spec.name, log, scope)
        return log

    async def _write_log(self, name: str, log: ServiceLog, scope: trio.CancelScope) -> None:
        with scope:
            await keep_running(f"the log of {name}", log.run)
        # Only if the service was removed; otherwise the logs are open until the end.
        log.close()

    async def start(self, spec: ServiceSpec, launch: LaunchConfig) -> Running:
        zygote = self.zygotes.get(spec.zygote or "")
        if zygote is not None:
            zygote.needed_by.add(spec.name)
            if spec.name in self._prioritized:
                self._loading.prioritize(zygote.spec.name)
        prestarted = self._take_prestarted(spec)
        pair: Callable[[], tuple[socket.socket, socket.socket]]
        open_link: Callable[..., Link]
        if spec.handoff:
            # The kernel passes descriptors to the front alongside messages.
            pair, open_link = socket_pair, SocketLink
        else:
            from proto.wire.nng_link import NngLink, stream_pair

            pair, open_link = stream_pair, NngLink.inherited
        ours, theirs = prestarted.link if prestarted is not None else pair()
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as given:
            on_failure.callback(ours.close)
            given.enter_context(theirs)
            handoff = None
            if spec.handoff:
                handoff, end = prestarted.handoff if prestarted is not None else socket_pair()
                on_failure.callback(handoff.close)
                given.enter_context(end)
            try:
                log = self._log_of(spec, prestarted.log if prestarted is not None else None)
                descriptors = (theirs.fileno(), log.fd, *([end.fileno()] if handoff is not None else []))
                pid, how, popen = await self._start(spec, launch, zygote, descriptors, log, prestarted)
            except OSError as error:
                raise SpawnError(f"{spec.name} could not be started: {error}") from error
            self.reaper.own.add(pid)
            pidfd = os.pidfd_open(pid)
            settle(pid, spec.oom_score_adj)
            log.note(f"{spec.name} generation {launch.generation} started by {how} as process {pid}")
            link = open_link(ours.detach(), max_message_bytes=LINK_MESSAGE_BYTES)
            on_failure.pop_all()
        if spec.handoff:
            # The front, which clients wait for, does not wait for nng. The kernel loads it while the front starts.
            import proto.wire.nng_link  # noqa: F401  # for the links to all other services

        def expect_the_next() -> None:
            self._starting.end(spec.name)
            if zygote is not None and spec.standby and self._nursery is not None:
                self._dismiss_standby(spec.name)
                standby = self._standbys[spec.name] = Standby(spec, launch, zygote, self.reaper, log.fd)
                self._nursery.start_soon(run_isolated, f"the standby of {spec.name}", standby.run)

        return LocalProcess(
            pid, how, link, pidfd, log, self.reaper, self._oom, popen,
            on_ready=expect_the_next,
            on_use=lambda: self._standbys[spec.name].called() if spec.name in self._standbys else None,
            handoff=handoff,
            oom_kills=self._oom.read(),
        )  # fmt: skip

    async def _start(
        self,
        spec: ServiceSpec,
        launch: LaunchConfig,
        zygote: Zygote | None,
        descriptors: tuple[int, ...],
        log: ServiceLog,
        prestarted: Prestarted | None,
    ) -> tuple[int, str, subprocess.Popen[bytes] | None]:
        """Return the pid, how the process was started, and its `Popen` if it has one."""
        await trio.lowlevel.checkpoint()
        if prestarted is not None:
            if (process := prestarted.configure(msgspec.json.encode(launch))) is not None:
                return process.pid, "prestart", process
            self.reaper.buried(prestarted.process.pid)
        if launch.generation == 1:
            await self._turn_of(spec, zygote)
        standby = self._standbys.get(spec.name)
        if standby is not None and (pid := standby.take(launch, descriptors)) is not None:
            return pid, "standby", None
        self._dismiss_standby(spec.name)
        if zygote is not None:
            try:
                wait_s = _wait_s(spec, zygote)
                return await zygote.fork(launch, spec.env, descriptors, wait_s=wait_s), "zygote", None
            except ZygoteDown as error:
                _log.warning("%s is started from scratch: %s", spec.name, error)
        process = spawn(
            SERVICE, (descriptors[0], *descriptors[2:]), msgspec.json.encode(launch),
            env=spec.env, log_fd=log.fd, folder=self._log_dir, oom_score_adj=spec.oom_score_adj,
        )  # fmt: skip
        return process.pid, "exec", process

    async def _turn_of(self, spec: ServiceSpec, zygote: Zygote | None) -> None:
        """Wait until the first generation may start."""
        if zygote is not None:
            await zygote.until_ready(_wait_s(spec, zygote))
        await self._starting.begin(spec.name)
        assert self._nursery is not None, "`run` comes first"
        self._nursery.start_soon(self._pass_on, spec.name)

    async def _pass_on(self, service: str) -> None:
        await trio.sleep(TURN_S)
        self._starting.end(service)

    def prioritize(self, service: str) -> None:
        if service not in self._prioritized:
            self._prioritized.add(service)
            self._starting.prioritize(service)
            for zygote in self.zygotes.values():
                if service in zygote.needed_by:
                    self._loading.prioritize(zygote.spec.name)

    def _dismiss_standby(self, service: str) -> None:
        if (standby := self._standbys.pop(service, None)) is not None:
            standby.scope.cancel()

    def zygote_reports(self) -> tuple[ZygoteReport, ...]:
        return tuple(zygote.report() for zygote in self.zygotes.values())

    def status(self) -> None:
        """Return None: this machine is no cluster."""

    def dismiss(self, service: str) -> None:
        self._dismiss_standby(service)
        for zygote in self.zygotes.values():
            zygote.no_longer_needed_by(service)

    def forget(self, service: str) -> None:
        self.dismiss(service)
        self._prioritized.discard(service)
        self._starting.forget(service)
        if self._logs.pop(service, None) is not None:
            self._log_scopes.pop(service).cancel()

    def renew_log(self, service: str) -> None:
        if (log := self._logs.get(service)) is not None:
            log.renew()

    def standby_pid(self, service: str) -> int | None:
        standby = self._standbys.get(service)
        return standby.pid if standby is not None else None


def _wait_s(spec: ServiceSpec, zygote: Zygote) -> float:
    """Return how long a start waits for the zygote."""
    return zygote.spec.wait_s if spec.zygote_wait_s is None else spec.zygote_wait_s
