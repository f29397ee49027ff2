"""Connections: links to servers, with the server's process if it runs here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from services.mounts.link.links import NOT_READ, Link, PipeLink
from services.mounts.process.child import PATIENCE_S, Child, start_child

CAUSE_S = 1.0
"""Time for the end of a process to be known after its pipes have closed."""


class Connection:
    """A link to one server.

    Attributes:
        pid: the server's process; 0 if it is elsewhere.
        guardian_pid: the process above all processes of the server; 0 if it is elsewhere.
    """

    pid = guardian_pid = 0

    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def speaks_otherwise(self) -> bool:
        """Whether the server was reached, but may need another transport."""
        return False

    def redact(self, text: str) -> str:
        """Return a text without the server's secrets."""
        return text

    async def cause(self, said: str) -> str:
        """Return why the link ended, with what the link itself `said`."""
        return said

    async def wait_ended(self) -> None:
        """Wait until the process ends or cannot be reached any more; forever if it runs elsewhere."""
        await trio.sleep_forever()

    @property
    def heard_at(self) -> float:
        """When the server last gave a sign of life other than a message, on trio's clock."""
        return 0.0

    def end_now(self) -> None:
        """Have the server killed instead of asked to end when the connection closes."""


class ChildConnection(Connection):
    """A link to a process that this adapter has started."""

    def __init__(self, child: Child, redact: Callable[[str], str]) -> None:
        link = PipeLink(child, redact)
        super().__init__(link)
        self._redact = redact
        self.pipes = link
        self.pid, self.guardian_pid = child.pid, child.guardian_pid
        self.child = child
        self.is_patient = True

    def redact(self, text: str) -> str:
        return self._redact(text)

    async def cause(self, said: str) -> str:
        is_deaf = self.pipes.is_deaf.is_set()
        with trio.move_on_after(PATIENCE_S if is_deaf else CAUSE_S):
            await self.child.ended.wait()
        return self.child.cause or (NOT_READ if is_deaf else said)

    async def wait_ended(self) -> None:
        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, self.child.ended)
            nursery.start_soon(wait, self.pipes.is_deaf)

    @property
    def heard_at(self) -> float:
        return max(self.pipes.heard_at, self.child.heard_at)

    def end_now(self) -> None:
        self.is_patient = False


Connect = Callable[[], AbstractAsyncContextManager[Connection]]


def to_command(
    command: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    redact: Callable[[str], str],
    confined: bool = False,
) -> Connect:
    """Return a function that starts a server and connects to it. It raises NotStarted."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Connection]:
        child = await start_child(command, cwd=cwd, environment=environment, confined=confined)
        connection = ChildConnection(child, redact)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.watch, redact)
            nursery.start_soon(connection.pipes.run_writer)
            try:
                yield connection
            finally:
                await (child.close() if connection.is_patient else child.kill())
                nursery.cancel_scope.cancel()

    return connect
