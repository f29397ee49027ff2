"""What serves clients once the SDK is loaded: one server for each surface, and the news they pass on.

This module loads the SDK, and is itself loaded beside the first messages of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio
from mcp.server.subscriptions import PromptsListChanged

from kernel.gateway.composite.dispatch import Composites
from kernel.gateway.prompts import FilePrompts
from kernel.gateway.protocol.completion import Completer
from kernel.gateway.protocol.events import News
from kernel.gateway.protocol.server import SurfaceServer
from kernel.gateway.scratchpad import Scratchpads
from kernel.gateway.surfaces import Surface
from kernel.ports import Dispatcher
from proto import mcp
from proto.ops import Table


class Servers:
    """The servers of all surfaces, by name, from now until `close`."""

    def __init__(
        self,
        surfaces: Mapping[str, Surface],
        table: Table,
        dispatcher: Dispatcher,
        nursery: trio.Nursery,
        version: str,
        scratchpads: Scratchpads,
        prompts: FilePrompts,
    ) -> None:
        self.news = News(nursery)
        completer = Completer(table, dispatcher)
        self.by_name = {
            name: SurfaceServer(
                surface, Composites(dispatcher, surface.steps), completer, self.news, version, scratchpads, prompts
            )
            for name, surface in surfaces.items()
        }
        nursery.start_soon(prompts.watch, partial(self.news.publish, PromptsListChanged()))
        self.close = dispatcher.subscribe(f"{mcp.PREFIX}*", self.news.receive)
