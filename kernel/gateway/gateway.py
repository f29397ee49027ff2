"""The gateway: every surface's server, the clients on them, and the ways in.

The control socket hands descriptors of local clients to `attach`; `kernel.gateway.transport.http` serves the rest.
The SDK is loaded beside the event loop, so that neither a client's first message nor the supervisor waits for a second
of imports; what needs the SDK waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import trio

from kernel import VERSION
from kernel.gateway.composite.dispatch import Composites
from kernel.gateway.prompts import FilePrompts, Folder
from kernel.gateway.protocol.handshake import Handshake
from kernel.gateway.scratchpad import Scratchpads
from kernel.gateway.surfaces import Surface
from kernel.gateway.transport.session_memory import SessionMemory
from kernel.gateway.transport.stdio import DRAIN_S, serve_stdio
from kernel.ports import Dispatcher
from proto.errors import InvalidParams
from proto.operation import ALL, SURFACES
from proto.ops import Table

if TYPE_CHECKING:
    from kernel.gateway.protocol.server import SurfaceServer
    from kernel.gateway.protocol.servers import Servers

FIRST_MESSAGE_S = 0.25
"""How long loading the SDK waits for a client to be answered first, with which it would share the interpreter."""


class Gateway:
    """Made by `open_gateway`.

    `clients` counts the local clients attached now; `on_clients` is called after each change of it.  `opened` is set
    when the first local client has been answered, or needs the SDK.  `loaded` is set once the SDK is there.
    """

    def __init__(
        self, table: Table, dispatcher: Dispatcher, nursery: trio.Nursery, version: str, prompts: FilePrompts
    ) -> None:
        self._table = table
        self._dispatcher = dispatcher
        self._nursery = nursery
        self._version = version
        self._prompts = prompts
        self._surfaces = {name: Surface(name, table) for name in SURFACES}
        self._scratchpads = Scratchpads()
        self._servers: Servers | None = None
        self.clients = 0
        self.on_clients: Callable[[int], None] | None = None
        self.opened = trio.Event()
        self.loaded = trio.Event()
        self.operator: Dispatcher = Composites(dispatcher, self._surfaces[ALL].steps, plain=True)
        """For calls of the command line: every operation, the composite ones among them."""

    async def load(self) -> None:
        """Load the SDK and make the servers."""
        with trio.move_on_after(FIRST_MESSAGE_S):
            await self.opened.wait()
        # In a thread: a second in which the event loop goes on, if more slowly.
        await trio.to_thread.run_sync(_load_sdk)
        from kernel.gateway.protocol.servers import Servers

        self._servers = Servers(
            self._surfaces,
            self._table,
            self._dispatcher,
            self._nursery,
            self._version,
            self._scratchpads,
            self._prompts,
        )
        self.loaded.set()

    def close(self) -> None:
        if self._servers is not None:
            self._servers.close()

    def surface(self, name: str) -> Surface:
        """
        Raises:
            InvalidParams: there is none of that name.
        """
        surface = self._surfaces.get(name)
        if surface is None:
            raise InvalidParams(f"unknown surface {name!r}; known surfaces: {', '.join(SURFACES)}", field="surface")
        return surface

    async def server(self, surface: str) -> SurfaceServer:
        """The server of a surface, once the SDK is loaded.

        Raises:
            InvalidParams: there is none of that name.
        """
        name = self.surface(surface).name
        self.opened.set()
        await self.loaded.wait()
        assert self._servers is not None
        return self._servers.by_name[name]

    async def attach(
        self, fd_in: int, fd_out: int, surface: str, memory: int | None = None, *, drain_s: float = DRAIN_S
    ) -> None:
        """Serve one local client on descriptors that it passed; they stay the caller's to close.

        Returns when the client has gone and what it had asked is answered.  Cancellation ends it at once.

        Args:
            memory: of the session, where it is to outlive this kernel (`kernel.gateway.transport.session_memory`).

        Raises:
            InvalidParams: there is no such surface.
        """
        shown = self.surface(surface)

        async def server() -> SurfaceServer:
            # Waited for, not asked for: the first message comes first.
            await self.loaded.wait()
            return await self.server(surface)

        self._count(1)
        try:
            handshake = Handshake(shown, self._version)
            pad = self._scratchpads.open()
            with contextlib.closing(SessionMemory(memory)) as session_memory:
                await serve_stdio(
                    server,
                    handshake,
                    pad,
                    fd_in,
                    fd_out,
                    session_memory=session_memory,
                    drain_s=drain_s,
                    opened=self.opened.set,
                )
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self.clients += change
        if self.on_clients is not None:
            self.on_clients(self.clients)


def _load_sdk() -> None:
    import kernel.gateway.protocol.servers
    import kernel.gateway.transport.sdk_session  # noqa: F401


@contextlib.asynccontextmanager
async def open_gateway(
    table: Table, dispatcher: Dispatcher, *, version: str = VERSION, prompt_folders: Sequence[Folder] = ()
) -> AsyncIterator[Gateway]:
    """The gateway to the operations of `table`; its tasks end with the context."""
    async with trio.open_nursery() as nursery:
        gateway = Gateway(table, dispatcher, nursery, version, FilePrompts(prompt_folders))
        nursery.start_soon(gateway.load)
        try:
            yield gateway
        finally:
            gateway.close()
            nursery.cancel_scope.cancel()
