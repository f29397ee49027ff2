"""What tests of tasks share: the handlers on a database that answers at once, and a kernel that a test plays."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import trio

from proto.grants import Grant
from proto.ops.kernel import KernelCall, KernelCalled, KernelMandate
from proto.ops.tasks import Task, TaskGet, TaskStart
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel
from proto.wire.frames import Call
from services.runtime.calls import Outgoing
from services.runtime.database import Database, Kind
from services.runtime.dispatch import ClientRequests
from services.runtime.handlers import Context
from services.tasks import store
from services.tasks.main import Tasks
from services.tasks.settings import TasksSettings
from tests.memory_link import memory_link
from tests.unit.runtime.environment import PlayedEnvironment

T = TypeVar("T")

Play = Callable[[str, ClientRequests], Awaitable[None]]
"""Plays the kernel for the call of a mandate; returns if the call succeeds."""


class PromptDatabase(Database):
    """Reads and writes without a thread, so that the mock clock decides what happens when."""

    after_read: Callable[[], Awaitable[None]] | None = None
    """Called once, between a read and its answer."""

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        await trio.lowlevel.checkpoint()
        with self.snapshot() as db:
            found = query(db)
        if (after := self.after_read) is not None:
            self.after_read = None
            await after()
        return found

    async def write(self, change: Callable[[apsw.Connection], T], after: Callable[[T], object] | None = None) -> T:
        await trio.lowlevel.checkpoint()
        with self.transaction() as db:
            return change(db)

    async def answer(self, change: Callable[[apsw.Connection], T], *_: object, **__: object) -> T:
        return await self.write(change)


class _Kernel(Outgoing):
    def __init__(self, play: Play) -> None:
        super().__init__(Channel(memory_link()[0]), "tasks", 1)
        self._play = play

    async def raw(self, op: str, params: bytes, origin: Origin, **options: Any) -> bytes:
        mandate = cast("KernelCall", frames.read_body(params, KernelCall)).mandate
        await self._play(mandate, options["client_requests"])
        return frames.pack_body(KernelCalled(body=frames.pack_body({"did": mandate})))


class PlayedContext(Context):
    """A call of the client with the token or grant `owner`; the kernel's mandate for a call is its operation."""

    def __init__(self, owner: str | Grant = "") -> None:
        call = Call(id=1, op="tasks_start", params=b"", left_ms=600_000, generation=1, origin=Origin(
            "client", grant=owner if isinstance(owner, Grant) else Grant(name=owner) if owner else None))  # fmt: skip
        super().__init__(call, Outgoing(Channel(memory_link()[0]), "tasks", 1))
        self.size = 0
        """How long mandates are made at least."""

    async def call(self, params: Any, **_: Any) -> Any:
        assert isinstance(params, KernelMandate)
        return [each.operation.ljust(self.size) for each in params.calls]


class Bench:
    """`Tasks` and what stands around it."""

    def __init__(self, nursery: trio.Nursery, database: PromptDatabase, play: Play, **settings: Any) -> None:
        self.database = database
        self.environment = PlayedEnvironment(nursery, _nobody)
        self.environment.outgoing = _Kernel(play)
        self.settings = TasksSettings(**settings)
        self.tasks = Tasks(self.environment, database, self.settings)

    async def start(self, operation: str, owner: str | Grant = "") -> str:
        """Start a task of the client `owner`, and return its id."""
        return (await self.tasks.start(TaskStart(operation=operation), PlayedContext(owner))).id

    async def get(self, id_: str, owner: str | Grant = "") -> Task:
        return await self.tasks.get(TaskGet(id=id_), PlayedContext(owner))


async def _nobody(_: object) -> object:
    raise AssertionError("no other service is called")


@contextlib.asynccontextmanager
async def tasks_with(folder: Path, play: Play, **settings: Any) -> AsyncIterator[Bench]:
    """Run `Tasks` with these settings; `play` is the kernel."""
    database = PromptDatabase(folder / "tasks.db", store.SCHEMA, kind=Kind.SOURCE)
    try:
        async with trio.open_nursery() as nursery:
            yield Bench(nursery, database, play, **settings)
            nursery.cancel_scope.cancel()
    finally:
        database.close()
