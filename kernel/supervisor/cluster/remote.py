"""A process on a node, as the supervisor sees it."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable
from typing import Protocol

import msgspec
import trio

from kernel.supervisor.placement import Exit, Running
from proto.wire import frames
from proto.wire.cluster import Ended, Kill, Prepared, Signal, Started, ToDriver
from proto.wire.nng_link import NngLink

REPORT_S = 1.0
"""How long a broken link waits for the report of how the process ended, without which its node counts as lost."""


class ClusterDriver(Protocol):
    """The part of `driver.Driver` that placing needs."""

    address: str
    problem: str
    connected: bool
    restarts: int

    async def run(self) -> None: ...

    async def request(self, message: ToDriver) -> Prepared | Started: ...

    def post(self, message: ToDriver) -> None: ...


class RemoteProcess(Running):
    """`placement.Running`: one process on a node of the cluster."""

    how = "cluster"
    handoff: socket.socket | None = None

    def __init__(
        self,
        number: int,
        pid: int,
        node: str,
        link: NngLink,
        driver: ClusterDriver,
        on_ready: Callable[[], None],
        on_end: Callable[[Exit, bool], None],
    ) -> None:
        """`on_end` is called once it has ended, with whether it was READY."""
        self.pid = pid
        self.node = node
        self.link = link
        self.number = number
        self._nng = link
        self._driver = driver
        self._on_ready, self._on_end = on_ready, on_end
        self._was_ready = False
        self._was_killed = self._said_bye = False
        self._report: Ended | None = None
        self._over = trio.Event()
        """Set once its end is reported, or it was killed."""
        self._exit: Exit | None = None

    async def wait(self) -> Exit:
        while self._exit is None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_then, self._nng.gone.wait, nursery.cancel_scope)
                nursery.start_soon(_then, self._over.wait, nursery.cancel_scope)
            if not self._over.is_set() and self._driver.connected:
                with trio.move_on_after(REPORT_S):
                    await self._over.wait()
            self._exit = self._how()
            self._on_end(self._exit, self._was_ready)
        return self._exit

    def _how(self) -> Exit:
        found = self._report
        if found is None and self._said_bye:
            # The report is late.
            return Exit(code=0)
        if found is None and self._was_killed:
            # It hung, and so may its node.
            return Exit(signal=signal.SIGKILL, lost=f"node {self.node} did not answer")
        if found is None or (found.code is None and found.signal is None):
            said = f": {found.last_words}" if found is not None and found.last_words else ""
            return Exit(lost=f"node {self.node}, or the link to it, was lost{said}")
        return Exit(code=found.code, signal=found.signal, last_words=found.last_words)

    async def until_ready(self) -> None:
        """Wait until it says that it is ready; its messages stay on the link. Raises LinkClosed."""
        seen: list[bytes] = []
        is_ready = False
        while not is_ready:
            seen.append(await self.link.receive())
            # Whatever else it is, the supervisor reads it.
            with contextlib.suppress(msgspec.DecodeError):
                is_ready = isinstance(frames.from_service(seen[-1]), frames.Ready)
        self._nng.put_back(seen)

    @property
    def is_over(self) -> bool:
        """Whether it is known to have ended."""
        return self._over.is_set() or self._nng.gone.is_set()

    def ended(self, report: Ended) -> None:
        """Note the driver's report of its end."""
        self._report = report
        self._over.set()

    def became_ready(self) -> None:
        self._was_ready = True
        self._on_ready()

    def said_bye(self) -> None:
        self._said_bye = True

    def signal(self, number: int) -> None:
        self._driver.post(Signal(id=self.number, number=number))

    def kill(self) -> None:
        # Its node may be out of reach. Without its link, the process ends by itself and cannot be heard.
        self._driver.post(Kill(id=self.number))
        self.link.close()
        self._was_killed = True
        self._over.set()

    def close(self) -> None:
        self._driver.post(Kill(id=self.number))
        self.link.close()


async def _then(wait: Callable[[], object], scope: trio.CancelScope) -> None:
    await wait()  # type: ignore[misc]  # either event's `wait`
    scope.cancel()
