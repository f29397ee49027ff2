"""The watcher of a real kernel, for tests and benchmarks: the calls of a reader, as the command line makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from proto.errors import Failure, from_failure
from proto.operation import Params, operation_of
from tests.system.running import Connection, connection

R = TypeVar("R")


class KernelCaller:
    """Calls operations over one control connection."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._turn = trio.Lock()

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        """Raises LinckiaError of the kind that was answered."""
        operation = operation_of(params)
        async with self._turn:
            answer = await self._line.call(operation.name, msgspec.to_builtins(params))
        if answer.failure is not None:
            raise from_failure(msgspec.convert(answer.failure, Failure))
        result: R = msgspec.convert(answer.result, operation.result)
        return result


@asynccontextmanager
async def caller(data_dir: Path) -> AsyncIterator[KernelCaller]:
    async with connection(data_dir) as line:
        yield KernelCaller(line)
