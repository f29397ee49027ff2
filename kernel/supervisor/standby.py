"""Standbys: processes forked in advance, one for each running service, that replace it within milliseconds of its
death.

A standby has done all work that does not depend on when it is needed (see `services.runtime.main`). The time from a
kill to the next reply is a tenth to a half of what it is without one (`scripts/bench kills`). If there is no suitable
standby, the service is forked or started from scratch. A standby takes some 10 MB, so a service that has not been
called for a while has none until its next call; the zygote of the fronts, which only their standbys wait for, rests
with them.
"""

from __future__ import annotations

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

from kernel.configure.spec import ServiceSpec
from kernel.supervisor.processes import STOPPED, Reaper, progress_of
from kernel.supervisor.spawn import settle
from kernel.supervisor.zygote import Zygote, ZygoteDown
from proto.wire.channel import rights, socket_pair
from proto.wire.launch import LaunchConfig, Wake

AFTER_A_RESTART_S = 0.005
"""Delay that lets calls that waited for the restart be answered first."""

AGAIN_S = 30.0
"""Delay after the death of a standby, which was killed for lack of memory or cannot run at all."""

OOM_SCORE_ADJ = 800
"""Standbys are the first to go when memory runs out, since they serve no calls."""

_log = logging.getLogger("linckia.supervisor")
_encoder = msgspec.msgpack.Encoder()


class Standby:
    """The standby for the generation after the READY one that has `launch`.

    `run` must be running; cancelling `scope` ends it.
    """

    def __init__(self, spec: ServiceSpec, launch: LaunchConfig, zygote: Zygote, reaper: Reaper, log_fd: int) -> None:
        self.scope = trio.CancelScope()
        self.pid: int | None = None
        """Pid of the waiting process; None if there is none."""
        self._spec = spec
        self._launch = launch
        self._zygote = zygote
        self._reaper = reaper
        self._log_fd = os.dup(log_fd)
        self._pidfd = -1
        self._control: socket.socket
        self._waiting = self._patience = trio.CancelScope()
        """`_patience` expires when the service has not been called for long enough."""
        self._was_called = trio.Event()
        self.called()

    def called(self) -> None:
        """Note that the service has been called since the last time, so a standby is worth having."""
        rests_after_s = self._spec.standby_rests_after_s
        self._deadline = trio.current_time() + (math.inf if rests_after_s is None else rests_after_s)
        self._patience.deadline = self._deadline
        self._was_called.set()

    def take(self, launch: LaunchConfig, descriptors: Sequence[int]) -> int | None:
        """Turn the standby into the generation that `launch` describes.

        Returns its pid, which the caller must collect, or None if no suitable standby exists.
        """
        dead = select.poll()
        if (pid := self.pid) is None or replace(self._launch, generation=launch.generation) != launch:
            return None
        dead.register(self._pidfd, select.POLLIN)
        if dead.poll(0) or progress_of(pid)[0] == STOPPED:
            return None
        try:
            wake = _encoder.encode(Wake(generation=launch.generation))
            self._control.sendmsg([wake], rights(descriptors), socket.MSG_DONTWAIT)
        except OSError:
            return None
        self.pid = None
        self._waiting.cancel()
        return pid

    async def run(self) -> None:
        """Keep a standby until it is taken, or until cancelled."""
        delay = self._spec.standby_first_s if self._launch.generation == 1 else AFTER_A_RESTART_S
        try:
            with self.scope:
                while True:
                    await trio.sleep(delay)
                    with trio.CancelScope(deadline=self._deadline) as self._patience:
                        if await self._live():
                            return
                    delay = AGAIN_S
                    if self._patience.cancelled_caught:
                        if self._deadline <= trio.current_time():
                            self._was_called = trio.Event()
                            if not self._zygote.spec.wait_s:
                                # No start waits for it, so it is only worth its memory for standbys.
                                self._zygote.no_longer_needed_by(self._spec.name)
                            await self._was_called.wait()
                        delay = AFTER_A_RESTART_S
        finally:
            os.close(self._log_fd)

    async def _live(self) -> bool:
        """Run one process until it is taken (returns True) or dies."""
        self._zygote.needed_by.add(self._spec.name)
        ours, theirs = socket_pair()
        with ours:
            with theirs:
                try:
                    pid = await self._zygote.fork(
                        self._launch, self._spec.env, (theirs.fileno(), self._log_fd), standby=True
                    )
                except ZygoteDown as error:
                    _log.warning("%s has no standby: %s", self._spec.name, error)
                    return False
            self._reaper.own.add(pid)
            settle(pid, OOM_SCORE_ADJ)
            self.pid, self._pidfd, self._control = pid, os.pidfd_open(pid), ours
            try:
                with trio.CancelScope() as self._waiting:
                    await trio.lowlevel.wait_readable(self._pidfd)
            finally:
                is_taken, self.pid = self.pid is None, None
                if not is_taken:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                    # Nobody needs its exit status: the reaper collects it.
                    self._reaper.buried(pid)
                os.close(self._pidfd)
        return is_taken
