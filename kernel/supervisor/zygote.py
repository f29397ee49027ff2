"""The kernel's end of a zygote: started when first wanted, asked to fork, started anew when it dies.

A zygote is a convenience: whatever is wrong with it (not loaded yet, dead, hung, unfit to fork), `fork` says so with
`ZygoteDown` within its time, and the service is started from nothing.
"""

from __future__ import annotations

import array
import contextlib
import enum
import itertools
import logging
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import trio

from kernel.supervisor.logs import ServiceLog
from kernel.supervisor.placement import SpawnError
from kernel.supervisor.policy import delay_s
from kernel.supervisor.reaper import Reaper
from kernel.supervisor.spawn import settle, spawn
from kernel.supervisor.spec import Backoff, ZygoteSpec
from proto.birth import MAX_PACKET_BYTES, Birth, Fork, Forked, ForkZygote, FromZygote, Loaded, ToZygote, ZygoteBirth

OOM_SCORE_ADJ = 300
"""After the services, whose memory it shares, and before the kernel."""

LOG_MAX_BYTES = 1024 * 1024

ENV = {
    # numpy's OpenBLAS starts a thread per core when it is loaded, and a process with threads must not fork.
    "OPENBLAS_NUM_THREADS": "1",
}

_log = logging.getLogger("linckia.supervisor")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)


class ZygoteDown(Exception):
    """It cannot fork now; says why."""


class ZygoteState(enum.StrEnum):
    """Where a zygote stands; UNFIT is for good: what it loads starts threads."""

    IDLE = "idle"
    LOADING = "loading"
    READY = "ready"
    BACKOFF = "backoff"
    UNFIT = "unfit"


class LoadingOrder:
    """Lets `at_once` zygotes load at a time, in the order of `names`, however many are wanted in one moment."""

    def __init__(self, names: Sequence[str], at_once: int) -> None:
        self._names = tuple(names)
        self._at_once = at_once
        self._waiting: set[str] = set()
        self._active: set[str] = set()
        self._changed = trio.lowlevel.ParkingLot()

    async def begin(self, name: str) -> None:
        """Until it is this one's turn; `end` gives the turn on."""
        self._waiting.add(name)
        try:
            # Others that were wanted in the same moment come forward first.
            await trio.lowlevel.checkpoint()
            while len(self._active) >= self._at_once or name != min(self._waiting, key=self._names.index):
                await self._changed.park()
            self._active.add(name)
        finally:
            self._waiting.discard(name)
            self._changed.unpark_all()

    def end(self, name: str) -> None:
        """Loading is over, or has failed; idempotent."""
        self._active.discard(name)
        self._changed.unpark_all()


