"""Connections under hypercorn's trio worker that end when their client has gone, and that cost little for each request.

Hypercorn 0.18 keeps a connection that waits for its next request until the keep-alive time is over, also once the
client has closed its end: each client that comes and goes would leave its descriptors and its memory for two minutes.
It starts and ends a task for each request to measure that time, and sends the head of a response by itself, which
wakes the client once more than it need be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypercorn.trio.run
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer


class Connection(TCPServer):
    """One client's connection: over as soon as nothing more can be read and the request in flight has been answered."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.idle_task: Idleness = Idleness(self)  # type: ignore[assignment]  # used as one in `TCPServer`
        self._client_gone = False
        self._head = b""

    async def _read_data(self) -> None:
        await super()._read_data()
        self._client_gone = True
        self.idle_task.end()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            if _body_follows(event.data):
                self._head += event.data
                return
            if not event.data and not self._head:
                return
            event, self._head = RawData(self._head + event.data), b""
        elif isinstance(event, Closed) and self._head:
            head, self._head = RawData(self._head), b""
            await super().protocol_send(head)
        elif isinstance(event, Updated) and self._client_gone:
            # Idle again, and nothing to wait for.
            return
        await super().protocol_send(event)


def _body_follows(data: bytes) -> bool:
    """Whether it is the head of a response whose whole body is at hand; a stream says nothing of its length."""
    return data[:9] == b"HTTP/1.1 " and data[9:10] != b"1" and b"\r\ncontent-length:" in data.lower()


class Idleness:
    """Closes a connection that has waited too long for its next request, or does so when the server is to end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._scope = trio.CancelScope()
        self._begun = self._idle = self._over = False

    async def restart(self, task_group: TaskGroup, action: Callable[[], Any]) -> None:
        """From now on it waits; `action` is how hypercorn would measure that."""
        self._idle = True
        self._scope.deadline = trio.current_time() + self._connection.config.keep_alive_timeout
        if not self._begun:
            self._begun = True
            task_group.spawn(self._watch)

    async def stop(self) -> None:
        """A request has come."""
        self._idle = False
        self._scope.deadline = math.inf

    def end(self) -> None:
        """There is nothing to close any more."""
        self._over = True
        self._scope.cancel()

    async def _watch(self) -> None:
        with self._scope:
            await self._connection.context.terminated.wait()
        # Where a request is in flight, hypercorn closes once it is answered.
        if self._idle and not self._over:
            with trio.CancelScope(shield=True):
                await self._connection._initiate_server_close()


def install() -> None:
    """Have hypercorn make connections of this kind; it offers no setting for it."""
    hypercorn.trio.run.TCPServer = Connection  # type: ignore[attr-defined]
