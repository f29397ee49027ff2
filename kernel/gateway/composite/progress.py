"""Progress of many steps as the progress of one call: each step is one unit of it, reached in order."""

from __future__ import annotations

from typing import Any

from kernel.json_types import JsonObject
from kernel.ports import ClientRequests

_HALF_WAY = 100.0
"""Where a step that does not know its end stands half-way, in its own units."""


class StepUpcalls:
    """`kernel.ports.ClientRequests` for one step of several."""

    def __init__(self, call: ClientRequests, index: int, count: int, name: str) -> None:
        self._call = call
        self._index = index
        self._count = count
        self._name = name

    def begin(self) -> None:
        """The step runs from now on."""
        self._call.progress(self._index, self._count, self._name)

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        # Short of the whole: that is reached when the result is there, and is the next step's beginning.
        part = done / total if total else done / (done + _HALF_WAY) if done > 0 else 0.0
        text = self._name if message is None else f"{self._name}: {message}"
        self._call.progress(self._index + min(max(part, 0.0), 0.999), self._count, text)

    def log(self, level: str, logger: str, message: str) -> None:
        self._call.log(level, logger, message)

    async def ask(self, method: str, params: dict[str, Any]) -> JsonObject:
        return await self._call.ask(method, params)