class Zygote:
    """One zygote; `run` must be running in a nursery, and that of `base`, which forks it."""

    def __init__(
        self, spec: ZygoteSpec, log_dir: Path, reaper: Reaper, loading: LoadingOrder, base: Zygote | None = None
    ) -> None:
        self.spec = spec
        self.state = ZygoteState.IDLE
        self.pid: int | None = None
        self.loaded: Loaded | None = None
        self.deaths = 0
        self._log_dir = log_dir
        self._reaper = reaper
        self._loading = loading
        self._base = base
        self._ending = False
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._control: trio.socket.SocketType | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[trio.Event, list[Forked]]] = {}

    def rest(self) -> None:
        """Nobody will want a fork for a while: end it, if it can fork and does not; who wants one has it load again."""
        if self.state is ZygoteState.READY and not self._waiting:
            self._wanted = trio.Event()
            self._set(ZygoteState.IDLE)
            self._kill()

    def want(self) -> None:
        """Somebody will want a fork: load now."""
        self._wanted.set()

    async def fork(self, birth: Birth, env: Mapping[str, str], fd: int, log_fd: int, *, standby: bool = False) -> int:
        """Fork a service that gets both descriptors; its pid, a child of this process.

        Args:
            fd: its end of the link; with `standby`, of the socket on which it waits for its turn.

        Cancellation: while waiting for the zygote to load only; a fork takes milliseconds and is seen through.

        Raises:
            ZygoteDown: no service was forked.
        """
        request = Fork(id=next(self._ids), birth=birth, env=dict(env), standby=standby)
        return await self._ask(request, birth.service, (fd, log_fd))

    async def fork_zygote(self, birth: ZygoteBirth, env: Mapping[str, str], fd: int, log_fd: int) -> int:
        """As `fork`, with another zygote that gets its end of its control socket."""
        request = ForkZygote(id=next(self._ids), birth=birth, env=dict(env))
        return await self._ask(request, birth.name, (fd, log_fd))

    async def loaded_or_not(self) -> None:
        """Until it can fork, or it is clear that it cannot now; for `wait_s` at most."""
        self.want()
        with trio.move_on_after(self.spec.wait_s):
            while self.state in (ZygoteState.IDLE, ZygoteState.LOADING):
                await self._changed.wait()

    async def _ask(self, request: ToZygote, whom: str, fds: tuple[int, int]) -> int:
        await self.loaded_or_not()
        control = self._control
        if self.state is not ZygoteState.READY or control is None:
            raise ZygoteDown(f"zygote {self.spec.name} is {self.state}")
        packet = _encoder.encode(request)
        if len(packet) > MAX_PACKET_BYTES:
            raise ZygoteDown(f"the birth certificate of {whom} has {len(packet)} bytes")
        answered = trio.Event()
        answers: list[Forked] = []
        self._waiting[request.id] = (answered, answers)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        try:
            with trio.move_on_after(self.spec.fork_timeout_s, shield=True):
                await control.sendmsg([packet], rights)
                await answered.wait()
        except OSError as error:
            raise ZygoteDown(f"zygote {self.spec.name} died: {error}") from error
        finally:
            del self._waiting[request.id]
        if not answers:
            if self.pid is not None and not answered.is_set():
                _log.error("zygote %s did not fork within %g s and is killed", self.spec.name, self.spec.fork_timeout_s)
                self._kill()
            raise ZygoteDown(f"zygote {self.spec.name} died or hung")
        if answers[0].pid is None:
            raise ZygoteDown(f"zygote {self.spec.name}: {answers[0].error}")
        return answers[0].pid

    async def run(self) -> None:
        """Keep the zygote alive from when it is first wanted, until cancelled."""
        backoff = Backoff()
        streak = 0
        while True:
            await self._wanted.wait()
            if self._base is not None:
                # Not while it holds a turn to load, which that one needs.
                await self._base.loaded_or_not()
            if self.deaths == 0:
                await self._loading.begin(self.spec.name)
            started = trio.current_time()
            try:
                await self._run_once()
            except (SpawnError, OSError) as error:
                _log.error("zygote %s: %s", self.spec.name, error)
            finally:
                self._loading.end(self.spec.name)
            if self._is_unfit():
                return
            if self._rests():
                continue
            self.deaths += 1
            healthy = self.loaded is not None and trio.current_time() - started >= backoff.healthy_after_s
            delay = delay_s(backoff, 0 if healthy else streak, random.random())
            streak = 1 if healthy else streak + 1
            if delay:
                self._set(ZygoteState.BACKOFF)
                await trio.sleep(delay)

    def _is_unfit(self) -> bool:
        return self.state is ZygoteState.UNFIT

    def _rests(self) -> bool:
        return self.state is ZygoteState.IDLE

    def _set(self, state: ZygoteState) -> None:
        self.state = state
        self._changed.set()
        self._changed = trio.Event()

    async def _run_once(self) -> None:
        self.loaded = None
        self._set(ZygoteState.LOADING)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = ServiceLog(self._log_dir, f"zygote-{self.spec.name}", LOG_MAX_BYTES)
        with contextlib.closing(log), trio.socket.from_stdlib_socket(ours) as control:
            with theirs:
                pid, process = await self._start(theirs.fileno(), log)
            pidfd = os.pidfd_open(pid)
            try:
                async with trio.open_nursery() as nursery:
                    self._control = control
                    nursery.start_soon(self._converse, control)
                    await trio.lowlevel.wait_readable(pidfd)
                    nursery.cancel_scope.cancel()
            except BaseException:
                self._ending = True
                raise
            finally:
                self._bury(pid, process, log)
                os.close(pidfd)

    async def _start(self, fd: int, log: ServiceLog) -> tuple[int, subprocess.Popen[bytes] | None]:
        """Pid, and the `Popen` where it was started from nothing."""
        birth = ZygoteBirth(name=self.spec.name, preload=self.spec.preload, parent_pid=os.getpid())
        env = {**ENV, **self.spec.env}
        process: subprocess.Popen[bytes] | None = None
        pid: int | None = None
        if self._base is not None:
            try:
                pid = await self._base.fork_zygote(birth, env, fd, log.fd)
                settle(pid, OOM_SCORE_ADJ)
            except ZygoteDown as error:
                _log.warning("zygote %s is started from nothing: %s", self.spec.name, error)
        if pid is None:
            process = spawn(
                "services.runtime.zygote", fd, msgspec.json.encode(birth),
                env=env, log_fd=log.fd, folder=self._log_dir, oom_score_adj=OOM_SCORE_ADJ,
            )  # fmt: skip
            pid = process.pid
        self._reaper.own.add(pid)
        self.pid = pid
        log.note(f"zygote {self.spec.name} started as process {pid}")
        return pid, process

    def _bury(self, pid: int, process: subprocess.Popen[bytes] | None, log: ServiceLog) -> None:
        # Nothing of the services': they have sessions of their own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            # One just forked may not have made its group yet.
            os.kill(pid, signal.SIGKILL)
        code = _wait(pid) if process is None else process.wait()
        self._reaper.own.discard(pid)
        self._control = None
        self.pid = None
        text = f"zygote {self.spec.name} (process {pid}) ended with {code}"
        log.note(text)
        if not self._is_unfit() and not self._rests() and not self._ending:
            _log.warning("%s", text)
            self._set(ZygoteState.LOADING)
        for answered, _ in self._waiting.values():
            answered.set()

    async def _converse(self, control: trio.socket.SocketType) -> None:
        """Read its answers until it is dead."""
        with trio.move_on_after(self.spec.load_timeout_s) as loading:
            try:
                while packet := await control.recv(MAX_PACKET_BYTES):
                    self._accept(_decoder.decode(packet))
                    loading.deadline = float("inf")
            except (OSError, msgspec.DecodeError) as error:
                _log.error("zygote %s: %s", self.spec.name, error)
        # It has closed its end, does not load, or talks nonsense.
        self._kill()

    def _accept(self, message: FromZygote) -> None:
        if isinstance(message, Forked):
            waiting = self._waiting.get(message.id)
            if waiting is not None:
                waiting[1].append(message)
                waiting[0].set()
            elif message.pid is not None:
                # Nobody waits for it any more: its link is closed by now, and it would end by itself a little later.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(message.pid, signal.SIGKILL)
            return
        self.loaded = message
        self._loading.end(self.spec.name)
        for module, error in message.failed.items():
            _log.error("zygote %s: module %s could not be loaded: %s", self.spec.name, module, error)
        if message.threads != 1:
            _log.error(
                "zygote %s: what it loads starts threads (it has %d), so it cannot fork; services start from nothing",
                self.spec.name,
                message.threads,
            )
            self._set(ZygoteState.UNFIT)
            self._kill()
            return
        _log.info("zygote %s is ready after %.0f ms", self.spec.name, message.took_ms)
        self._set(ZygoteState.READY)

    def _kill(self) -> None:
        if self.pid is not None:
            # Not collected yet, so the number is still its own.
            os.kill(self.pid, signal.SIGKILL)


def _wait(pid: int) -> int | None:
    """The exit code of a dead child, negative for a signal; None where it was collected already."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None
