"""A client of the composite tools in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from proto.mcp import FAILURE as FAILURE_META
from proto.vocabulary import in_former_names
from tests.unit.front.inprocess import InProcess
from tests.unit.front.steps import TABLE, open_service
from tests.unit.front.wire import Wire, connected, gateway_in_process


class Client:
    """A client of one surface; each call is a connection of its own."""

    def __init__(self, surface: str) -> None:
        self.surface = surface
        self.notices: list[dict[str, Any]] = []
        self.calls: list[str] = []

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call."""
        async with served(self.surface) as (wire, dispatcher):
            await wire.initialize()
            await wire.call(name, arguments, id=1, meta={"progressToken": "p"})
            while "id" not in (message := await wire.receive()):
                self.notices.append(message)
            self.calls = dispatcher.calls
        result: dict[str, Any] = message["result"]
        return result

    async def query(self, *steps: dict[str, Any]) -> Any:
        """The structured content of a query that must succeed; it is the text, too."""
        result = await self.tool("query", steps=list(steps))
        assert result["isError"] is False, result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result["structuredContent"]

    async def refused(self, name: str, **arguments: Any) -> str:
        """The message of a call that is refused; nothing must have run."""
        result = await self.tool(name, **arguments)
        assert result["isError"] is True, result
        assert self.calls == []
        assert result["_meta"][FAILURE_META]["kind"] == "invalid_params"
        text: str = result["content"][0]["text"]
        # In the names of the surface `documents`, so that one text is expected on both.
        return in_former_names(text, steps=True)


@contextlib.asynccontextmanager
async def served(surface: str) -> AsyncIterator[tuple[Wire, InProcess]]:
    async with gateway_in_process(TABLE, open_service) as (gateway, dispatcher), connected(gateway, surface) as wire:
        yield wire, dispatcher


GOOD = {"op": "search", "params": {"query": "a"}}
