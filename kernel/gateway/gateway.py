"""The gateway: every surface's server, the clients on them, and the ways in.

The control socket hands descriptors of local clients to `attach`; `kernel.gateway.http` serves the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import trio
from mcp.server.subscriptions import PromptsListChanged

from kernel.gateway.completion import Completer
from kernel.gateway.composite.dispatch import Composites
from kernel.gateway.events import News
from kernel.gateway.prompts import FilePrompts, Folder
from kernel.gateway.scratchpad import Scratchpads
from kernel.gateway.server import SurfaceServer
from kernel.gateway.stdio import serve_stdio
from kernel.gateway.surfaces import ALL, SURFACES, Surface
from kernel.ports import Dispatcher
from kernel.version import VERSION
from proto import notices
from proto.errors import InvalidParams
from proto.ops import Table


class Gateway:
    """Made by `open_gateway`.

    `clients` counts the local clients attached now; `on_clients` is called after each change of it.
    """

    def __init__(
        self, table: Table, dispatcher: Dispatcher, nursery: trio.Nursery, version: str, prompts: FilePrompts
    ) -> None:
        self.news = News(nursery)
        self.nursery = nursery
        self.clients = 0
        self.on_clients: Callable[[int], None] | None = None
        completer = Completer(table, dispatcher)
        scratchpads = Scratchpads()
        surfaces = [Surface(name, table) for name in SURFACES]
        self._servers = {
            surface.name: SurfaceServer(
                surface, Composites(dispatcher, surface.steps), completer, self.news, version, scratchpads, prompts
            )
            for surface in surfaces
        }
        self.operator: Dispatcher = Composites(dispatcher, self._servers[ALL].surface.steps, plain=True)
        """For calls of the command line: every operation, the composite ones among them."""

    def server(self, surface: str) -> SurfaceServer:
        """The server of a surface.

        Raises:
            InvalidParams: there is none of that name.
        """
        server = self._servers.get(surface)
        if server is None:
            raise InvalidParams(f"unknown surface {surface!r}; known surfaces: {', '.join(SURFACES)}", field="surface")
        return server

    async def attach(self, fd_in: int, fd_out: int, surface: str) -> None:
        """Serve one local client on descriptors that it passed; they stay the caller's to close.

        Returns when the client has gone and what it had asked is answered.  Cancellation ends it at once.

        Raises:
            InvalidParams: there is no such surface.
        """
        server = self.server(surface)
        self._count(1)
        try:
            await serve_stdio(server, fd_in, fd_out)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self.clients += change
        if self.on_clients is not None:
            self.on_clients(self.clients)


@contextlib.asynccontextmanager
async def open_gateway(
    table: Table, dispatcher: Dispatcher, *, version: str = VERSION, prompt_folders: Sequence[Folder] = ()
) -> AsyncIterator[Gateway]:
    """The gateway to the operations of `table`; its tasks end with the context."""
    prompts = FilePrompts(prompt_folders)
    async with trio.open_nursery() as nursery:
        gateway = Gateway(table, dispatcher, nursery, version, prompts)
        nursery.start_soon(prompts.watch, partial(gateway.news.publish, PromptsListChanged()))
        unsubscribe = dispatcher.subscribe(f"{notices.PREFIX}*", gateway.news.receive)
        try:
            yield gateway
        finally:
            unsubscribe()
            nursery.cancel_scope.cancel()
