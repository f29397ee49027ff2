"""Standbys: for each service that runs, a process forked ahead that takes its place within milliseconds of its death.

It has done what can be done before it is known when it will be wanted (see `services.runtime.main`): from a kill to
the next answer it takes a tenth to a half of the time that it takes without (`scripts/bench kills`).  Where there is
none that fits, the service is forked or started from nothing.  A service that is not called for a while has none until
it is called again: it holds some 10 MB.
"""

from __future__ import annotations

import array
import contextlib
import logging
import math
import os
import select
import signal
import socket
from collections.abc import Sequence

import msgspec
import trio
from msgspec.structs import replace

from kernel.edge import contained
from kernel.supervisor.processes import STOPPED, Reaper, progress_of
from kernel.supervisor.spawn import settle
from kernel.supervisor.spec import ServiceSpec
from kernel.supervisor.zygote import Zygote, ZygoteDown
from proto.birth import Birth, Wake

AFTER_A_RESTART_S = 0.005
"""So that the calls that waited for the restart are answered first."""

AGAIN_S = 30.0
"""After the death of a standby: it was killed for want of memory, or cannot live."""

OOM_SCORE_ADJ = 800
"""Out of memory, the first to go: it serves no call."""

_log = logging.getLogger("linckia.supervisor")
_encoder = msgspec.msgpack.Encoder()


class Standby:
    """One process that waits."""

    def __init__(self, pid: int, control: socket.socket, birth: Birth, env: dict[str, str]) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.woken = trio.Event()
        self._control = control
        self._birth = birth
        self._env = env

    def fits(self, birth: Birth, env: dict[str, str]) -> bool:
        """Whether it can be the generation that this certificate describes, and lives."""
        dead = select.poll()
        dead.register(self.pidfd, select.POLLIN)
        return (
            replace(self._birth, generation=birth.generation) == birth
            and self._env == env
            and not dead.poll(0)
            and progress_of(self.pid)[0] != STOPPED
        )

    def wake(self, generation: int, descriptors: Sequence[int]) -> bool:
        """Have it be that generation; whether it was there to be.  It is the caller's to collect from then on."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._control.sendmsg([_encoder.encode(Wake(generation=generation))], rights, socket.MSG_DONTWAIT)
        except OSError:
            return False
        self.woken.set()
        return True

    async def watch(self) -> None:
        """Until it is woken or dead."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_woken, nursery.cancel_scope)
            await trio.lowlevel.wait_readable(self.pidfd)
            nursery.cancel_scope.cancel()

    async def _cancel_when_woken(self, scope: trio.CancelScope) -> None:
        await self.woken.wait()
        scope.cancel()


class _Keeper:
    """What is known of the standby of one generation; cancelling `scope` ends it."""

    def __init__(self, rests_after_s: float | None) -> None:
        self.scope = trio.CancelScope()
        self.patience = trio.CancelScope()
        """While there is a standby: cancelled once the service has not been called for so long."""
        self.standby: Standby | None = None
        self.was_called = trio.Event()
        self._rests_after_s = math.inf if rests_after_s is None else rests_after_s
        self.called()

    def called(self) -> None:
        self.deadline = self.patience.deadline = trio.current_time() + self._rests_after_s
        self.was_called.set()


class Standbys:
    """The standby of each service; they live as long as `run`."""

    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._keepers: dict[str, _Keeper] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def pid_of(self, service: str) -> int | None:
        """The process that waits for the service's place, if one does."""
        keeper = self._keepers.get(service)
        standby = keeper.standby if keeper is not None else None
        return None if standby is None or standby.woken.is_set() else standby.pid

    def take(self, spec: ServiceSpec, birth: Birth, descriptors: Sequence[int]) -> int | None:
        """Make the standby this generation: its pid, or None where there is none that fits."""
        keeper = self._keepers.get(spec.name)
        standby = keeper.standby if keeper is not None else None
        if standby is not None and standby.fits(birth, spec.env) and standby.wake(birth.generation, descriptors):
            return standby.pid
        self.dismiss(spec.name)
        return None

    def keep(self, spec: ServiceSpec, birth: Birth, zygote: Zygote, log_fd: int) -> None:
        """Have a standby for the generation after this one, which is READY; it too writes to the log `log_fd`."""
        self.dismiss(spec.name)
        if self._nursery is not None:
            keeper = self._keepers[spec.name] = _Keeper(spec.standby_rests_after_s)
            what = f"the standby of {spec.name}"
            self._nursery.start_soon(contained, what, self._keep, keeper, spec, birth, zygote, os.dup(log_fd))

    def called(self, service: str) -> None:
        """The service was called since this was last said: have its standby be there."""
        if (keeper := self._keepers.get(service)) is not None:
            keeper.called()

    def dismiss(self, service: str) -> None:
        """No generation will follow, or none that this standby could be."""
        if (keeper := self._keepers.pop(service, None)) is not None:
            keeper.scope.cancel()

    async def _keep(self, keeper: _Keeper, spec: ServiceSpec, birth: Birth, zygote: Zygote, log_fd: int) -> None:
        delay = spec.standby_first_s if birth.generation == 1 else AFTER_A_RESTART_S
        try:
            with keeper.scope:
                while True:
                    await trio.sleep(delay)
                    with trio.CancelScope(deadline=keeper.deadline) as keeper.patience:
                        if await self._live(keeper, spec, birth, zygote, log_fd):
                            return
                    delay = AGAIN_S
                    if keeper.patience.cancelled_caught:
                        if keeper.deadline <= trio.current_time():
                            keeper.was_called = trio.Event()
                            await keeper.was_called.wait()
                        delay = AFTER_A_RESTART_S
        finally:
            os.close(log_fd)

    async def _live(self, keeper: _Keeper, spec: ServiceSpec, birth: Birth, zygote: Zygote, log_fd: int) -> bool:
        """One standby from its birth to its turn (True), or to its death."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                try:
                    pid = await zygote.fork(birth, spec.env, (theirs.fileno(), log_fd), standby=True)
                except ZygoteDown as error:
                    _log.warning("%s has no standby: %s", spec.name, error)
                    return False
            self._reaper.own.add(pid)
            settle(pid, OOM_SCORE_ADJ)
            standby = keeper.standby = Standby(pid, ours, birth, spec.env)
            try:
                await standby.watch()
            finally:
                keeper.standby = None
                if not standby.woken.is_set():
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(standby.pidfd, signal.SIGKILL)
                    # Its exit status is not needed: the reaper collects it.
                    self._reaper.buried(pid)
                os.close(standby.pidfd)
        return standby.woken.is_set()
