"""How a service is written: handlers for operations, and what a handler is given.

    @asynccontextmanager
    async def open_service(env: Environment) -> AsyncIterator[Handlers]:
        yield Handlers(Documents(env), Searches(env))       # from here on the service is ready

    class Documents:
        @handles(NoyalibGet)
        async def get(self, params: NoyalibGet, ctx: Context) -> NoyalibGetResult: ...

What stands before the `yield` is start-up, what stands after it is the orderly end. A handler is cancelled when its
caller cancels, disconnects or runs out of time.
"""

from __future__ import annotations

import contextlib
import inspect
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
import trio

from linckia.proto import frames
from linckia.proto.errors import InvalidParams
from linckia.proto.frames import Call, Event, Log, Progress
from linckia.proto.launch import LaunchConfig
from linckia.proto.operation import Params, operation_of
from linckia.services.runtime.calls import Outgoing
from linckia.services.runtime.roots import Roots

P = TypeVar("P", bound=Params[Any])
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
C = TypeVar("C", bound="Closable")
Q = ParamSpec("Q")

PROGRESS_INTERVAL_S = 0.05
"""A person cannot read it more often than twenty times a second."""

BACKGROUND_S = 0.1
"""How long work in the background lets the calls that waited for a restart go ahead: some dozens are answered in it."""

GiveBack = Callable[[], Awaitable[None]]
"""Lets go of memory; raises nothing."""


