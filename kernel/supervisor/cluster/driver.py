"""The kernel's side of the cluster driver: starts it, exchanges messages with it, and restarts it when it ends.

While there is no driver, or it has not reached the cluster, `connected` is false and every request raises `DriverDown`
at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from kernel.configure.spec import Backoff
from kernel.supervisor.policy import delay_s
from kernel.supervisor.processes import Reaper
from kernel.supervisor.service_log import ServiceLog
from kernel.supervisor.spawn import SpawnError, spawn
from proto.names import module
from proto.wire.channel import socket_pair
from proto.wire.cluster import (
    MAX_PACKET_BYTES,
    DriverConfig,
    Ended,
    Failed,
    FromDriver,
    Lost,
    Nodes,
    Prepared,
    Started,
    ToDriver,
)

MODULE = module("services.cluster.driver")

SILENT_S = 10.0
"""The driver reports the nodes every second, or ends; one that does neither for so long hangs."""

CONNECT_S = 60.0
"""Time for the driver to load Ray, which takes seconds, and to reach the cluster."""

OOM_SCORE_ADJ = 300
LOG_MAX_BYTES = 4 * 1024 * 1024

BACKOFF = Backoff(base_s=1.0, max_s=15.0, healthy_after_s=30.0)
"""A cluster that is back is noticed within 15 s, and looking for it costs a core some seconds each time."""

_log = logging.getLogger("linckia.supervisor")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[FromDriver] = msgspec.msgpack.Decoder(FromDriver)


class DriverDown(Exception):
    """The cluster cannot be used now; the message says why."""


class Driver:
    """The driver's process; `run` must be running.

    Args:
        address: the cluster's, as Ray knows it.
        host: this machine's, for the nodes; "" for the one by which the cluster knows it.
        secret: by which it knows the adapters of mounted servers.
        nodes_changed: called with each report of the nodes.
        lost: called once whenever a driver that was connected is gone.
        ended: called when a started service ended on its node.
    """

    def __init__(
        self,
        address: str,
        host: str,
        secret: str,
        log_dir: Path,
        reaper: Reaper,
        *,
        nodes_changed: Callable[[Nodes], None],
        lost: Callable[[], None],
        ended: Callable[[Ended], None],
    ) -> None:
        self.address = address
        self._host, self._secret = host, secret
        self.problem = ""
        """Why the cluster is not connected; "" if it is, or no try has ended. It stays during the next try."""
        self.connected = False
        self.restarts = 0
        self._log_dir = log_dir
        self._reaper = reaper
        self._nodes_changed, self._lost, self._ended = nodes_changed, lost, ended
        self._control: trio.socket.SocketType | None = None
        self._waiting: dict[int, trio.MemorySendChannel[Prepared | Started | Failed]] = {}

    async def run(self) -> None:
        """Keep a driver running, until cancelled."""
        streak = 0
        while True:
            begun = trio.current_time()
            try:
                await self._run_once()
            except (SpawnError, OSError) as error:
                self.problem = str(error)
            finally:
                self._disconnect()
            _log.warning("the cluster at %s is not connected: %s", self.address, self.problem)
            self.restarts += 1
            healthy = trio.current_time() - begun >= BACKOFF.healthy_after_s
            streak = 1 if healthy else streak + 1
            await trio.sleep(delay_s(BACKOFF, streak - 1, random.random()))

    def _disconnect(self) -> None:
        was_connected, self.connected, self._control = self.connected, False, None
        for answers in self._waiting.values():
            answers.close()
        if was_connected:
            self._lost()

    async def _run_once(self) -> None:
        ours, theirs = socket_pair()
        log, said = ServiceLog(self._log_dir, "cluster", LOG_MAX_BYTES), ""
        with contextlib.closing(log), trio.socket.from_stdlib_socket(ours) as control:
            with theirs:
                process = spawn(
                    MODULE, (theirs.fileno(),),
                    msgspec.json.encode(
                        DriverConfig(
                            address=self.address, host=self._host, secret=self._secret, parent_pid=os.getpid()
                        )
                    ),
                    env=_environment(), log_fd=log.fd, folder=self._log_dir, oom_score_adj=OOM_SCORE_ADJ,
                )  # fmt: skip
            self._reaper.own.add(process.pid)
            try:
                self._control = control
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(log.run)
                    said = await self._read(control)
                    nursery.cancel_scope.cancel()
            finally:
                # The driver starts no programs of its own; Ray ends what it placed.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
                self._reaper.own.discard(process.pid)
                log.note(f"the cluster driver (process {process.pid}) ended with {code}")
                self.problem = said or f"its driver ended with {code}: {log.last_words()}"

    async def _read(self, control: trio.socket.SocketType) -> str:
        """Read its messages until it ends or hangs; return why, if that is known."""
        try:
            with trio.move_on_after(CONNECT_S) as patience:
                while packet := await control.recv(MAX_PACKET_BYTES):
                    patience.deadline = trio.current_time() + SILENT_S
                    message = _decoder.decode(packet)
                    if isinstance(message, Lost):
                        self.problem = message.why
                        self._disconnect()
                        return message.why
                    self._accept(message)
            if patience.cancelled_caught:
                self._disconnect()
                return "its driver reported nothing in time"
        except (OSError, msgspec.DecodeError) as error:
            _log.error("the cluster driver: %s", error)
        return ""

    def _accept(self, message: FromDriver) -> None:
        match message:
            case Nodes():
                if not self.connected:
                    _log.info("the cluster at %s is connected: %d nodes", self.address, len(message.nodes))
                self.connected, self.problem = True, ""
                self._nodes_changed(message)
            case Prepared() | Started() | Failed():
                if (answers := self._waiting.get(message.id)) is not None:
                    answers.send_nowait(message)
            case Ended():
                self._ended(message)

    async def request(self, message: ToDriver) -> Prepared | Started:
        """Send a request and return its answer. Raises DriverDown: it failed, or the driver is gone."""
        if not self.connected:
            raise DriverDown(self.problem or "the cluster is not connected yet")
        self._waiting[message.id], answer = trio.open_memory_channel[Prepared | Started | Failed](1)
        try:
            self.post(message)
            found = await answer.receive()
        except trio.EndOfChannel:
            raise DriverDown(self.problem or "the cluster was lost") from None
        finally:
            del self._waiting[message.id]
        if isinstance(found, Failed):
            raise DriverDown(found.error)
        return found

    def post(self, message: ToDriver) -> None:
        """Send a message without waiting for anything; it is dropped if there is no driver."""
        if self._control is None:
            return
        packet = _encoder.encode(message)
        try:
            # A packet is sent as a whole or not at all. Only a driver that hangs leaves no room.
            os.write(self._control.fileno(), packet)
        except OSError as error:
            _log.warning("the cluster driver accepts no messages: %s", error)


def _environment() -> dict[str, str]:
    """Return the variables that Ray reads, such as those for its own TLS. Usage is not reported to Ray's makers."""
    own = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    return {**own, "RAY_USAGE_STATS_ENABLED": "0"}
