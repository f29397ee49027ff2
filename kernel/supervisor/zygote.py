"""The kernel's side of a zygote: starts it when it is first needed, asks it to fork, and restarts it when it dies.

A zygote is an optimization. Whatever is wrong with it (still loading, dead, hung, unable to fork), `fork` raises
`ZygoteDown` in time, and the service is started from scratch.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import logging
import math
import os
import random
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import trio

from kernel.configure.spec import Backoff, ZygoteSpec
from kernel.router.ports import ROUTINE
from kernel.supervisor.policy import delay_s
from kernel.supervisor.processes import STOPPED, Reaper, progress_of, resident_bytes
from kernel.supervisor.service_log import ServiceLog
from kernel.supervisor.spawn import SpawnError, spawn
from kernel.supervisor.start_queue import StartQueue
from proto.names import module
from proto.ops.kernel import ZygoteStatus
from proto.wire.channel import rights, socket_pair
from proto.wire.launch import MAX_PACKET_BYTES, Fork, Forked, FromZygote, LaunchConfig, Loaded, ZygoteConfig

OOM_SCORE_ADJ = 300
"""Killed for lack of memory after the services, which share its memory, and before the kernel."""

LOG_MAX_BYTES = 1024 * 1024

ENV = {"OPENBLAS_NUM_THREADS": "1"}
"""A BLAS that starts threads on import would make the zygote unfit, since only a single-threaded process may fork."""

_log = logging.getLogger("linckia.supervisor")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)


class ZygoteDown(Exception):
    """The zygote cannot fork now; the message says why."""


class ZygoteState(enum.StrEnum):
    """State of a zygote. UNFIT is permanent: what it loads starts threads."""

    IDLE = "idle"
    LOADING = "loading"
    READY = "ready"
    BACKOFF = "backoff"
    UNFIT = "unfit"


class ZygoteReport(ZygoteStatus, frozen=True, kw_only=True):
    """What clients see of a zygote, plus fields for metrics and tests."""

    deaths: int
    failed_modules: dict[str, str]


class Zygote:
    """One zygote; `run` must be running in a nursery."""

    def __init__(self, spec: ZygoteSpec, log_dir: Path, reaper: Reaper, loading: StartQueue) -> None:
        self.spec = spec
        self.state = ZygoteState.IDLE
        self.pid: int | None = None
        self.loaded: Loaded | None = None
        self.deaths = 0
        self._log_dir = log_dir
        self._reaper = reaper
        self._loading = loading
        self._ending = False
        self.needed_by: set[str] = set()
        """Its services that run or will soon."""
        self._unneeded_at = math.inf
        self._wanted = trio.Event()
        self._changed = trio.lowlevel.ParkingLot()
        self._control: trio.socket.SocketType | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, trio.MemorySendChannel[Forked]] = {}

    def no_longer_needed_by(self, service: str) -> None:
        """Note that this service will not be started soon."""
        if service in self.needed_by:
            self.needed_by.discard(service)
            self._unneeded_at = trio.current_time()

    def rest_if_unneeded(self) -> None:
        """End it if none of its services has needed it for as long as its spec says. The next fork loads it again."""
        after_s = self.spec.rests_after_s
        if after_s is None or self.needed_by or trio.current_time() - self._unneeded_at < after_s:
            return
        if self.state is ZygoteState.READY and not self._waiting:
            self._wanted = trio.Event()
            self._set(ZygoteState.IDLE)
            self._kill()

    def report(self) -> ZygoteReport:
        """Return its current state."""
        loaded = self.loaded
        return ZygoteReport(
            name=self.spec.name,
            state=self.state,
            pid=self.pid,
            rss_bytes=resident_bytes(self.pid) if self.pid is not None else None,
            pss_bytes=None,
            load_ms=loaded.took_ms if loaded is not None else None,
            deaths=self.deaths,
            failed_modules=loaded.failed if loaded is not None else {},
        )

    async def fork(
        self, launch: LaunchConfig, env: Mapping[str, str], descriptors: Sequence[int], *, wait_s: float = math.inf,
        standby: bool = False,
    ) -> int:  # fmt: skip
        """Fork a service that inherits the descriptors; returns its pid, which is a child of this process.

        Args:
            descriptors: the service's end of the link, its log, and its end of the handoff socket if it has one. For a
                `standby`: the socket on which it waits for its turn, and the log.
            wait_s: time allowed for loading.

        Cancellation takes effect only while waiting for the zygote to load. A fork takes milliseconds and is completed.

        Raises ZygoteDown: no service was forked.
        """
        await self.until_ready(wait_s)
        control = self._control
        if self.state is not ZygoteState.READY or control is None:
            raise ZygoteDown(f"zygote {self.spec.name} is {self.state}")
        if self.pid is not None and progress_of(self.pid)[0] == STOPPED:
            self._kill()
            raise ZygoteDown(f"zygote {self.spec.name} was stopped by a signal, and is killed")
        request = Fork(id=next(self._ids), launch=launch, env=dict(env), standby=standby)
        packet = _encoder.encode(request)
        if len(packet) > MAX_PACKET_BYTES:
            raise ZygoteDown(f"the launch configuration of {launch.service} has {len(packet)} bytes")
        self._waiting[request.id], answer = trio.open_memory_channel[Forked](1)
        forked: Forked | None = None
        try:
            with trio.move_on_after(self.spec.fork_timeout_s, shield=True):
                await control.sendmsg([packet], rights(descriptors))
                forked = await answer.receive()
        except (OSError, trio.EndOfChannel) as error:
            raise ZygoteDown(f"zygote {self.spec.name} died: {error}") from error
        finally:
            del self._waiting[request.id]
        if forked is None:
            _log.error("zygote %s did not fork within %g s and is killed", self.spec.name, self.spec.fork_timeout_s)
            self._kill()
            raise ZygoteDown(f"zygote {self.spec.name} hung")
        if forked.pid is None:
            raise ZygoteDown(f"zygote {self.spec.name}: {forked.error}")
        return forked.pid

    async def until_ready(self, wait_s: float) -> None:
        """Wait until it can fork, at most `wait_s`."""
        # A start that does not wait starts from scratch and leaves loading to the standby, which nobody waits for.
        if wait_s:
            self._wanted.set()
        with trio.move_on_after(wait_s):
            while self.state in (ZygoteState.IDLE, ZygoteState.LOADING):
                await self._changed.park()

    async def run(self) -> None:
        """Keep the zygote alive once it is needed, until cancelled."""
        backoff = Backoff()
        streak = 0
        while True:
            await self._wanted.wait()
            if self.deaths == 0:
                await self._loading.begin(self.spec.name)
            started = trio.current_time()
            try:
                await self._run_once()
            except (SpawnError, OSError) as error:
                _log.error("zygote %s: %s", self.spec.name, error)
            finally:
                self._loading.end(self.spec.name)
            if self._is(ZygoteState.UNFIT):
                return
            if self._is(ZygoteState.IDLE):
                continue
            self.deaths += 1
            healthy = self.loaded is not None and trio.current_time() - started >= backoff.healthy_after_s
            delay = delay_s(backoff, 0 if healthy else streak, random.random())
            streak = 1 if healthy else streak + 1
            if delay:
                self._set(ZygoteState.BACKOFF)
                await trio.sleep(delay)

    def _is(self, state: ZygoteState) -> bool:
        return self.state is state

    def _set(self, state: ZygoteState) -> None:
        self.state = state
        self._changed.unpark_all()

    async def _run_once(self) -> None:
        self.loaded = None
        self._ending = False
        self._set(ZygoteState.LOADING)
        launch = ZygoteConfig(
            name=self.spec.name,
            parent_pid=os.getpid(),
            preload=self.spec.preload,
            modules=self.spec.modules,
            on_demand=self.spec.on_demand,
        )
        ours, theirs = socket_pair()
        log = ServiceLog(self._log_dir, f"zygote-{self.spec.name}", LOG_MAX_BYTES)
        with contextlib.closing(log), trio.socket.from_stdlib_socket(ours) as control:
            with theirs:
                process = spawn(
                    module("services.runtime.zygote"), (theirs.fileno(),), msgspec.json.encode(launch),
                    env=ENV, log_fd=log.fd, folder=self._log_dir, oom_score_adj=OOM_SCORE_ADJ,
                )  # fmt: skip
            self._reaper.own.add(process.pid)
            self.pid = process.pid
            log.note(f"zygote {self.spec.name} started as process {process.pid}")
            pidfd = os.pidfd_open(process.pid)
            try:
                async with trio.open_nursery() as nursery:
                    self._control = control
                    nursery.start_soon(log.run)
                    nursery.start_soon(self._converse, control)
                    nursery.start_soon(self._see_it_load, process.pid)
                    await trio.lowlevel.wait_readable(pidfd)
                    nursery.cancel_scope.cancel()
            except BaseException:
                self._ending = True
                raise
            finally:
                self._bury(process, log)
                os.close(pidfd)

    def _bury(self, process: subprocess.Popen[bytes], log: ServiceLog) -> None:
        # Its services have their own sessions, so they are not in its process group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        self._reaper.own.discard(process.pid)
        self._control = self.pid = None
        text = f"zygote {self.spec.name} (process {process.pid}) ended with {code}"
        log.note(text)
        if self.state not in (ZygoteState.UNFIT, ZygoteState.IDLE) and not self._ending:
            _log.warning("%s", text)
            self._set(ZygoteState.LOADING)
        for answers in self._waiting.values():
            answers.close()

    async def _converse(self, control: trio.socket.SocketType) -> None:
        """Read its replies until it is dead."""
        with trio.move_on_after(self.spec.load_timeout_s) as loading:
            try:
                while packet := await control.recv(MAX_PACKET_BYTES):
                    self._accept(_decoder.decode(packet))
                    loading.deadline = math.inf
            except (OSError, msgspec.DecodeError) as error:
                _log.error("zygote %s: %s", self.spec.name, error)
        # It closed its end, does not load, or sent invalid data.
        self._kill()

    async def _see_it_load(self, pid: int) -> None:
        """Kill it if it stops making progress while loading, since services and other zygotes wait for it."""
        patience_s = self.spec.stalled_s
        seen, moved_at = 0, trio.current_time()
        while self.state is ZygoteState.LOADING:
            await trio.sleep(patience_s / 5)
            state, ticks = progress_of(pid)
            # A process that waits for a core or the disk will continue.
            if ticks != seen or state in "RD":
                seen, moved_at = ticks, trio.current_time()
            elif trio.current_time() - moved_at >= patience_s and self.state is ZygoteState.LOADING:
                _log.error("zygote %s has loaded nothing for %g s and is killed", self.spec.name, patience_s)
                self._kill()
                return

    def _accept(self, message: FromZygote) -> None:
        if isinstance(message, Forked):
            if message.id in self._waiting:
                self._waiting[message.id].send_nowait(message)
            elif message.pid is not None:
                # The caller gave up. Its link is closed by now, so the process would end by itself a little later.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(message.pid, signal.SIGKILL)
            return
        before, self.loaded = self.loaded, message
        self._loading.end(self.spec.name)
        for name, error in message.failed.items():
            _log.error("zygote %s: module %s could not be loaded: %s", self.spec.name, name, error)
        if message.threads != 1:
            why = f"its modules start threads (it has {message.threads}), so it cannot fork"
            _log.error("zygote %s: %s; services start from scratch", self.spec.name, why)
            self._set(ZygoteState.UNFIT)
            self._kill()
        elif before is None:
            _log.info("zygote %s is ready after %.0f ms", self.spec.name, message.took_ms, extra=ROUTINE)
            self._set(ZygoteState.READY)

    def _kill(self) -> None:
        if self.pid is not None:
            # It has not been collected yet, so the pid cannot have been reused.
            os.kill(self.pid, signal.SIGKILL)
