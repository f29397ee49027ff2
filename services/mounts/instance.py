"""One server while it runs: its connection, the calls on it, and the watch over it.

A server that dies, is stopped, takes too much memory or does not answer ends with a cause (`Instance.cause`). Calls in
flight then raise `peer.Lost`; their makers decide what follows.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Protocol

import msgspec
import trio
from msgspec import Raw

from proto import mcp
from proto.errors import Timeout
from proto.mcp import CLIENT_CAPABILITIES, LOG_LEVEL
from proto.mounts import TOOLS_CALL, MountRequest
from proto.wire.frames import Written
from services.mounts.link import messages
from services.mounts.link.connections import Connect, Connection
from services.mounts.link.exchange import Exchange, Exchanges, Turns, log_line
from services.mounts.link.handshake import Greeting, Refused, greet, passed_capabilities
from services.mounts.link.links import LinkEnded
from services.mounts.link.liveness import LOOK_S, Behind, Liveness
from services.mounts.link.messages import Message
from services.mounts.link.peer import BadReply, Lost, NoReply, Peer, Pending
from services.mounts.link.questions import Questions, input_rounds
from services.mounts.offers import shapes
from services.mounts.offers.hidden import found_in, without
from services.mounts.process import processes
from services.mounts.process.child import NotStarted
from services.runtime.handlers import Context

STOPPED_S = 2.0
IDLE_PING_S, IDLE_ANSWER_S, HUNG_ANSWER_S = 30.0, 10.0, 5.0

STRAY_CHARS = 300
"""How much of the description of an unexpected reply goes to the log."""

REQUEST_LEVEL = "info"
"""Level of the log messages that servers without a handshake are asked for, with each request."""

_log = logging.getLogger("linckia.mount")


class StartFailed(Exception):
    """A server could not be started or connected to; the message is the cause."""


class Listener(Protocol):
    """What an instance reports to its owner.

    Attributes:
        mount: the server's name in the settings, for messages.
    """

    mount: str

    def on_list_changed(self, instance: Instance, which: str) -> None: ...

    def on_updated(self, uri: str) -> None: ...

    def on_look(self) -> None:
        """Calls have been in flight for a while; called regularly."""

    def on_asks(self) -> None:
        """The server asked something while calls of several sessions were in flight."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an instance."""

    memory_bytes: int
    timeout_s: float
    start_s: float
    roots: tuple[str, ...] = ()
    patient: bool = True
    """Whether calls wait for a while behind a silent server; otherwise they are refused at once."""


