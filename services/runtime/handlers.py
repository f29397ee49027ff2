"""How a service is written: handlers for operations, and what a handler is given.

    @asynccontextmanager
    async def open_service(env: Environment) -> AsyncIterator[Handlers]:
        handlers = Handlers()

        @handlers.handle(NoyalibGet)
        async def get(params: NoyalibGet, ctx: Context) -> NoyalibGetResult:
            ...

        yield handlers          # from here on the service is ready

What stands before the `yield` is start-up (open the database, load the model, warm up); what stands after it is the
orderly end.  A handler is cancelled when its caller cancels, disconnects or runs out of time.

A family of handlers that share state is a class, and `Handlers.add` registers its methods:

    class Documents:
        def __init__(self, env: Environment) -> None: ...

        @handles(NoyalibGet)
        async def get(self, params: NoyalibGet, ctx: Context) -> NoyalibGetResult: ...

    handlers = Handlers(Documents(env), Searches(env))      # or handlers.add(Documents(env))

A module may also have `warm_up` and `rehearse`, which take work out of a restart: see `WarmUp` and `Rehearse`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import trio

from proto.birth import Birth
from proto.operation import Params, operation_of

P = TypeVar("P", bound=Params[Any])
R = TypeVar("R")
S = TypeVar("S")


class Context(Protocol):
    """The call being served."""

    @property
    def caller(self) -> str:
        """`client`, or the name of the calling service."""

    @property
    def trace(self) -> str:
        """W3C traceparent of the call."""

    @property
    def session(self) -> str:
        """An opaque name of the client's session; empty where the call is of none (the command line, a service)."""

    @property
    def deadline(self) -> float:
        """On trio's clock; the handler is cancelled then."""

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far the work has come; costs nothing where the caller did not ask."""

    def log(self, level: str, message: str) -> None:
        """A line for the service's log and for the client that made this call (`debug` … `error`)."""

    async def emit(self, item: object) -> None:
        """Send one item of a streamed result; waits while the caller has no room for it."""

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        """Call an operation of another service, through the kernel, within this call's deadline and trace.

        Raises LinckiaError of the kind that the kernel or the other service answered.
        """

    async def ask_client(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """A request to the client that made this call (`elicitation/create`, `sampling/createMessage`).

        Raises LinckiaError where the client is not there, cannot, or will not.
        """


GiveBack = Callable[[], Awaitable[None]]
"""Lets go of memory."""


class Environment(Protocol):
    """What a service is born with."""

    @property
    def service(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def mode(self) -> str:
        """The fall-back mode of this generation (`cuda`, `cpu`); empty where the child spec lists none."""

    @property
    def data_dir(self) -> Path:
        """The service's own folder; it exists, and no other process opens its files."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """The real paths below which files may be read or changed."""

    @property
    def settings(self) -> dict[str, Any]:
        """The service's own table of the settings, `[services.NAME]`, already merged with the environment."""

    @property
    def background(self) -> trio.Nursery:
        """For tasks that live as long as the service.  One that raises ends the process, and it is restarted."""

    @property
    def ending(self) -> trio.Event:
        """Set once the service is to end: a call that only waits for something should answer with what there is."""

    async def after_the_rush(self) -> None:
        """Until the calls that waited for a restart have had a moment to be answered: work in the background that no
        call waits for begins after it.  At once in the first generation, for which no call has waited."""

    def info(self, **values: str) -> None:
        """What `status` shows of this service; replaces the values of the same names."""

    def at_rest(self, give_back: GiveBack) -> None:
        """Have this called each time the service has worked and rests: for caches that are worth their memory only
        while there is work.  It must raise nothing."""

    def publish(self, topic: str, body: object) -> None:
        """An event for the subscribers of `topic`."""

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        """Call an operation of another service on this service's own account."""


Handler = Callable[[Any, Context], Awaitable[object]]

_OPERATIONS = "_operations_handled"


def handles(
    params: type[P],
) -> Callable[[Callable[[S, P, Context], Awaitable[R]]], Callable[[S, P, Context], Awaitable[R]]]:
    """Mark a method as the handler of the operation that `params` declares; `Handlers.add` registers it.

    The method itself stays as it is and can be called directly.  A method may carry several marks.  A subclass that
    overrides a marked method repeats the mark.
    """

    def mark(method: Callable[[S, P, Context], Awaitable[R]]) -> Callable[[S, P, Context], Awaitable[R]]:
        setattr(method, _OPERATIONS, (*getattr(method, _OPERATIONS, ()), params))
        return method

    return mark


class Handlers:
    """The handlers of one service by operation."""

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


WarmUp = Callable[[], None]
"""What a service's module may have as `warm_up`: called once in the zygote, so that every child finds it done.

Python alone: compile patterns, fill caches.  No thread, no file or descriptor left open, nothing of torch or a BLAS,
for a fork would copy their state and not their threads.
"""

Rehearse = Callable[[Path, Mapping[str, Any]], Sequence[Params[Any]] | None]
"""What a service's module may have as `rehearse`, so that the first calls after a restart cost what later ones do.

A standby, a process that waits to take the place of one that dies, opens the service on an empty data folder of its
own, makes the calls that `rehearse` answers, in their order, and ends the service again.  The first argument is the
one root of that rehearsal, an empty folder to put files into; the second are the service's settings.  Everything is
thrown away afterwards; of other services none is there, and no caller sees the answers, failures included.

Answer the calls that clients make most, and before them what these need to find something.  Answer None where
opening the service costs more than milliseconds or a megabyte (a model); then only the loop and the link are
rehearsed, as they are for a service that has no `rehearse`.
"""

OpenService = Callable[[Environment], contextlib.AbstractAsyncContextManager[Handlers]]
"""What a service's module must have as `open_service`."""


__all__ = [
    "AsyncIterator",
    "Birth",
    "Context",
    "Environment",
    "GiveBack",
    "Handler",
    "Handlers",
    "OpenService",
    "Rehearse",
    "WarmUp",
    "handles",
]
