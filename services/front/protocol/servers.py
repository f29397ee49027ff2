"""What serves clients once the SDK is loaded: one server for each surface, and the news they pass on.

This module loads the SDK, and is itself loaded beside the first messages of clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio
from mcp.server.subscriptions import PromptsListChanged

from proto.dispatch import Dispatcher
from proto.ops import Table
from proto.surfaces.surface import Surface
from services.front.composite.dispatch import Composites
from services.front.dispatcher import Events
from services.front.prompts import FilePrompts
from services.front.protocol.completion import Completer
from services.front.protocol.events import News
from services.front.protocol.server import SurfaceServer
from services.front.scratchpad import Scratchpads


class Servers:
    """The servers of all surfaces, by name."""

    def __init__(
        self,
        surfaces: Mapping[str, Surface],
        table: Table,
        dispatcher: Dispatcher,
        events: Events,
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
        events.on_event(self.news.receive)
