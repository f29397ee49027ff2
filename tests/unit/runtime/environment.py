"""An `Environment` for what a service stands on, with a far end that a test plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

import trio

from proto.operation import Params
from proto.wire.channel import Channel
from proto.wire.launch import LaunchConfig
from services.runtime.calls import Outgoing
from services.runtime.handlers import Environment
from tests.memory_link import memory_link

R = TypeVar("R")


class PlayedEnvironment(Environment):
    """`answer` stands in for every other service; `told` lists the calls of `info`, in order."""

    def __init__(self, nursery: trio.Nursery, answer: Callable[[Params[Any]], Awaitable[object]]) -> None:
        launch = LaunchConfig(
            service="played", module="", generation=1, operations=(), parent_pid=0, data_dir="", roots=()
        )
        outgoing = Outgoing(Channel(memory_link()[0]), "played", 1)
        super().__init__(launch, outgoing, nursery, trio.Event(), AsyncExitStack())
        self.ready.set()
        self.told: list[dict[str, str]] = []
        self._answer = answer

    async def after_the_rush(self) -> None:
        await trio.lowlevel.checkpoint()

    def info(self, **values: str) -> None:
        self.told.append(values)

    async def call(self, params: Params[R], *, timeout_s: float | None = None, key: str = "") -> R:
        return cast("R", await self._answer(params))
