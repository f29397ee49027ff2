"""An `Environment` for what a service stands on, with a far end that a test plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import trio

from proto.operation import Params
from services.runtime.handlers import GiveBack

R = TypeVar("R")


class PlayedEnvironment:
    """`answer` plays every other service."""

    def __init__(self, nursery: trio.Nursery, answer: Callable[[Params[Any]], Awaitable[object]]) -> None:
        self.background = nursery
        self.ending = trio.Event()
        self.service, self.generation, self.mode = "played", 1, ""
        self.data_dir, self.roots = Path(), ()
        self.settings: dict[str, Any] = {}
        self.shown: list[dict[str, str]] = []
        self._answer = answer

    async def after_the_rush(self) -> None:
        await trio.lowlevel.checkpoint()

    def info(self, **values: str) -> None:
        self.shown.append(values)

    def at_rest(self, give_back: GiveBack) -> None:
        raise AssertionError("nothing here rests")

    def publish(self, topic: str, body: object) -> None:
        raise AssertionError("nothing here publishes")

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        return cast("R", await self._answer(params))
