"""One generation of a service, from start to death: hello, ready, pings, limits, and the kill ladder.

READY is reported once, after a hello that identifies this very generation. Deaths are noticed at once, and so are
hangs, excessive memory or disk use, slow starts, and invalid data on the link. All frames that arrived before a death
are delivered before it is reported. The kill ladder (drain, SIGTERM, SIGABRT, then SIGKILL to the process group) ends
any process in bounded time.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from kernel.chronicle import disk
from kernel.configure.spec import ServiceSpec
from kernel.router.generation import Generation, HeldBytes
from kernel.router.ports import Cause, CauseKind, GenerationSink
from kernel.supervisor import processes
from kernel.supervisor.placement import Placement, Running, cause_of
from kernel.supervisor.rest import REST_AFTER_S, REST_PING_S, Awake, Calm, next_look
from kernel.supervisor.spawn import SpawnError
from proto.errors import Unavailable
from proto.wire import frames
from proto.wire.channel import BACKLOG_BYTES, Channel, Link, LinkClosed, ProtocolViolation
from proto.wire.frames import AnyFrame, Bye, ByeAck, Call, Drain, Fault, Hello, Ping, Pong, Ready, Unfinished
from proto.wire.launch import LaunchConfig

LAST_FRAMES_S = 0.25
"""Time allowed for reading frames that arrived before a death."""

UNHEARD_FRAMES_S = 0.02
"""The same limit for a process that died before its hello was read; most of those never sent one."""

LINK_LOST_S = 1.0
"""Time allowed between the end of a link and of its process. A process without its link is useless."""

ORDERLY_END_S = 1.0
"""Time for a drained service to close its databases and say bye, in addition to the time for its calls."""

NODE_TIMEOUT_S = 4.0
"""Limit for unanswered pings of a process on another machine, if its spec allows more: a lost node is noticed within
five seconds, whatever the service computes."""

RUNAWAY = 1.25
"""A process at this multiple of its memory or thread limit gets no time to finish, since it could take down the
machine."""

_OURS = (Hello, Ready, Pong, Bye)

_log = logging.getLogger("linckia.supervisor")


class Rung(enum.IntEnum):
    """A rung of the kill ladder."""

    DRAIN = 0
    TERM = 1
    ABORT = 2
    KILL = 3


def channel_to(service: str, link: Link) -> Channel:
    """Return the kernel's end of a link to `service`."""
    return Channel(link, frames.from_service, max_backlog_bytes=BACKLOG_BYTES, passes_on=True)


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a generation ended, and when that was noticed (on trio's clock)."""

    cause: Cause
    noticed_at: float


class Liveness:
    """Tracks whether an event loop answers pings. Time that the kernel itself overslept does not count."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._unanswered_since: float | None = None
        self._n = 0
        self._sent: dict[int, float] = {}
        self.round_trip_s: float | None = None

    def ping(self, now: float) -> int:
        """Return the number of the ping to send now."""
        self._n += 1
        self._sent[self._n] = now
        if self._unanswered_since is None:
            self._unanswered_since = now
        return self._n

    def pong(self, n: int, now: float) -> None:
        """Note a pong. Any pong shows that the loop runs."""
        if (sent := self._sent.get(n)) is not None:
            self.round_trip_s = now - sent
            self.heard()
            self._sent = {number: at for number, at in self._sent.items() if number > n}

    @property
    def is_silent(self) -> bool:
        """Whether a ping is unanswered."""
        return self._unanswered_since is not None

    def heard(self) -> None:
        """Note that a frame arrived, which shows that the loop runs."""
        self._unanswered_since = None

    def excuse(self, waited_s: float) -> None:
        """Do not count time in which the process could not run."""
        if self._unanswered_since is not None:
            self._unanswered_since += waited_s

    def hung_for(self, now: float, overslept_s: float) -> float | None:
        """Return for how many seconds pings have been unanswered if that is too long, otherwise None."""
        if self._unanswered_since is None:
            return None
        self._unanswered_since += overslept_s
        silent_s = now - self._unanswered_since
        return silent_s if silent_s >= self._timeout_s else None


class Life(Generation):
    """One generation as the supervisor sees it; `run` covers its whole life."""

    def __init__(
        self, spec: ServiceSpec, number: int, mode: str, sink: GenerationSink, *,
        channel_to: Callable[[str, Link], Channel], on_ready: Callable[[Life], None],
        on_idle: Callable[[Life], None], held: HeldBytes, awake: Awake,
    ) -> None:  # fmt: skip
        """`on_idle` is called each time the generation is found to have had no call for `rests_after_s`."""
        super().__init__(spec.name, number, mode, held)
        self.spec = spec
        self.ready_at: float | None = None
        self.info: dict[str, str] = {}
        self.backlogs: dict[str, frames.Backlog] = {}
        self.in_flight = 0
        """Number of calls in flight, from its last pong."""
        self.running: Running | None = None
        self.liveness = Liveness(spec.hang_timeout_s)
        self._sink = sink
        self._channel_to = channel_to
        self._on_ready = on_ready
        self._on_idle = on_idle
        self._hello: Hello | None = None
        self._said_bye = False
        self._was_stopped = False
        self._pinged = trio.Event()
        self._starting = trio.CancelScope()
        self._cause: Cause | None = None
        self._rung = Rung.DRAIN
        self._asked_to_end = trio.Event()
        self._patience = trio.CancelScope()
        self._all_read = trio.Event()
        self._was_stirred = False
        """Whether a frame was sent or arrived since the last check, other than pings and pongs."""
        self._resting: trio.CancelScope | None = None
        """The wait of a process at rest for its next check; None if it does not rest."""
        self._all_awake = awake
        self._awake = trio.Event()
        self._awake.set()

    def stirred(self) -> None:
        self._was_stirred = True
        if self._resting is not None:
            self._resting.cancel()

    def end(self, cause: Cause, rung: Rung = Rung.DRAIN) -> None:
        """End it because of `cause`, starting at `rung`. The first cause is kept; a harsher rung takes effect at
        once."""
        if self._cause is None:
            self._cause = cause
            self._rung = rung
            if self.ready_at is not None:
                # Do it now: a call that arrived later would only have the time that draining allows.
                self._sink.draining(self)
            self._starting.cancel()
            self._asked_to_end.set()
        elif rung > self._rung:
            self._rung = rung
            self._patience.cancel()

    def held_too_much(self, most: int) -> None:
        text = f"had the kernel hold {self.held_bytes >> 20} MiB, of {most >> 20} MiB for all services"
        self.end(Cause(CauseKind.PROTOCOL, None, text), Rung.KILL)

    def condemn(self, why: str) -> None:
        """End it at once for breaking the protocol."""
        self.end(Cause(CauseKind.PROTOCOL, None, f"broke the protocol: {why}"), Rung.ABORT)

    async def run(self, placement: Placement, launch: LaunchConfig) -> Ended:
        """Start it and watch it until it is dead. On cancellation, the process is killed and collected first."""
        try:
            with self._starting:
                self.running = await placement.start(self.spec, launch)
        except SpawnError as error:
            return Ended(cause=Cause(CauseKind.SPAWN, None, str(error)), noticed_at=trio.current_time())
        if self.running is None:
            cause = self._cause or Cause(CauseKind.STOPPED, None, "ended before it was started")
            return Ended(cause=cause, noticed_at=trio.current_time())
        if self.running.node:
            self.liveness = Liveness(min(self.spec.hang_timeout_s, NODE_TIMEOUT_S))
        try:
            return await self._watch_until_dead(self.running, launch.data_dir)
        except BaseException:
            self.running.kill()
            with trio.CancelScope(shield=True):
                await self.running.wait()
            raise
        finally:
            self.held.generations.discard(self)
            self._all_awake.discard(self)
            self.running.close()

    async def _watch_until_dead(self, running: Running, data_dir: str) -> Ended:
        channel = self.channel = self._channel_to(self.spec.name, running.link)
        channel.gathered = self._gathered
        self.held.generations.add(self)
        self._all_awake.add(self)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run_sender)
            for watch in (self._read, self._watch, self._descend, self._watch_loop):
                nursery.start_soon(watch, channel, running)
            if not running.node:
                nursery.start_soon(self._watch_disk, running, Path(data_dir))
            ended = await running.wait()
            noticed_at = trio.current_time()
            with trio.move_on_after(LAST_FRAMES_S if self._hello is not None else UNHEARD_FRAMES_S):
                await self._all_read.wait()
            nursery.cancel_scope.cancel()
        limit = self.spec.disk_limit_bytes
        if self._cause is not None and self._cause.kind is CauseKind.DISK and limit is not None:
            remedy = await disk.clear(Path(data_dir), limit)
            self._cause = msgspec.structs.replace(self._cause, text=self._cause.text + remedy)
        return Ended(cause=cause_of(ended, self._cause), noticed_at=noticed_at)

    async def _read(self, channel: Channel, running: Running) -> None:
        try:
            while True:
                self._accept(await channel.receive(), channel, running)
        except ProtocolViolation as error:
            self._all_read.set()
            self.condemn(str(error))
        except LinkClosed:
            self._all_read.set()
            await trio.sleep(LINK_LOST_S)
            self.end(Cause(CauseKind.PROTOCOL, None, "closed its link and lived on"), Rung.TERM)

    def _gathered(self) -> None:
        # On a slow link, pongs are late behind a large body, each part of which shows that the loop runs.
        self.liveness.heard()
        self.held.make_room()

    def _accept(self, frame: AnyFrame, channel: Channel, running: Running) -> None:
        if self._hello is None and not isinstance(frame, Hello):
            raise ProtocolViolation(f"{type(frame).__name__} before hello")
        if self._said_bye and not isinstance(frame, Unfinished):
            # Unfinished replies to calls that crossed its bye.
            raise ProtocolViolation(f"{type(frame).__name__} after bye")
        self.liveness.heard()
        if not isinstance(frame, _OURS):
            self.stirred()
            if self.ready_at is None and isinstance(frame, Call):
                # The router does not know this generation yet, so no reply could reach it.
                text = f"service {self.spec.name} made a call before it was ready; calls can be made once it is"
                channel.post(Fault(frame.id, Unavailable(text).failure))
            else:
                self._sink.frame(self, frame)
            return
        match frame:
            case Hello():
                self._greet(frame, running)
            case Ready(info=info):
                self._become_ready(info, running)
            case Pong(n=n):
                self.liveness.pong(n, trio.current_time())
                self.in_flight, self.info, self.backlogs = frame.in_flight, frame.info, frame.backlogs
            case Bye():
                self._said_bye = True
                running.said_bye()
                if self._cause is None and self.ready_at is not None:
                    # It ends by its own decision and accepts no more calls.
                    self._sink.draining(self)
                channel.post(ByeAck())

    def _greet(self, hello: Hello, running: Running) -> None:
        expected = (frames.PROTOCOL, self.spec.name, self.number, running.pid)
        said = (hello.protocol, hello.service, hello.generation, hello.pid)
        if self._hello is not None:
            raise ProtocolViolation("a second hello")
        if said != expected:
            raise ProtocolViolation(f"hello of (protocol, service, generation, pid) {said} instead of {expected}")
        self._hello = hello

    def _become_ready(self, info: dict[str, str], running: Running) -> None:
        if self._hello is None or self.ready_at is not None:
            raise ProtocolViolation("a second ready")
        self.info = info
        self.ready_at = trio.current_time()
        if self._cause is None:
            self._sink.up(self)
            running.became_ready()
            self._on_ready(self)

    async def _watch(self, channel: Channel, running: Running) -> None:
        """Check start-up time, pings, memory and log once per ping interval, at rest less often."""
        interval = self.spec.ping_interval_s
        calm = Calm(running.pid, trio.current_time())
        begun = trio.current_time()
        startup_deadline, next_at = begun + self.spec.startup_timeout_s, begun + interval
        while True:
            planned = next_at if self.ready_at is not None else min(next_at, startup_deadline)
            await trio.sleep_until(planned)
            now = trio.current_time()
            is_silent = self.liveness.is_silent
            overslept = max(0.0, now - planned - interval)
            if self.ready_at is None:
                startup_deadline += overslept
                if now >= startup_deadline:
                    text = f"not ready within {self.spec.startup_timeout_s:g} s"
                    self.end(Cause(CauseKind.STARTUP_TIMEOUT, None, text), Rung.ABORT)
                    startup_deadline = float("inf")
            elif self._cause is None:
                self._ping(channel, now, overslept)
            if now >= next_at:
                if await self._check(running, calm, is_silent) and trio.current_time() - calm.since >= REST_AFTER_S:
                    await self._rest(channel, running, calm)
                    # A call came: the next ping is as soon after it as on average without a rest.
                    interval_s = interval if self.liveness.is_silent else interval / 2
                else:
                    interval_s = interval
                next_at = trio.current_time() + interval_s

    async def _check(self, running: Running, calm: Calm, is_silent: bool) -> bool:
        """Check what a ping does not tell; return whether the process has nothing to do.

        Args:
            is_silent: whether it has not answered the last ping in time.
        """
        if self._resting is None or not calm.stood_still():
            self._check_memory(running)
            if not running.node:
                self._check_threads(running)
        self._check_stopped(running)
        used = self._sink.was_used(self.spec.name)
        await running.tend(used)
        if self._is_idle():
            # Nothing is awaited between this check and the end of calls, so no call can arrive in between.
            self._on_idle(self)
        stirred, self._was_stirred = self._was_stirred, False
        is_calm = not (
            used or stirred or running.node or self._was_stopped or self.backlogs or is_silent
            or self.ready_at is None or self._cause is not None or any(call.for_client for call in self.made.values())
        )  # fmt: skip
        return calm.seen(is_calm, trio.current_time())

    async def _rest(self, channel: Channel, running: Running, calm: Calm) -> None:
        """Check and ping the process rarely, until it is sent or sends something, computes, or answers no ping."""
        pinged_at = trio.current_time()
        self._awake = trio.Event()
        self._all_awake.discard(self)
        try:
            while not self._was_stirred:
                if (now := trio.current_time()) - pinged_at >= REST_PING_S:
                    pinged_at = now
                    self._ping(channel, now, 0.0)
                    next_at = now + self.spec.ping_interval_s
                else:
                    next_at = next_look(now)
                with trio.CancelScope() as self._resting:
                    await trio.sleep_until(next_at)
                if self._resting.cancelled_caught or not await self._check(running, calm, self.liveness.is_silent):
                    return
        finally:
            self._resting = None
            self._awake.set()
            self._all_awake.add(self)

    def _is_idle(self) -> bool:
        limit_s, only = self.spec.rests_after_s, self.spec.rests_while
        if limit_s is None or self.ready_at is None or self._cause is not None:
            return False
        if only is not None and self.info.get(only[0]) != only[1]:
            return False
        idle_since = self._sink.idle_since(self.spec.name)
        return idle_since is not None and trio.current_time() - max(idle_since, self.ready_at) >= limit_s

    def _ping(self, channel: Channel, now: float, overslept: float) -> None:
        if (silent_s := self.liveness.hung_for(now, overslept)) is not None:
            self._hangs(silent_s)
            return
        # The reader handles a closed link.
        with contextlib.suppress(LinkClosed):
            channel.post(Ping(self.liveness.ping(now)))
            self._pinged.set()

    async def _watch_loop(self, channel: Channel, running: Running) -> None:
        """Watch what the process does while a ping is unanswered."""
        limit_s = self.spec.stall_s
        while self._cause is None and limit_s is not None:
            await self._pinged.wait()
            self._pinged = trio.Event()
            await trio.sleep(processes.GRACE_S)
            silent_s, before = processes.GRACE_S, running.activity() if self.liveness.is_silent else None
            while self.liveness.is_silent and before is not None and self._cause is None:
                looked_at = trio.current_time()
                await trio.sleep(processes.LOOK_S)
                if (now := running.activity()) is None:
                    break
                own_s = processes.unexcused_s(running.pid, before, now)
                if own_s is None:
                    self.liveness.excuse(trio.current_time() - looked_at)
                elif not channel.is_behind:
                    silent_s += min(own_s, processes.LOOK_S)
                if silent_s > limit_s and self.liveness.is_silent:
                    self._hangs(silent_s)
                before = now

    def _hangs(self, silent_s: float) -> None:
        # It would not react to draining either, and SIGABRT writes its stack to the log.
        text = f"answered no ping for {silent_s:.1f} s"
        if self.running is not None and self.running.node:
            # The node may be lost, so no signal can be relied on, and its calls must not wait for one.
            self.end(Cause(CauseKind.HANG, None, f"{text}, on node {self.running.node}"), Rung.KILL)
        else:
            self.end(Cause(CauseKind.HANG, None, text), Rung.ABORT)

    def _check_stopped(self, running: Running) -> None:
        """End a stopped process, which is as good as dead: sooner than its pongs are missed, and during start-up
        too."""
        stopped = running.is_stopped()
        if stopped and self._was_stopped:
            # It would not handle any other signal.
            self.end(Cause(CauseKind.HANG, signal.SIGSTOP, "was stopped by a signal (SIGSTOP)"), Rung.KILL)
        self._was_stopped = stopped

    def _check_memory(self, running: Running) -> None:
        limit, used = self.spec.memory_limit_bytes, running.memory_bytes()
        if limit is not None and used is not None and used > limit:
            text = f"uses {used / 2**20:.0f} MiB of memory, its limit is {limit / 2**20:.0f} MiB"
            self.end(Cause(CauseKind.MEMORY, None, text), Rung.KILL if used > limit * RUNAWAY else Rung.DRAIN)

    def _check_threads(self, running: Running) -> None:
        limit, count = self.spec.thread_limit, processes.threads_of(running.pid)
        if limit is not None and count > limit:
            text = f"runs {count} threads, its limit is {limit}"
            self.end(Cause(CauseKind.THREADS, None, text), Rung.KILL if count > limit * RUNAWAY else Rung.DRAIN)

    async def _watch_disk(self, running: Running, folder: Path) -> None:
        if self.spec.disk_limit_bytes is not None:
            text = await disk.overflow(folder, running.pid, self.spec.disk_limit_bytes, self._pause)
            self.end(Cause(CauseKind.DISK, None, text), Rung.TERM)

    async def _pause(self, seconds: float) -> None:
        """Wait this long, and while it rests."""
        await trio.sleep(seconds)
        with trio.move_on_after(REST_PING_S):
            await self._awake.wait()

    async def _descend(self, channel: Channel, running: Running) -> None:
        """Once asked to end the process, climb the ladder rung by rung until it is dead (which cancels this)."""
        await self._asked_to_end.wait()
        if self.ready_at is None and self._rung is Rung.DRAIN:
            # It has no calls in flight.
            self._rung = Rung.TERM
        while True:
            rung = self._rung
            self._patience = trio.CancelScope()
            wait_s = self._step(rung, channel, running)
            with self._patience:
                await trio.sleep(wait_s)
            if self._rung is not rung:
                continue
            # A stack dump of an unfinished start-up is of no interest.
            skips = rung is Rung.TERM and self.ready_at is None
            self._rung = Rung.KILL if skips else Rung(min(rung + 1, Rung.KILL))

    def _step(self, rung: Rung, channel: Channel, running: Running) -> float:
        """Carry out the rung; return how long to wait for it to work."""
        spec = self.spec
        if rung is Rung.DRAIN:
            try:
                channel.post(Drain(int(spec.shutdown_timeout_s * 1000)))
            except LinkClosed:
                return 0.0
            return spec.shutdown_timeout_s + ORDERLY_END_S
        if rung is Rung.KILL:
            running.kill()
            # Only a process in uninterruptible sleep survives this. All that can be done is to try again.
            return 1.0
        number = signal.SIGTERM if rung is Rung.TERM else signal.SIGABRT
        _log.info("%s generation %d gets %s", spec.name, self.number, number.name)
        running.signal(number)
        return spec.term_timeout_s if rung is Rung.TERM else spec.abort_timeout_s
