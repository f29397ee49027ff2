"""What fronts know of sessions together: kept by the kernel for the next one, told to those beside.

Where there is one front only, nothing is told.  Where there are several, the requests of one session come to any of
them, so that what one is told of a session the others are told as well.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from proto import frames, grants
from proto.dispatch import Dispatcher
from proto.errors import LinckiaError
from proto.frames import Event
from proto.front import SERVICE
from proto.front import TO_FRONTS as PREFIX
from proto.operation import Params, operation_of
from proto.ops.kernel import KernelKeepSession, KernelKeptSession
from services.front.dispatcher import Events
from services.front.scratchpad import Entry
from services.front.session import SessionState, read_state

_log = logging.getLogger("linckia.gateway")


class Changed(msgspec.Struct, frozen=True):
    """A session is as its state says."""

    name: str
    state: str


class Said(msgspec.Struct, frozen=True):
    """A session's client has sent what is no request: an answer to a question, or the withdrawal of a call."""

    name: str
    message: bytes


class Cached(msgspec.Struct, frozen=True):
    """A long answer was kept for a session, or for clients without one."""

    name: str
    entry: Entry


News: TypeAlias = Changed | Said | Cached

_KINDS: dict[str, type[News]] = {f"{PREFIX}{kind.__name__}": kind for kind in (Changed, Said, Cached)}


class Peers:
    """The other fronts, and the kernel.

    Args:
        several: whether there are other fronts.
    """

    def __init__(self, dispatcher: Dispatcher, events: Events, *, several: bool) -> None:
        self.several = several
        self._dispatcher = dispatcher
        self._events = events

    async def _ask_kernel(self, params: Params[object]) -> object:
        with grants.lifted():
            return await self._dispatcher.call(operation_of(params), params, caller=SERVICE)

    async def keep(self, name: str, state: SessionState) -> None:
        """Have the kernel keep what a session is, and tell the others."""
        written = state.written()
        try:
            await self._ask_kernel(KernelKeepSession(name=name, state=written))
        except LinckiaError as error:
            _log.warning("a session's state is not kept: %s", error)
        self.tell(Changed(name, written))

    async def kept(self, name: str) -> SessionState:
        """What the kernel keeps of a session; the defaults where that is nothing."""
        try:
            written = await self._ask_kernel(KernelKeptSession(name=name))
            return read_state(written) if isinstance(written, str) else SessionState()
        except (LinckiaError, msgspec.DecodeError) as error:
            _log.warning("a session's state is not known: %s", error)
            return SessionState()

    def tell(self, what: News) -> None:
        """The other fronts, if there are any."""
        if self.several:
            self._events.publish(f"{PREFIX}{type(what).__name__}", what)

    def listen(self, receive: Callable[[News], Awaitable[None]]) -> None:
        """Call `receive` with what the others tell."""

        async def read(event: Event) -> None:
            if (kind := _KINDS.get(event.topic)) is not None:
                await receive(frames.read_body(event.body, kind))

        if self.several:
            self._events.on_event(read)
