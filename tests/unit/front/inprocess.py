"""A dispatcher that runs services' handlers in this very process: for tests of the gateway alone.

Parameters and results cross it as msgpack, as they cross the link.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import trio

from kernel.control.handoff import SessionStates
from proto.errors import LinckiaError, Unavailable
from proto.operation import Operation, Params
from proto.ops.kernel import KernelKeepSession, KernelKeptSession
from proto.origin import Origin
from proto.wire.frames import Event, Level, pack_body
from services.runtime.dispatch import ClientRequests, Outlasting
from services.runtime.handlers import Context, Environment, GiveBack, Handlers, OpenService
from services.runtime.roots import Roots


class InProcess:
    """`services.runtime.dispatch.Dispatcher` over handlers; `failing` makes an operation fail by name."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        self.failing: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.cancelled: list[str] = []
        self.started = trio.Event()
        self.withdrawn = trio.Event()
        self._receivers: list[Callable[[Event], Awaitable[None]]] = []
        self._nursery: trio.Nursery | None = None
        self.states = SessionStates()
        """What the kernel keeps; several may have the same."""

    async def call(
        self,
        operation: Operation[Any],
        params: Params[Any],
        *,
        origin: Origin,
        timeout_s: float | None = None,
        client_requests: ClientRequests | None = None,
        written: bool = False,
        outlasting: Outlasting | None = None,
    ) -> object:
        # The kernel's, of which tests of calls know nothing.
        if isinstance(params, KernelKeepSession):
            self.states.keep(params.name, params.state)
            return None
        if isinstance(params, KernelKeptSession):
            return self.states.get(params.name)
        self.calls.append(operation.name)
        if operation.name in self.failing:
            raise self.failing[operation.name]
        if operation.name not in self.handlers.by_name:
            raise Unavailable(f"no handler for {operation.name}", retry_after_ms=1500)
        declared, handler = self.handlers.by_name[operation.name]
        received = msgspec.msgpack.decode(pack_body(params), type=declared.params)
        try:
            self.started.set()
            with trio.fail_after(operation.deadline_ms / 1000):
                result = await handler(received, _Context(self, origin, client_requests))
        except trio.Cancelled:
            self.cancelled.append(operation.name)
            self.withdrawn.set()
            raise
        decoded: object = msgspec.msgpack.decode(pack_body(result))
        return decoded

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None:
        self._receivers.append(receive)

    def publish(self, topic: str, body: object) -> None:
        for receive in self._receivers:
            if self._nursery is not None:
                self._nursery.start_soon(receive, Event(topic, pack_body(body)))


class _Context(Context):
    deadline = float("inf")

    def __init__(self, dispatcher: InProcess, origin: Origin, client_requests: ClientRequests | None) -> None:
        self.origin = origin
        self._dispatcher = dispatcher
        self._client_requests = client_requests

    def progress(
        self, done: float, total: float | None = None, message: str | None = None, *, interval_s: float = 0.0
    ) -> None:
        if self._client_requests is not None:
            self._client_requests.progress(done, total, message)

    def log(self, level: Level, message: str) -> None:
        if self._client_requests is not None:
            self._client_requests.log(level, "test", message)

    async def call(self, params: Params[Any], *, timeout_s: float | None = None, key: str = "") -> Any:
        raise NotImplementedError

    async def ask_client(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._client_requests is None:
            raise Unavailable("no client to ask")
        return await self._client_requests.ask(method, params)


class _Environment(Environment):
    service = "test"
    generation = 1
    mode = ""
    roots = Roots()

    def __init__(self, dispatcher: InProcess, nursery: trio.Nursery, folder: Path) -> None:
        self.background = nursery
        self.data_dir = folder
        self.settings: dict[str, Any] = {}
        self.ending = trio.Event()
        self._dispatcher = dispatcher

    async def after_the_rush(self) -> None:
        return None

    def publish(self, topic: str, body: object) -> None:
        self._dispatcher.publish(topic, body)

    def info(self, **values: str) -> None:
        return None

    def at_rest(self, give_back: GiveBack) -> None:
        return None

    async def call(self, params: Params[Any], *, timeout_s: float | None = None, key: str = "") -> Any:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def in_process(*services: OpenService, folder: Path = Path("/nonexistent")) -> AsyncIterator[InProcess]:
    """A dispatcher with the handlers of `services`."""
    dispatcher = InProcess()
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
        dispatcher._nursery = nursery
        for open_service in services:
            handlers = await stack.enter_async_context(open_service(_Environment(dispatcher, nursery, folder)))
            dispatcher.handlers.by_name.update(handlers.by_name)
        yield dispatcher
        nursery.cancel_scope.cancel()


__all__ = ["InProcess", "LinckiaError", "in_process"]
