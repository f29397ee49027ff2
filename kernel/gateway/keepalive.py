"""Connections that end when their client has gone, under hypercorn's trio worker.

Hypercorn 0.18 keeps a connection that waits for its next request until the keep-alive time is over, also once the
client has closed its end: each client that comes and goes would leave its descriptors and its memory for two minutes.
"""

from __future__ import annotations

import hypercorn.trio.run
from hypercorn.events import Event, Updated
from hypercorn.trio.tcp_server import TCPServer


class Connection(TCPServer):
    """One client's connection: over as soon as nothing more can be read and the request in hand has been answered."""

    _client_gone = False

    async def _read_data(self) -> None:
        await super()._read_data()
        self._client_gone = True
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if self._client_gone and isinstance(event, Updated):
            # Idle again, and nothing to wait for.
            return
        await super().protocol_send(event)


def install() -> None:
    """Have hypercorn make connections of this kind; it offers no setting for it."""
    hypercorn.trio.run.TCPServer = Connection  # type: ignore[attr-defined]
