"""The API for writing a service: operation handlers and the objects they receive.

    @asynccontextmanager
    async def open_service(env: Environment) -> AsyncIterator[Handlers]:
        yield Handlers(Documents(env), Searches(env)) # from here on the service is ready

    class Documents:
        @handles(NoyalibGet)
        async def get(self, params: NoyalibGet, ctx: Context) -> NoyalibGetResult: ...

The code before the `yield` is start-up, the code after it is the orderly shutdown. A handler is cancelled when its
caller cancels, disconnects or runs out of time.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
import trio

from proto.errors import InvalidParams, LinckiaError
from proto.operation import Operation, Params, operation_of
from proto.wire import frames
from proto.wire.frames import Event
from proto.wire.launch import LaunchConfig
from services.runtime.calls import Context as Context  # noqa: PLC0414  # services import it from here
from services.runtime.calls import Outgoing
from services.runtime.change_log import EXCLUDED, ChangeLog
from services.runtime.database import Database
from services.runtime.key_store import KeyStore
from services.runtime.roots import Roots

P = TypeVar("P", bound=Params[Any])
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
C = TypeVar("C", bound="Closable")
Q = ParamSpec("Q")

BACKGROUND_S = 0.1
"""Delay of background work after a restart, so that waiting calls go first; some dozens are answered in this time."""

OF_FILES = "changes"
"""Where other services find the settings of `files`, which say what is kept of changes."""

NOT_ITS_OWN = (OF_FILES, "sources")
"""What else the kernel puts among a service's settings."""

MAX_CHANGES_BYTES = 4 * 1024 * 1024
"""Size of the log of changes from which its records are taken over without being asked for."""
COLLECT_AGAIN_S = 30.0

_log = logging.getLogger("linckia.service")

GiveBack = Callable[[], Awaitable[None]]
"""Releases memory; must not raise."""


