"""Requests to a server and their replies, by number; requests and notifications of the server go to a receiver."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import trio
from msgspec import UNSET

from services.mounts.link import messages
from services.mounts.link.links import Link, LinkEnded
from services.mounts.link.messages import JsonObject, Message, Received, Unreadable, number_of

Progressed = Callable[[JsonObject], None]


class NoReply(Exception):
    """The server did not answer in time, and reported no progress."""


class Lost(Exception):
    """The link ended before the reply.

    Args:
        begun: whether the server may have received the request.
    """

    def __init__(self, cause: str, *, begun: bool) -> None:
        super().__init__(cause)
        self.begun = begun


class BadReply(Exception):
    """The server replied, but its reply cannot be read; the message says why."""


class Receiver(Protocol):
    """Takes what a server sends by itself; must not block."""

    def on_request(self, message: Message) -> None: ...

    def on_notification(self, message: Message) -> None: ...

    def on_stray(self, what: str) -> None:
        """The server sent a reply that belongs to no request, or not to any that can be known."""


class Pending:
    """A request without a reply yet.

    Attributes:
        number: its id, which is also its progress token.
        begun: whether the server may have received it.
        reply: the server's; None before `done` is set, if the link ended, and if there is an `error`.
        error: why there is no reply, and none will be waited for.
        position: where it ends in all that was sent (`Link.send`).
    """

    def __init__(self, number: int, limit_s: float, on_progress: Progressed | None) -> None:
        self.number = number
        self.begun = False
        self.reply: Message | None = None
        self.error: Exception | None = None
        self.position = 0
        self.done = trio.Event()
        self.on_progress = on_progress
        self._limit_s = limit_s
        self._scope = trio.CancelScope()
        self._pauses = 0
        self._expires_at = trio.current_time() + limit_s

    def clock(self) -> trio.CancelScope:
        """Return a new scope that is cancelled when the time is over."""
        self._scope = trio.CancelScope(deadline=math.inf if self._pauses else self._expires_at)
        return self._scope

    def touch(self) -> None:
        """Restart its time limit."""
        self._expires_at = trio.current_time() + self._limit_s
        self._scope.deadline = math.inf if self._pauses else self._expires_at

    def pause(self) -> None:
        """Stop its clock, because the server waits for a person."""
        self._pauses += 1
        self._scope.deadline = math.inf

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        self.touch()

    def begin(self, has_begun: bool) -> None:  # called by links, as `Begun`
        self.begun = has_begun

    def finish(self, reply: Message | None) -> None:
        self.reply = reply
        self.done.set()

    def fail(self, error: Exception) -> None:
        """Finish it without a reply: `Peer.wait` raises the error."""
        self.error = error
        self.done.set()


class Peer:
    """Speaks JSON-RPC over a link. `run` must run.

    Attributes:
        heard_at: when the last message arrived, on trio's clock.
        asked_at: when the last request was sent.
    """

    def __init__(self, link: Link, receiver: Receiver) -> None:
        self.link = link
        self.heard_at = self.asked_at = trio.current_time()
        self._receiver = receiver
        self._opened = 0
        self._pending: dict[int, Pending] = {}
        self._ended = ""

    async def run(self) -> None:
        """Receive until the link ends. Raises LinkEnded; `end` must follow."""
        while True:
            arrived = await self.link.receive()
            while arrived:
                # Kept by no name here: a large one would stay in memory until the next one arrives.
                self._accept(arrived.pop(0))

    def end(self, cause: str) -> None:
        """Wake all requests: no reply will come."""
        self._ended = self._ended or cause
        for pending in self._pending.values():
            pending.finish(None)

    def _accept(self, message: Received) -> None:
        self.heard_at = trio.current_time()
        if isinstance(message, Unreadable):
            if (pending := self._pending.get(message.id)) is not None:
                pending.fail(BadReply(message.problem))
            elif not self._was_opened(message.id):
                self._receiver.on_stray(message.problem)
        elif message.method is not UNSET:
            if message.id is not UNSET:
                self._receiver.on_request(message)
            elif message.method == "notifications/progress":
                self._progress(message)
            else:
                self._receiver.on_notification(message)
        elif (pending := self._pending.get(number := number_of(message.id))) is not None:
            pending.finish(message)
        elif not self._was_opened(number):
            self._receiver.on_stray(f"it has the id {message.id!r}")

    def _was_opened(self, number: int) -> bool:
        """Whether this is the number of a request: what comes after its end is only late."""
        return 0 < number <= self._opened

    def _progress(self, message: Message) -> None:
        params = messages.value(message.params)
        if not isinstance(params, dict):
            return
        if (pending := self._pending.get(number_of(params.get("progressToken")))) is not None:
            pending.touch()
            if pending.on_progress is not None:
                pending.on_progress(params)

    def open(self, limit_s: float, on_progress: Progressed | None = None) -> Pending:
        """Allocate a request; `wait` or `close` must follow."""
        self._opened += 1
        pending = Pending(self._opened, limit_s, on_progress)
        self._pending[pending.number] = pending
        return pending

    async def send(self, pending: Pending, method: str, params: bytes) -> None:
        """Send an opened request. Raises NoReply or Lost."""
        if self._ended:
            raise Lost(self._ended, begun=False)
        self.asked_at = trio.current_time()
        try:
            with pending.clock() as scope:
                sent = messages.request(pending.number, method, params)
                pending.position = await self.link.send(sent, pending.begin)
        except LinkEnded as error:
            raise Lost(str(error), begun=False) from None
        if scope.cancelled_caught:
            raise NoReply

    async def wait(self, pending: Pending) -> Message:
        """Wait for the reply; may be called again after a cancellation.

        Raises NoReply, BadReply, Lost, or what the request was failed with.
        """
        with pending.clock():
            await pending.done.wait()
        if not pending.done.is_set():
            raise NoReply
        if pending.error is not None:
            raise pending.error
        if pending.reply is None:
            raise Lost(self._ended, begun=pending.begun)
        return pending.reply

    def is_unread(self, pending: Pending) -> bool:
        """Whether the server has certainly not read a request that was sent."""
        return self.link.is_unread(pending.position)

    def close(self, pending: Pending) -> None:
        """Forget a request; a late reply is dropped."""
        self._pending.pop(pending.number, None)
        # It leads back to the call, and so to megabytes that would wait for the garbage collector.
        pending.on_progress = None

    async def request(self, method: str, params: JsonObject | None = None, *, limit_s: float) -> Message:
        """Send a request and return the reply. Raises NoReply, BadReply or Lost.

        Nothing is sent when it is cancelled.
        """
        pending = self.open(limit_s)
        try:
            await self.send(pending, method, messages.encode(params or {}))
            return await self.wait(pending)
        finally:
            self.close(pending)

    async def post(self, message: bytes) -> None:
        """Send a notification or a reply; dropped if the link has ended."""
        try:
            await self.link.send(message, lambda _: None)
        except LinkEnded:
            return
