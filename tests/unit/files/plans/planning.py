"""Shared parts of the tests of plans: a root with files of each kind, a kernel that records calls, and the result of an
execution.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from proto import ops
from proto.errors import InvalidParams, OperationError
from proto.later import LaterCall, filled
from proto.operation import Params
from proto.ops.kernel import KernelCall, KernelCalled, KernelMandate
from proto.wire import frames
from services.files.main import open_service as open_files
from services.files.operations.plans import Execution, PlanGet, PlanSource, SourceConfig
from services.files.operations.sets import ResourceSetGet
from services.files.plans.source_entries import PlanEntry
from services.files.store import schema
from services.runtime.handlers import Context, Environment, Handlers
from services.watch.main import open_service as open_watch
from tests.in_process import Bench, services_in_process
from tests.waiting import until

PATIENCE_S = 20

ENTRY = PlanEntry(1, "/in/a.txt", "a.txt", "/in/", schema.FILE, "txt", 7, 0, 0)


async def members(bench: Bench, name: str) -> set[str]:
    """Names of the entries of a set; none where there is no such set."""
    try:
        found = await bench.call(ResourceSetGet(name=name, include_entries=True, limit=10_000))
    except InvalidParams:
        return set()
    return {entry.name for entry in found.entries or []}


async def ended(bench: Bench, plan: str) -> Execution:
    """The last execution of a plan, once it has ended."""

    async def check() -> bool:
        return (await executions(bench, plan))[0].status != "running"

    await until(check)
    return (await executions(bench, plan))[0]


async def executions(bench: Bench, plan: str) -> list[Execution]:
    return (await bench.call(PlanGet(name=plan))).executions or []


def folder(
    path: Path, target: str | None = None, *, recursive: bool = True, include_directories: bool = False
) -> PlanSource:
    return PlanSource(
        name="s",
        type="filesystem.index",
        target_set=target,
        config=SourceConfig(path=str(path), recursive=recursive, include_directories=include_directories),
    )


def make(root: Path) -> None:
    for name, size in (("a.jpg", 10), ("b.png", 2000), ("in/c.jpg", 3000), ("in/d.txt", 5)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x" * size)


class Kernel:
    """Replaces the kernel: records calls, and returns scripted outcomes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.fails: Callable[[dict[str, object]], bool] = lambda arguments: False
        self.pause: trio.Event | None = None
        self.paused = trio.Event()

    @asynccontextmanager
    async def open(self, env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()

        @handlers.handle(KernelCall)
        async def call(params: KernelCall, ctx: Context) -> KernelCalled:
            asked = msgspec.json.decode(params.mandate, type=LaterCall)
            arguments = filled(asked.arguments, params.entry or {}, "arguments")
            self.calls.append((asked.operation, arguments))
            if self.pause is not None:
                self.paused.set()
                await self.pause.wait()
            if self.fails(arguments):
                raise OperationError("that one cannot be done")
            return KernelCalled(body=frames.pack_body({}))

        @handlers.handle(KernelMandate)
        async def mandate(params: KernelMandate, ctx: Context) -> list[str]:
            return [msgspec.json.encode(call).decode() for call in params.calls]

        async def refuse(params: Params[object], ctx: Context) -> object:
            raise OperationError("not here")

        for operation in ops.load().of_service("kernel"):
            handlers.by_name.setdefault(operation.name, (operation, refuse))
        yield handlers

    async def called(self) -> None:
        """Wait until the first call is under way."""
        with trio.fail_after(PATIENCE_S):
            await self.paused.wait()


@asynccontextmanager
async def with_kernel(data: Path, root: Path, kernel: Kernel) -> AsyncIterator[Bench]:
    services = {"kernel": kernel.open, "watch": open_watch, "files": open_files}
    async with services_in_process(services, data, roots=[root], settings={"files": {}, "watch": {}}) as bench:
        yield bench
        for name in ("files", "watch", "kernel"):
            if name in bench.running:
                await bench.stop(name)