class Context:
    """The call being served.

    Attributes:
        caller: `client`, or the name of the calling service.
        trace: its W3C traceparent.
        session: an opaque name of the client's session; '' where the call is of none (the command line, a service).
        grant: what that client may do, `proto.grants.current` too; None for all. The roots heed it by themselves.
        scope: of the handler, which is cancelled at the call's deadline.
    """

    def __init__(self, call: Call, outgoing: Outgoing) -> None:
        self.caller, self.trace, self.session, self.grant = call.caller, call.trace, call.session, call.grant
        self.scope = trio.CancelScope(deadline=trio.current_time() + call.left_ms / 1000)
        self.cancelled_by_caller = False
        self._call = call
        self._outgoing = outgoing
        self._post = outgoing.channel.post
        self._progressed = -1.0

    @property
    def id(self) -> int:
        """Its number on the link."""
        return self._call.id

    @property
    def deadline(self) -> float:
        """On trio's clock; the handler is cancelled then."""
        return self.scope.deadline

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far the work has come; costs nothing where the caller did not ask."""
        now = trio.current_time()
        finished = total is not None and done >= total
        if self._call.progress and (finished or now - self._progressed >= PROGRESS_INTERVAL_S):
            self._progressed = now
            self._post(Progress(self._call.id, done, total, message and message[: frames.TEXT_CHARS]))

    def log(self, level: frames.Level, message: str) -> None:
        """A line for the service's log and for the client that made this call (`debug` … `error`)."""
        self._post(Log(level, message[: frames.TEXT_CHARS], self._call.id))

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        """Call an operation of another service, through the kernel, within this call's deadline and trace.

        Raises LinckiaError of the kind that the kernel or the other service answered.
        """
        return await self._outgoing.call(
            params, parent=self._call.id, trace=self.trace, deadline=self.deadline, timeout_s=timeout_s
        )

    async def ask_client(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request to the client that made this call (`elicitation/create`, `sampling/createMessage`).

        The answer is as the client sent it: the caller checks the form that it asked for.

        Raises LinckiaError where the client is not there, cannot, or will not.
        """
        limit_s = max(0.001, self.deadline - trio.current_time())
        asked = frames.pack_body(frames.Question(method, params))
        body = await self._outgoing.raw(
            frames.ASK_CLIENT, asked, limit_s=limit_s, parent=self._call.id, trace=self.trace
        )
        # By MCP, as the client gave it: who asked checks its form.
        answer: dict[str, Any] = frames.read_body(body, dict[str, Any])
        return answer


class Environment:
    """What a service is born with.

    Attributes:
        mode: the fall-back mode of this generation (`cuda`, `cpu`); '' where the child spec lists none.
        data_dir: the service's own folder; it exists, and no other process opens its files.
        roots: the real paths below which files may be read or changed, and what is out of reach there.
        settings: the service's own table of the settings, `[services.NAME]`, merged with the environment.
        background: for tasks that live as long as the service. One that raises ends the process, and it is restarted.
        ending: set once the service is to end: a call that only waits should then answer with what there is.
        shown: what `status` shows of this service.
        backlogs: for `status` and `/metrics`, by what work in the background is on, how far it is; None: it is done.
        resting: called each time the service has worked and rests.
        outgoing: the calls that it makes, for a front, which makes them in clients' names.
        handoff: where the kernel hands descriptors to it, for a front.
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
        self.settings = launch.settings
        self.background = background
        self.ending = ending
        self.shown: dict[str, str] = {}
        self.backlogs: dict[str, Callable[[], frames.Backlog | None]] = {}
        self.resting: list[GiveBack] = []
        self.outgoing = outgoing
        self.handoff = handoff
        self._receivers: list[Callable[[Event], Awaitable[None]]] = []
        self._closed_at_the_end = closed_at_the_end

    def settings_as(self, kind: type[T]) -> T:
        """The settings as a Struct.  Raises InvalidParams that names what does not fit."""
        try:
            return msgspec.convert(self.settings, kind)
        except msgspec.ValidationError as error:
            raise InvalidParams(f"settings of {self.service}: {error}") from None

    async def opened(self, open_: Callable[Q, C], *args: Q.args, **named: Q.kwargs) -> C:
        """What `open_` makes in a thread, a database above all; it is closed in one once the service and its tasks in
        the background have ended."""
        made = await trio.to_thread.run_sync(partial(open_, *args, **named))
        self._closed_at_the_end.push_async_callback(_close, made)
        return made

    async def after_the_rush(self) -> None:
        """Until the calls that waited for a restart have had a moment to be answered: work in the background that no
        call waits for begins after it. At once in the first generation, for which no call has waited."""
        if self.generation > 1:
            await trio.sleep(BACKGROUND_S)

    def info(self, **values: str) -> None:
        """What `status` shows of this service; replaces the values of the same names, '' removes one."""
        shown = [(name, value[: frames.INFO_CHARS]) for name, value in (self.shown | values).items() if value]
        self.shown = dict(shown[: frames.INFO_ENTRIES])

    def damaged(self, what: str) -> None:
        """Have `status` and `doctor` say that data is damaged, what of it is served, and what to do."""
        self.info(**{frames.DAMAGE: what})

    def at_rest(self, give_back: GiveBack) -> None:
        """Have this called each time the service has worked and rests: for caches that are worth their memory only
        while there is work."""
        self.resting.append(give_back)

    def publish(self, topic: str, body: object) -> None:
        """An event for the subscribers of `topic`."""
        self.outgoing.channel.post(Event(topic, frames.pack_body(body)))

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None:
        """Have this called, in a task of its own, with each event that the kernel passes to this service."""
        self._receivers.append(receive)

    def receive(self, event: Event) -> None:
        """An event came."""
        for receive in self._receivers:
            self.background.start_soon(receive, event)

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        """Call an operation of another service on this service's own account."""
        return await self.outgoing.call(params, timeout_s=timeout_s)


class Closable(Protocol):
    """What holds files."""

    def close(self) -> object:
        """Blocks until they are let go."""


async def _close(opened: Closable) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(opened.close)


Handler = Callable[[Any, Context], Awaitable[object]]

_OPERATIONS = "_operations_handled"


def handles(
    params: type[P],
) -> Callable[[Callable[Concatenate[S, P, Q], Awaitable[R]]], Callable[Concatenate[S, P, Q], Awaitable[R]]]:
    """Mark a method as the handler of the operation that `params` declares; `Handlers.add` registers it.

    The method itself stays as it is and can be called directly. It may carry several marks; a subclass that overrides
    it repeats them.
    """

    def mark(method: Callable[Concatenate[S, P, Q], Awaitable[R]]) -> Callable[Concatenate[S, P, Q], Awaitable[R]]:
        setattr(method, _OPERATIONS, (*getattr(method, _OPERATIONS, ()), params))
        return method

    return mark


class Handlers:
    """The handlers of one service by operation; `families` are objects with methods marked by `handles`."""

    def __init__(self, *families: object) -> None:
        self.by_name: dict[str, tuple[type[Params[Any]], Handler]] = {}
        for family in families:
            self.add(family)

    def add(self, family: object) -> None:
        """Register each method of `family` that is marked with `handles`.

        Raises ValueError where no method is marked, or where an operation has a handler already.
        """
        found = False
        for name in dir(type(family)):
            for params in getattr(inspect.getattr_static(type(family), name), _OPERATIONS, ()):
                self.handle(params)(getattr(family, name))
                found = True
        if not found:
            raise ValueError(f"{type(family).__name__} has no method that is marked with @handles")

    def handle(
        self, params: type[P]
    ) -> Callable[[Callable[[P, Context], Awaitable[R]]], Callable[[P, Context], Awaitable[R]]]:
        """Register the decorated coroutine for the operation that `params` declares.

        It answers the operation's result, or that result as JSON (`frames.Written`) where it is kept as such.
        """
        declared = operation_of(params)

        def register(handler: Callable[[P, Context], Awaitable[R]]) -> Callable[[P, Context], Awaitable[R]]:
            if declared.name in self.by_name:
                raise ValueError(f"operation {declared.name} has two handlers")
            self.by_name[declared.name] = (params, handler)
            return handler

        return register


OpenService = Callable[[Environment], contextlib.AbstractAsyncContextManager[Handlers]]
"""What a service's module must have as `open_service`."""

WarmUp = Callable[[], None]
"""What a service's module may have as `warm_up`: called once in the zygote, so that every child finds it done.

Python alone: compile patterns, fill caches. No thread, no file or descriptor left open, nothing of torch or a BLAS,
for a fork would copy their state and not their threads.
"""

Prepare = Callable[[Mapping[str, Any]], None]
"""What a service's module may have as `prepare`: called with the service's settings in a standby, for what takes long
and is the same for each start. Nothing of the data or the roots, and no model, which would be in memory twice.
"""