class Instance:
    """A server. `run` must run; it is usable once that has reported to be started.

    Attributes:
        cause: why it ended; empty while it runs.
        greeting: what the server says about itself.
        pid: 0 if it is not a process here.
        in_use: number of calls in flight.
        is_dying: whether it takes no more calls.
        was_closed: whether it was ended in order.
        is_extra: set by its owner, if it runs beside the one that all clients share.
        removed: set by its owner, once a new one may replace it.
        ended_while_greeting: whether it ended when it was asked for its revision.
    """

    def __init__(self, connect: Connect, limits: Limits, listener: Listener, *, strict: bool) -> None:
        self.cause = ""
        self.pid = 0
        self.exchanges = Exchanges()
        self.turns = Turns(strict=strict)
        self.ended = trio.Event()
        self.is_dying = self.was_closed = self.is_extra = False
        self.removed = trio.Event()
        self.used_at = trio.current_time()
        self.in_use = 0
        self._left_at = self.used_at
        """When the last call that was sent has ended."""
        self._unused = trio.Event()
        self.ended_while_greeting = False
        self._connect = connect
        self._limits = limits
        self._listener = listener
        self._scope = trio.CancelScope()
        self.peer: Peer
        self.liveness: Liveness
        self.greeting: Greeting
        self._connection: Connection
        self._questions: Questions
        self._nursery: trio.Nursery

    async def run(self, legacy: bool, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the server and serve until it ends, or is ended.

        Args:
            legacy: whether the server is known to need a handshake.

        Raises StartFailed, only before it has started.
        """
        started = False
        try:
            with self._scope:
                async with self._connect() as connection:
                    self._connection, self.pid = connection, connection.pid
                    self.peer = Peer(connection.link, self)
                    async with trio.open_nursery() as self._nursery:
                        self._questions = Questions(self, self._nursery, self._limits.roots)
                        self.liveness = Liveness(self, self.exchanges, self._nursery, patient=self._limits.patient)
                        self._nursery.start_soon(self._receive)
                        self._nursery.start_soon(self._wait_ended)
                        self._nursery.start_soon(self._watch)
                        await self._greet(legacy=legacy)
                        started = True
                        task_status.started()
                        await trio.sleep_forever()
        except NotStarted as error:
            self.cause = without(f"the server cannot be started: {error}")
        finally:
            self.cause = self.cause or "the server was ended"
            if hasattr(self, "peer"):
                self.peer.end(self.cause)
            self.ended.set()
        if not started:
            raise StartFailed(self.cause)

    async def _greet(self, *, legacy: bool) -> None:
        limit_s = self._limits.start_s
        try:
            self.greeting = await greet(self.peer, limit_s=limit_s, legacy=legacy)
        except Refused as error:
            self.fail(str(error))
        except NoReply:
            self.fail(f"the server did not answer `initialize` within {limit_s:g} s")
        except Lost:
            # `_receive` knows the cause.
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()

    def fail(self, cause: str) -> None:
        """End the server at once because of `cause`; the first cause counts."""
        if not self.cause:
            self.is_dying = True
            # Some causes quote the server.
            self.cause = cause = without(cause)
            self._connection.end_now()
            self.peer.end(cause)
            self._scope.cancel()

    def close(self) -> None:
        """End the server in order."""
        self.is_dying = self.was_closed = True
        self._scope.cancel()

    async def _receive(self) -> None:
        try:
            await self.peer.run()
        except LinkEnded as error:
            self.is_dying = True
            self.ended_while_greeting = not hasattr(self, "greeting")
            self.fail(await self._connection.cause(str(error)))

    async def _wait_ended(self) -> None:
        """Notice the end of a process whose pipes are held open, and one that has closed its stdin."""
        await self._connection.wait_ended()
        self.is_dying = True
        self.fail(await self._connection.cause("the server ended"))

    # Calls

    async def call(self, request: MountRequest, ctx: Context) -> Written:
        """Make a client's request, or go on with an earlier one whose question the client has answered.

        A reply that the protocol does not allow becomes an error. Raises Lost, BadReply, Behind, or Timeout if the
        server neither answers nor reports progress.
        """
        resumed = self.exchanges.resumed(ctx, request)
        if resumed is None:
            pending = self.peer.open(self._limits.timeout_s)
            exchange = Exchange(ctx, request, pending)
            pending.on_progress = exchange.progress
        else:
            exchange, answers = resumed
        self.used_at = trio.current_time()
        self.in_use += 1
        try:
            async with self.turns.turn(exchange.session, partial(self.liveness.patiently, exchange)):
                if resumed is None and self.liveness.is_in_doubt():
                    await self.liveness.until_heard(exchange)
                exchange.since = trio.current_time()
                self.exchanges.running[exchange.pending.number] = exchange
                if resumed is not None:
                    for name, answer in answers.items():
                        await self._questions.answer(exchange, name, answer)
                return written(await self._exchange(exchange, is_new=resumed is None))
        except shapes.Disallowed as error:
            return self._refused(request.method, error)
        finally:
            self.in_use -= 1
            if not self.in_use:
                self._unused.set()
                self._unused = trio.Event()
            self.used_at = trio.current_time()
            if exchange.ctx is ctx and self.exchanges.running.pop(exchange.pending.number, None) is not None:
                self._left_at = self.used_at

    async def _exchange(self, exchange: Exchange, *, is_new: bool) -> Message:
        """Wait for the reply of the server; afterwards it is forgotten, unless the client was asked."""
        pending, request, ctx = exchange.pending, exchange.request, exchange.ctx
        try:
            if is_new:
                await self.peer.send(pending, request.method, self._params(exchange))
            reply = await self._reply(pending, request.method)
            if self.greeting.modern and not request.modern:
                reply = await input_rounds(self, exchange, reply)
        except NoReply:
            await self._withdraw(exchange, "timed out")
            self._nursery.start_soon(self._require_answer, HUNG_ANSWER_S)
            raise Timeout(
                f"the server neither answered {request.method} nor reported progress within"
                f" {self._limits.timeout_s:g} s"
            ) from None
        except trio.Cancelled:
            if exchange.ctx is not ctx:
                # The client has already called again.
                raise
            if exchange.questions and exchange.request.modern:
                # The client is asked now, and makes its call again with the answers.
                if (displaced := self.exchanges.park(exchange)) is not None:
                    self._abandon(displaced)
            else:
                with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                    await self._withdraw(exchange, "cancelled by the client")
            raise
        except Behind:
            await self._withdraw(exchange, "it was not read in time")
            raise
        except BaseException:
            self.peer.close(pending)
            raise
        self.peer.close(pending)
        self.liveness.answered(exchange)
        return reply

    def _params(self, exchange: Exchange) -> bytes:
        meta: dict[str, Any] = {"progressToken": exchange.pending.number, **self.greeting.meta()}
        if self.greeting.modern:
            meta[LOG_LEVEL] = REQUEST_LEVEL
            if exchange.request.capabilities:
                meta[CLIENT_CAPABILITIES] = passed_capabilities(messages.value(exchange.request.capabilities))
        return messages.with_meta(exchange.request.params, meta)

    async def _withdraw(self, exchange: Exchange, reason: str) -> None:
        self.peer.close(exchange.pending)
        params = {"requestId": exchange.pending.number, "reason": reason}
        await self.peer.post(messages.notification("notifications/cancelled", params))

    def _abandon(self, exchange: Exchange) -> None:
        self.exchanges.parked.pop(exchange.pending.number, None)
        self._nursery.start_soon(self._withdraw, exchange, "the client did not answer")

    async def repeat(self, exchange: Exchange, params: bytes) -> Message:
        """Make the request of a call again, with other parameters. Raises NoReply, BadReply or Lost."""
        number = exchange.pending.number
        self.exchanges.running.pop(number, None)
        self.peer.close(exchange.pending)
        pending = exchange.pending = self.peer.open(self._limits.timeout_s, exchange.progress)
        self.exchanges.running[pending.number] = exchange
        exchange.request = msgspec.structs.replace(exchange.request, params=params)
        await self.peer.send(pending, exchange.request.method, self._params(exchange))
        return await self._reply(pending, exchange.request.method)

    async def _reply(self, pending: Pending, method: str) -> Message:
        """Wait for the reply. Raises NoReply, BadReply or Lost, or Disallowed if the protocol does not allow it."""
        reply = await self.peer.wait(pending)
        if isinstance(reply.error, Raw):
            return self._readable(reply, method, shapes.check_error(reply.error))
        assert isinstance(reply.result, Raw)
        shapes.check(method, reply.result, modern=self.greeting.modern)
        return reply

    def _readable(self, reply: Message, method: str, text: str) -> Message:
        """Return an error without hidden characters in its message."""
        if (said := without(text)) == text:
            return reply
        _log.warning("hidden characters in the message of an error to %s: %s", method, "; ".join(found_in(text)))
        error = {**messages.members(reply.error), "message": said}
        return msgspec.structs.replace(reply, error=Raw(messages.encode(error)))

    def _refused(self, method: str, error: shapes.Disallowed) -> Written:
        """Return the reply to a client in place of one that the protocol does not allow."""
        said = f"the server {self._listener.mount} answered {method} in a way that MCP does not allow: {error}"
        _log.error("%s", said)
        if method == TOOLS_CALL:
            said += ". It may have done what it was called for; the call was not repeated"
        return Written(b'{"error":' + messages.encode({"code": mcp.INTERNAL_ERROR, "message": said}) + b"}")

    async def ask(self, method: str, params: dict[str, Any], *, limit_s: float) -> Message:
        """Make a request of this client's own. Raises NoReply, BadReply or Lost."""
        return await self.peer.request(method, {**params, **self._own_meta()}, limit_s=limit_s)

    def _own_meta(self) -> dict[str, Any]:
        return {"_meta": self.greeting.meta()} if self.greeting.modern else {}

    async def listen(self, method: str, params: dict[str, Any], *, limit_s: float) -> Message:
        """Make a request, and notify the server if it is cancelled. Raises NoReply, BadReply or Lost."""
        pending = self.peer.open(limit_s)
        try:
            await self.peer.send(pending, method, messages.encode({**params, **self._own_meta()}))
            return await self.peer.wait(pending)
        except trio.Cancelled:
            with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                cancelled = {"requestId": pending.number, "reason": "replaced"}
                await self.peer.post(messages.notification("notifications/cancelled", cancelled))
            raise
        finally:
            self.peer.close(pending)

    @property
    def speaks_otherwise(self) -> bool:
        """Whether the server was reached, but may need another transport."""
        return hasattr(self, "_connection") and self._connection.speaks_otherwise

    async def wait_unused(self) -> None:
        """Wait until no call is in flight."""
        if self.in_use:
            await self._unused.wait()

    @property
    def is_parked(self) -> bool:
        """Whether the answer of a client is awaited, whose call has ended."""
        return bool(self.exchanges.parked)

    # What the server sends by itself

    def on_request(self, message: Message) -> None:
        if (asker := self.exchanges.asker()) is None and len(self.exchanges.running) > 1:
            self.turns.strict = True
            self._listener.on_asks()
        self._questions.receive(message, asker)

    def on_notification(self, message: Message) -> None:
        params = messages.value(message.params)
        params = params if isinstance(params, dict) else {}
        match message.method:
            case "notifications/message":
                level, text = log_line(params)
                if (asker := self.exchanges.asker()) is not None:
                    asker.ctx.log(level, text)  # type: ignore[arg-type]  # checked by `log_line`
                else:
                    _log.info("%s: %s", level, self._connection.redact(text))
            case "notifications/cancelled":
                self._questions.withdraw(params.get("requestId"))
            case "notifications/resources/updated" if isinstance(uri := params.get("uri"), str):
                self._listener.on_updated(uri)
            case "notifications/tools/list_changed":
                self._listener.on_list_changed(self, "tools")
            case "notifications/resources/list_changed":
                self._listener.on_list_changed(self, "resources")
            case "notifications/prompts/list_changed":
                self._listener.on_list_changed(self, "prompts")

    def on_stray(self, what: str) -> None:
        _log.warning("the server sent a reply to no request: %s", self._connection.redact(what[:STRAY_CHARS]))

    async def reply(self, message: bytes) -> None:
        """Send a reply to a request of the server."""
        await self.peer.post(message)

    # The watch

    async def _watch(self) -> None:
        stopped_since: float | None = None
        has_activity = False
        while True:
            await trio.sleep(LOOK_S)
            now = trio.current_time()
            for exchange in self.exchanges.overdue():
                self._abandon(exchange)
            if self.pid:
                stopped, used = await trio.to_thread.run_sync(self._look)
                if used > (limit := self._limits.memory_bytes):
                    self.fail(f"memory: the server used {used >> 20} MiB, of {limit >> 20} MiB")
                stopped_since = (stopped_since or now) if stopped else None
                if stopped_since is not None and now - stopped_since >= STOPPED_S:
                    self.fail("the server was stopped (SIGSTOP)")
                # Calls that wait for a sign of life do not make it busy.
                idle_since = max(self.peer.heard_at, self._left_at)
                is_idle = hasattr(self, "greeting") and not self.exchanges.running
                if is_idle and now - idle_since >= IDLE_PING_S:
                    await self._require_answer(IDLE_ANSWER_S)
            if hasattr(self, "greeting") and (self.in_use or has_activity):
                self.liveness.look()
                self._listener.on_look()
                has_activity = self.liveness.activity() is not None

    def _look(self) -> tuple[bool, int]:
        limit = self._limits.memory_bytes
        guardian = self._connection.guardian_pid
        return processes.are_stopped(self.pid), processes.memory_bytes(guardian, limit)

    @property
    def heard_at(self) -> float:
        """When the server last gave a sign of life, on trio's clock."""
        return max(self.peer.heard_at, self._connection.heard_at)

    @property
    def _ping(self) -> str:
        """The method of a request that costs the server nothing; later revisions have no `ping`."""
        return "server/discover" if self.greeting.modern else "ping"

    async def ping(self, *, limit_s: float) -> Message:
        """Ask the server for a reply. Raises NoReply, BadReply or Lost."""
        return await self.ask(self._ping, {}, limit_s=limit_s)

    async def _require_answer(self, limit_s: float) -> None:
        """End the server if it does not answer at all."""
        heard_at = self.peer.heard_at
        try:
            await self.ping(limit_s=limit_s)
        except NoReply:
            if self.peer.heard_at == heard_at:
                self.fail(f"hung: the server did not answer `{self._ping}` within {limit_s:g} s")
        except (BadReply, Lost):
            return


def written(reply: Message) -> Written:
    """Return a server's reply as the result of an operation."""
    if isinstance(reply.error, Raw):
        return Written(b'{"error":' + messages.one_line(bytes(reply.error)) + b"}")
    content = messages.one_line(bytes(reply.result)) if isinstance(reply.result, Raw) else b"{}"
    return Written(b'{"result":' + content + b"}")