class Environment:
    """The environment that a service starts in.

    Attributes:
        mode: the fall-back mode of this generation (`cuda`, `cpu`); empty if the child spec lists none.
        data_dir: the service's own folder; it exists, and no other process opens its files.
        roots: the real paths below which files may be read or changed, and the exclusions below them.
        settings: the service's settings table, `[services.NAME]`, merged with the environment.
        kernel: identity of this kernel, if others may take over the service's data; else empty.
        background: for tasks that live as long as the service. If one raises, the process ends and is restarted.
        ready: set once the service is ready; calls that it makes before fail.
        ending: set once the service should end; a call that only waits should then return what it has.
        ends_because: why the service ends by itself, for the calls that it was serving.
        shown: what `status` shows for this service.
        news: set when that has changed.
        backlogs: progress of background work by name, for `status` and `/metrics`; None means it is done.
        resting: called each time the service becomes idle after work.
        outgoing: the service's calls; a front uses it to make calls on behalf of clients.
        handoff: where the kernel hands descriptors to a front.
        changes: the log of changes to files (`keeps_changes`); None if the service makes none.
    """

    def __init__(
        self,
        launch: LaunchConfig,
        outgoing: Outgoing,
        background: trio.Nursery,
        ending: trio.Event,
        closed_at_the_end: contextlib.AsyncExitStack,
        *,
        handoff: socket.socket | None = None,
    ) -> None:
        self.service, self.generation, self.mode = launch.service, launch.generation, launch.mode
        self.data_dir = Path(launch.data_dir)
        self.roots = Roots.of(launch)
        self.settings = {name: value for name, value in launch.settings.items() if name not in NOT_ITS_OWN}
        self.kernel = str(launch.settings.get("sources", {}).get("kernel", ""))
        self._of_files = launch.settings.get(OF_FILES, self.settings)
        self.changes: ChangeLog | None = None
        self._collect: Callable[[], Awaitable[object]] | None = None
        self._collecting = False
        self.background = background
        self.ready = trio.Event()
        self.ending = ending
        self.ends_because = ""
        self.shown: dict[str, str] = {}
        self.news = trio.Event()
        self.backlogs: dict[str, Callable[[], frames.Backlog | None]] = {}
        self.resting: list[GiveBack] = []
        self.outgoing = outgoing
        self.handoff = handoff
        self.keys: KeyStore | None = KeyStore(self.data_dir, self.roots, background)
        """Where answers to calls with idempotency keys are; None if the service passes keys on to the calls it
        makes."""
        self._receivers: list[Callable[[Event], Awaitable[None]]] = []
        self._closed_at_the_end = closed_at_the_end

    def settings_as(self, kind: type[T]) -> T:
        """Convert the settings to a Struct. Raises InvalidParams that names the wrong setting."""
        try:
            return msgspec.convert(self.settings, kind)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"settings of {self.service}: {error}") from None

    def keeps_keys_in(self, database: Database) -> None:
        """Keep idempotency keys, and the answers to their calls, in the database that the calls change. It must have
        been opened with `keeps_keys`."""
        assert self.keys is not None
        self.keys.keep_in(database)

    def keeps_changes(self, collect: Callable[[], Awaitable[object]]) -> ChangeLog:
        """Record the changes to files that calls make, so that they can be undone.

        Args:
            collect: has `files` take the records over.
        """
        self._collect = collect
        log = ChangeLog(self.data_dir, self._of_files.get("undo_exclude", EXCLUDED))
        self._closed_at_the_end.callback(log.close)
        # If the disk fails, the first change says so.
        with contextlib.suppress(OSError):
            log.settle()
        if self._of_files.get("undo_max_mb") != 0:
            self.changes = log
        return log

    def changed(self) -> None:
        """Have the records of changes taken over if there are many."""
        if self.changes is not None and self.changes.waiting_bytes > MAX_CHANGES_BYTES and not self._collecting:
            self._collecting = True
            self.background.start_soon(self._have_collected)

    async def _have_collected(self) -> None:
        assert self._collect is not None
        try:
            await self._collect()
        except LinckiaError as error:
            # They stay in the log, and the next change tries again.
            _log.warning("records of changes cannot be taken over yet: %s", error)
            await trio.sleep(COLLECT_AGAIN_S)
        finally:
            self._collecting = False

    async def opened(self, open_: Callable[Q, C], *args: Q.args, **named: Q.kwargs) -> C:
        """Open a resource (usually a database) in a thread.

        It is closed in a thread after the service and its background tasks have ended.
        """
        made = await trio.to_thread.run_sync(partial(open_, *args, **named))
        self._closed_at_the_end.push_async_callback(_close, made)
        return made

    async def after_the_rush(self) -> None:
        """Wait until the calls that waited for a restart have had a moment to be answered.

        Background work that no call waits for starts after this. Returns immediately in the first generation, because
        no call can have waited for it.
        """
        if self.generation > 1:
            await trio.sleep(BACKGROUND_S)

    def info(self, **values: str) -> None:
        """Update what `status` shows for this service; existing names are replaced, an empty value removes one."""
        shown = [(name, value[: frames.INFO_CHARS]) for name, value in (self.shown | values).items() if value]
        if (now := dict(shown[: frames.INFO_ENTRIES])) != self.shown:
            self.shown = now
            self.news.set()

    def report(self) -> None:
        """Send what `status` shows before the service is ready; afterwards, the kernel asks for it."""
        self.outgoing.channel.post(frames.Pong(0, 0, self.shown))

    def damaged(self, what: str) -> None:
        """Have `status` and `doctor` report damaged data: what is still served, and what to do."""
        self.info(**{frames.DAMAGE: what})

    def at_rest(self, give_back: GiveBack) -> None:
        """Register a function that is called each time the service becomes idle, to drop caches that are only worth
        their memory while there is work."""
        self.resting.append(give_back)

    def publish(self, topic: str, body: object) -> None:
        """Publish an event to the subscribers of `topic`."""
        self.outgoing.channel.post(Event(topic, frames.pack_body(body)))

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None:
        """Register a function that is called with each event for this service, in a separate task."""
        self._receivers.append(receive)

    def receive(self, event: Event) -> None:
        """Accept an event from the kernel."""
        for receive in self._receivers:
            self.background.start_soon(receive, event)

    async def call(self, params: Params[R], *, timeout_s: float | None = None, key: str = "") -> R:
        """Call an operation of another service on this service's own behalf. `key` is an idempotency key."""
        return await self.outgoing.call(params, timeout_s=timeout_s, key=key)


