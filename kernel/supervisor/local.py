"""Generations as processes of this machine, forked by a zygote or started from nothing.  Linux only (pidfd).

Every process has a session and a process group of its own, dies with the kernel, and is watched by a pidfd, which tells
of its death within a millisecond and cannot be confused by a number used again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import trio

from kernel.supervisor import procfs
from kernel.supervisor.logs import ServiceLog
from kernel.supervisor.placement import Exit, Running, SpawnError
from kernel.supervisor.procfs import OomCounter
from kernel.supervisor.reaper import Reaper, become_subreaper
from kernel.supervisor.spawn import settle, spawn
from kernel.supervisor.spec import ServiceSpec, ZygoteSpec
from kernel.supervisor.standby import AT_FIRST_S, Standbys
from kernel.supervisor.status import ZygoteReport
from kernel.supervisor.zygote import LoadingOrder, Zygote, ZygoteDown
from proto import frames
from proto.birth import Birth
from proto.link import Link, NngLink, socket_pair

LINK_MESSAGE_BYTES = 4 * frames.PART_BYTES
"""No message on the link is longer than a part and its frame; anything longer is not ours."""

_log = logging.getLogger("linckia.supervisor")


class LocalProcess:
    """`placement.Running`: one process of this machine."""

    def __init__(
        self, pid: int, pidfd: int, how: str, link: Link, log: ServiceLog, reaper: Reaper, oom: OomCounter,
        popen: subprocess.Popen[bytes] | None, on_ready: Callable[[ServiceLog], None], on_use: Callable[[], None],
    ) -> None:  # fmt: skip
        self.pid = pid
        self.how = how
        self.link = link
        self._pidfd = pidfd
        self._log = log
        self._reaper = reaper
        self._oom = oom
        self._oom_kills = oom.read()
        self._popen = popen
        self._exit: Exit | None = None
        self._on_ready = on_ready
        self._on_use = on_use

    async def wait(self) -> Exit:
        if self._exit is None:
            await trio.lowlevel.wait_readable(self._pidfd)
            self._exit = self._collect()
        return self._exit

    def _collect(self) -> Exit:
        # While it is a zombie, the number of its group cannot belong to anybody else.
        self._kill_group()
        try:
            result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        except ChildProcessError:
            # Another part of this process collected it; that it is dead is certain all the same.
            result = None
        self._reaper.own.discard(self.pid)
        self._reaper.left_behind(self.pid)
        last_words = self._log.last_words()
        if result is None:
            ended = Exit(last_words=last_words)
        elif result.si_code == os.CLD_EXITED:
            ended = Exit(code=result.si_status, last_words=last_words)
        else:
            oom = result.si_status == signal.SIGKILL and self._oom.read() > self._oom_kills
            ended = Exit(signal=result.si_status, oom=oom, last_words=last_words)
        if self._popen is not None:
            # So that `subprocess` does not look for it any more.
            self._popen.returncode = ended.code if ended.code is not None else -(ended.signal or 0)
        self._log.note(f"process {self.pid} ended: {msgspec.json.encode(ended).decode()}")
        return ended

    def became_ready(self) -> None:
        self._on_ready(self._log)

    def was_used(self) -> None:
        self._on_use()

    def signal(self, number: int) -> None:
        if self._exit is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
                # A process that was stopped takes signals only once it is continued.
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def kill(self) -> None:
        if self._exit is None:
            self._kill_group()
            with contextlib.suppress(ProcessLookupError):
                # It may not have made its group yet.
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def memory_bytes(self) -> int | None:
        return procfs.memory_bytes(self.pid)

    async def tend(self) -> None:
        # Kills up to now were others'.
        self._oom_kills = self._oom.read()
        await self._log.tend()

    def close(self) -> None:
        self.link.close()
        self._log.close()
        os.close(self._pidfd)


class LocalPlacement:
    """`placement.Placement`: `log_dir` holds NAME.log of each service."""

    def __init__(self, zygotes: tuple[ZygoteSpec, ...], log_dir: Path, *, standby_first_s: float = AT_FIRST_S) -> None:
        self._log_dir = log_dir
        self._standby_first_s = standby_first_s
        self._reaper = Reaper()
        self._oom = OomCounter()
        # At the start, the quick zygotes must not wait for processors with the one that loads for seconds.
        loading = LoadingOrder([spec.name for spec in zygotes], max(1, (os.cpu_count() or 1) - 1))
        self._standbys: Standbys | None = None
        self.zygotes: dict[str, Zygote] = {}
        for spec in zygotes:
            self.zygotes[spec.name] = Zygote(spec, log_dir, self._reaper, loading)
        self._forked: dict[str, set[str]] = {name: set() for name in self.zygotes}
        """By zygote, its services that run or will soon."""
        self._turns: Counter[str] = Counter()
        """By zygote, how often the last of those was ended."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        become_subreaper()
        self._log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._standbys = Standbys(self._reaper, nursery, self._standby_first_s)
            nursery.start_soon(self._reaper.run)
            for zygote in self.zygotes.values():
                nursery.start_soon(zygote.run)
            task_status.started()

    async def start(self, spec: ServiceSpec, birth: Birth) -> Running:
        if spec.zygote in self._forked:
            self._forked[spec.zygote].add(spec.name)
        ours, theirs = socket_pair()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            with theirs:
                try:
                    log = ServiceLog(self._log_dir, spec.name, spec.log_max_bytes)
                    on_failure.callback(log.close)
                    pid, how, popen = await self._start(spec, birth, theirs.fileno(), log)
                except OSError as error:
                    raise SpawnError(f"{spec.name} could not be started: {error}") from error
            self._reaper.own.add(pid)
            pidfd = os.pidfd_open(pid)
            settle(pid, spec.oom_score_adj)
            log.note(f"{spec.name} generation {birth.generation} started by {how} as process {pid}")
            link = NngLink(ours.detach(), max_message_bytes=LINK_MESSAGE_BYTES)
            on_failure.pop_all()
        on_ready = partial(self._expect_the_next, spec, birth)
        on_use = partial(self._was_used, spec.name)
        return LocalProcess(pid, pidfd, how, link, log, self._reaper, self._oom, popen, on_ready, on_use)

    def _expect_the_next(self, spec: ServiceSpec, birth: Birth, log: ServiceLog) -> None:
        zygote = self.zygotes.get(spec.zygote) if spec.zygote is not None else None
        if self._standbys is not None and zygote is not None and spec.standby:
            self._standbys.keep(spec, birth, zygote, log.fd)

    def _was_used(self, service: str) -> None:
        if self._standbys is not None:
            self._standbys.called(service)

    def dismiss(self, service: str) -> None:
        if self._standbys is not None:
            self._standbys.dismiss(service)
        for name, services in self._forked.items():
            if service in services:
                services.discard(service)
                after_s = self.zygotes[name].spec.rests_after_s
                if not services and after_s is not None and self._nursery is not None:
                    self._turns[name] += 1
                    self._nursery.start_soon(self._rest_later, name, after_s, self._turns[name])

    async def _rest_later(self, name: str, after_s: float, turn: int) -> None:
        if after_s:
            await trio.sleep(after_s)
        if not self._forked[name] and self._turns[name] == turn:
            self.zygotes[name].rest()

    def standby_pid(self, service: str) -> int | None:
        return self._standbys.pid_of(service) if self._standbys is not None else None

    async def _start(
        self, spec: ServiceSpec, birth: Birth, link_fd: int, log: ServiceLog
    ) -> tuple[int, str, subprocess.Popen[bytes] | None]:
        """Pid, how it was started, and the `Popen` where there is one."""
        await trio.lowlevel.checkpoint()
        if self._standbys is not None and (pid := self._standbys.take(spec, birth, link_fd, log.fd)) is not None:
            return pid, "standby", None
        zygote = self.zygotes.get(spec.zygote) if spec.zygote is not None else None
        if zygote is not None:
            try:
                pid = await zygote.fork(birth, spec.env, link_fd, log.fd)
                return pid, "zygote", None
            except ZygoteDown as error:
                _log.warning("%s is started from nothing: %s", spec.name, error)
        process = spawn(
            "services.runtime.main", link_fd, msgspec.json.encode(birth),
            env=spec.env, log_fd=log.fd, folder=self._log_dir, oom_score_adj=spec.oom_score_adj,
        )  # fmt: skip
        return process.pid, "exec", process

    def report(self) -> tuple[ZygoteReport, ...]:
        """The zygotes as they are now."""
        return tuple(
            ZygoteReport(
                name=zygote.spec.name,
                state=zygote.state,
                pid=zygote.pid,
                deaths=zygote.deaths,
                load_ms=zygote.loaded.took_ms if zygote.loaded is not None else None,
                failed_modules=zygote.loaded.failed if zygote.loaded is not None else {},
            )
            for zygote in self.zygotes.values()
        )