class Closable(Protocol):
    """An object that holds files open."""

    def close(self) -> object:
        """Release the files; blocks."""


async def _close(opened: Closable) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(opened.close)


Handler = Callable[[Any, Context], Awaitable[object]]

_OPERATIONS = "_operations_handled"


def handles(
    params: type[P], *, resumes: bool = False
) -> Callable[[Callable[Concatenate[S, P, Q], Awaitable[R]]], Callable[Concatenate[S, P, Q], Awaitable[R]]]:
    """Mark a method as the handler of the operation that `params` declares; `Handlers.add` registers it.

    The method itself is unchanged and can be called directly. It may carry several marks; a subclass that overrides it
    repeats them. With `resumes`, an interrupted call with an idempotency key goes on where it was when it is repeated
    (`keyed.steps`), although the operation is not idempotent.
    """

    def mark(method: Callable[Concatenate[S, P, Q], Awaitable[R]]) -> Callable[Concatenate[S, P, Q], Awaitable[R]]:
        setattr(method, _OPERATIONS, (*getattr(method, _OPERATIONS, ()), (params, resumes)))
        return method

    return mark


class Handlers:
    """The handlers of one service by operation; `families` are objects with methods marked by `handles`."""

    def __init__(self, *families: object) -> None:
        self.by_name: dict[str, tuple[Operation[Any], Handler]] = {}
        self.resume: set[str] = set()
        """Operations whose handlers go on with an interrupted call."""
        for family in families:
            self.add(family)

    def add(self, family: object) -> None:
        """Register each method of `family` that is marked with `handles`.

        Raises ValueError if no method is marked, or if an operation already has a handler.
        """
        found = False
        for name in dir(type(family)):
            for params, resumes in getattr(inspect.getattr_static(type(family), name), _OPERATIONS, ()):
                self.handle(params)(getattr(family, name))
                if resumes:
                    self.resume.add(operation_of(params).name)
                found = True
        if not found:
            raise ValueError(f"{type(family).__name__} has no method that is marked with @handles")

    def handle(
        self, params: type[P]
    ) -> Callable[[Callable[[P, Context], Awaitable[R]]], Callable[[P, Context], Awaitable[R]]]:
        """Register the decorated coroutine for the operation that `params` declares.

        It returns the operation's result, or the result already encoded as JSON (`frames.Written`).
        """

        def register(handler: Callable[[P, Context], Awaitable[R]]) -> Callable[[P, Context], Awaitable[R]]:
            self.handle_operation(operation_of(params), handler)
            return handler

        return register

    def handle_operation(self, operation: Operation[Any], handler: Handler) -> None:
        """Register a handler for an operation that is not declared by a class of its own.

        Raises ValueError if the operation already has a handler.
        """
        if operation.name in self.by_name:
            raise ValueError(f"operation {operation.name} has two handlers")
        self.by_name[operation.name] = (operation, handler)


OpenService = Callable[[Environment], contextlib.AbstractAsyncContextManager[Handlers]]
"""The function that a service's module must define as `open_service`."""

WarmUp = Callable[[], None]
"""The function that a service's module may define as `warm_up`: called once in the zygote for all its children.

It may only do work in Python, such as compiling patterns and filling caches. It must not start a thread, leave a file
or descriptor open, or use torch or a BLAS, because a fork copies their state but not their threads.
"""

Prepare = Callable[[Mapping[str, Any]], None]
"""The function that a service's module may define as `prepare`: called with the settings in a standby process.

It does slow work that is the same for each start. It must not touch data or roots, nor load a model, which would then
be in memory twice.
"""
