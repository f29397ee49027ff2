"""The kernel's end of the control socket: calls from the command line, and descriptors of MCP clients for the fronts.

Only the user who runs the kernel and root may connect, but not the kernel's own descendants. Closing a connection
cancels its requests.
"""

from __future__ import annotations

import array
import logging
import math
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import trio

from kernel.chronicle.isolation import run_isolated
from kernel.control.peers import is_admitted
from kernel.router.generation import Undecoded
from kernel.router.router import Router
from proto import keys
from proto.errors import (
    Failure,
    Forbidden,
    Internal,
    InvalidParams,
    Kind,
    LinckiaError,
    Unavailable,
    UnknownOperation,
)
from proto.json_types import JsonObject
from proto.operation import OPERATOR, SURFACES, Operation, Params
from proto.ops import Table
from proto.origin import Origin
from proto.validation import exceeded
from proto.wire import frames
from proto.wire.channel import passed
from proto.wire.front import CALL_MOUNTED

log = logging.getLogger("linckia.control")

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Maximum length of a request; equal to the limit on an MCP message."""

SEND_BYTES = 1024 * 1024
"""Number of bytes sent before other connections get a turn."""

MAX_WAITING = 16
"""Maximum number of requests that one connection may have waiting."""

PROGRESS_INTERVAL_S = 0.05
"""Minimum interval between progress lines, which only people read; the latest one is always sent."""

FIRST_CLIENT_S = 60.0
"""How long an ephemeral kernel waits for the client that started it."""

GOODBYE_S = 0.5
"""Time allowed for telling a client that the kernel ends."""

ACCEPT_RETRY_S = 0.1
"""Pause after running out of descriptors, as in trio's own `serve_listeners`."""


Attach = Callable[[int, int, str, int | None], Awaitable[None]]
"""Serves MCP on the client's input and output, with the tools of a surface, until the client leaves. The last argument
is the memory file that holds the session, if any. The caller keeps the descriptors."""


class CallRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Call an operation."""

    call: str
    params: JsonObject = {}
    progress: bool = False
    timeout_s: float | None = None
    key: str | None = None
    """Idempotency key."""


class Attachment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Serve MCP on the descriptors sent with the line, with the tools of `surface`. `roots` must equal the kernel's
    own; with `read_only`, the kernel must be read-only."""

    surface: str = "all"
    roots: tuple[str, ...] | None = None
    read_only: bool = False


class Successor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A permanent kernel asks an ephemeral one for its data directory; these are its settings."""

    roots: tuple[str, ...]
    read_only: bool


@dataclass(kw_only=True)
class ControlServer:
    """Serves requests on the control socket."""

    router: Router
    table: Table
    attach: Attach
    started: trio.Event
    """Set once there are services to call. Calls wait for it; clients' descriptors do not."""
    stopping: trio.Event
    """Set during an orderly shutdown, so that local clients learn why their session ends."""
    roots: tuple[str, ...] = ()
    """The kernel's roots. Clients that want other roots are refused."""
    read_only: bool = False
    linger_s: float | None = None
    """For an ephemeral kernel: `run` returns this many seconds after the last client left."""
    _busy: int = field(default=0, init=False)
    is_replaced: bool = field(default=False, init=False)
    """Whether another kernel continues the sessions of local clients."""
    _alone: trio.CancelScope = field(default_factory=trio.CancelScope, init=False)

    async def run(
        self, listening: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve `listening`, which the caller closes. Cancellation ends every connection."""
        listener = trio.socket.from_stdlib_socket(listening)
        async with trio.open_nursery() as connections:
            with self._alone:
                if self.linger_s is not None:
                    self._alone.deadline = trio.current_time() + FIRST_CLIENT_S
                task_status.started()
                while True:
                    try:
                        accepted, _ = await listener.accept()
                    except OSError:
                        log.exception("cannot accept on the control socket; trying again")
                        await trio.sleep(ACCEPT_RETRY_S)
                        continue
                    # Busy from now on, not from the first request, so that the kernel cannot end in between.
                    self._enter()
                    connections.start_soon(run_isolated, "a control connection", self._serve, accepted)
            connections.cancel_scope.cancel()

    def _enter(self) -> None:
        self._busy += 1
        self._alone.deadline = math.inf

    def _leave(self) -> None:
        self._busy -= 1
        if not self._busy and self.linger_s is not None:
            self._alone.deadline = trio.current_time() + self.linger_s

    def step_aside(self, successor: Successor) -> JsonObject:
        """End in order, so that `successor` continues local clients' sessions. Raises Forbidden, Unavailable."""
        if self.linger_s is None:
            raise Forbidden(f"the kernel (process {os.getpid()}) was not started for its clients only, and stays")
        if set(successor.roots) != set(self.roots) or successor.read_only != self.read_only:
            mode = "read-only, " if self.read_only else ""
            raise Unavailable(
                f"its kernel (process {os.getpid()}), started for MCP clients that are still connected, is {mode}"
                f"serving the roots {_listed(self.roots)}: serve the same, or end it and its clients' sessions with "
                "`linckia stop`"
            )
        log.info("stepping aside for a kernel that stays")
        self.is_replaced = True
        self.stopping.set()
        return {"aside": {"pid": os.getpid()}}

    async def _serve(self, accepted: trio.socket.SocketType) -> None:
        connection = _Connection(self, accepted)
        try:
            if is_admitted(accepted):
                await connection.run()
        except* OSError:
            # The client is gone, and its requests have been cancelled.
            log.debug("a control connection broke", exc_info=True)
        finally:
            connection.close()
            self._leave()


class _Connection:
    """One client: a task reads lines and descriptors; requests run one after the other."""

    def __init__(self, server: ControlServer, accepted: trio.socket.SocketType) -> None:
        self._server = server
        self._socket = accepted
        self._sending = trio.Lock()
        self._descriptors: list[int] = []

    def close(self) -> None:
        self._close_descriptors()
        self._socket.close()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    async def run(self) -> None:
        """Serve requests until the client closes its end."""
        send, receive = trio.open_memory_channel[bytes](MAX_WAITING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, send, nursery.cancel_scope)
            async for line in receive:
                try:
                    answer = await self._answer(line)
                except LinckiaError as error:
                    answer = {"failure": error.failure}
                if isinstance(answer.get("result"), Undecoded):
                    body = answer["result"].body
                    await self.send({"body": len(body)}, body)
                else:
                    await self.send(answer)

    async def _read(self, lines: trio.MemorySendChannel[bytes], connection: trio.CancelScope) -> None:
        """Pass on complete lines. Cancel everything when the client is gone or sends too much."""
        buffer = bytearray()
        while data := await self._receive():
            *whole, rest = data.split(b"\n")
            for piece in whole:
                try:
                    lines.send_nowait(bytes(buffer + piece))
                except trio.WouldBlock:
                    await self._refuse(f"more than {MAX_WAITING} requests are waiting", connection)
                    return
                buffer.clear()
            buffer += rest
            if len(buffer) > MAX_LINE_BYTES:
                await self._refuse(f"a request of more than {MAX_LINE_BYTES} bytes", connection)
                return
        connection.cancel()

    async def _refuse(self, why: str, connection: trio.CancelScope) -> None:
        await self.send({"failure": Failure(kind=Kind.INVALID_PARAMS, message=why)})
        connection.cancel()

    async def _receive(self) -> bytes:
        room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
        data, ancillary, _flags, _address = await self._socket.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
        self._descriptors += passed(ancillary)
        return data

    async def send(self, message: JsonObject, body: bytes = b"") -> None:
        """Send one line, followed by the body that it announces."""
        async with self._sending:
            for part in (msgspec.json.encode(message) + b"\n", *frames.pieces_of(body)):
                data = memoryview(part)
                while data:
                    data = data[await self._socket.send(data[:SEND_BYTES]) :]

    async def _answer(self, line: bytes) -> JsonObject:
        """Return the reply to one request. Raises LinckiaError."""
        if (excess := exceeded(line)) is not None:
            raise InvalidParams(f"the request has {excess}")
        try:
            fields = msgspec.json.decode(line, type=JsonObject)
            if "attach" in fields:
                try:
                    return await self._attach(msgspec.convert(fields["attach"], Attachment))
                finally:
                    self._close_descriptors()
            if "step_aside" in fields:
                return self._server.step_aside(msgspec.convert(fields["step_aside"], Successor))
            return {"result": await self._call(msgspec.convert(fields, CallRequest))}
        except msgspec.DecodeError as error:
            raise InvalidParams(f"not a request of the control socket: {error}") from None
        except LinckiaError:
            raise
        except Exception as error:
            log.exception("a request on the control socket failed")
            raise Internal(f"the request failed because of a defect: {error!r}; kernel.log has the details") from error

    def _parsed(self, request: CallRequest) -> tuple[Operation[object], Params[object]]:
        """Return the operation and its parameters. A tool of a mounted server is known to fronts only."""
        table = self._server.table
        try:
            operation = table.find(request.call)
        except UnknownOperation:
            if table.surfaces == SURFACES:
                raise
            through = table.find(CALL_MOUNTED)
            return through, through.parse({"name": request.call, "arguments": request.params})
        return operation, operation.parse(request.params)

    async def _call(self, request: CallRequest) -> object:
        operation, params = self._parsed(request)
        if not operation.admits(OPERATOR):
            raise Forbidden(f"{operation.name} is called between services only")
        await self._server.started.wait()
        dispatch = self._server.router.call
        key = "" if request.key is None else keys.checked(request.key)
        origin = Origin(OPERATOR, key=key)
        call = partial(dispatch, operation, params, origin=origin, timeout_s=request.timeout_s, written=True)
        if not request.progress:
            return await call()
        reports = _Reports()
        result: object = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reports.forward, self)
            try:
                result = await call(client_requests=reports)
            except LinckiaError as error:
                # Not raised here, since the nursery would wrap it in a group.
                result = error
            finally:
                reports.finish()
        if isinstance(result, LinckiaError):
            raise result
        return result

    async def _attach(self, wanted: Attachment) -> JsonObject:
        server = self._server
        if (count := len(self._descriptors)) not in (2, 3):
            raise InvalidParams(f"an attach needs two or three descriptors, not {count}", field="attach")
        if wanted.surface not in server.table.surfaces:
            there = ", ".join(sorted(server.table.surfaces))
            raise InvalidParams(f"unknown surface {wanted.surface!r}; there are: {there}", field="surface")
        if wanted.roots is not None and set(wanted.roots) != set(server.roots):
            raise Unavailable(
                f"the running kernel (process {os.getpid()}) has the roots {_listed(server.roots)}, not "
                f"{_listed(wanted.roots)}: end it (linckia stop), ask for the same roots, or name another --data"
            )
        if wanted.read_only and not server.read_only:
            raise Unavailable(
                f"the running kernel (process {os.getpid()}) is not read-only: end it (linckia stop), or name another "
                "--data"
            )
        attached = {"pid": os.getpid(), "ephemeral": server.linger_s is not None, "roots": server.roots}
        await self.send({"attached": attached})
        fd_in, fd_out, *memory = self._descriptors
        try:
            await server.attach(fd_in, fd_out, wanted.surface, memory[0] if memory else None)
        except BaseException:
            if server.stopping.is_set():
                with trio.move_on_after(GOODBYE_S, shield=True):
                    await self.send({"detached": {"reason": "replaced" if server.is_replaced else "stopped"}})
            raise
        return {"detached": {"reason": "client"}}


def _listed(roots: Sequence[str]) -> str:
    return ", ".join(sorted(roots)) or "(none)"


class _Reports:
    """Forwards a running call's progress to the command line, which cannot be asked questions."""

    def __init__(self) -> None:
        self._progress: JsonObject | None = None
        self._news = trio.Event()
        self._finished = trio.Event()

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._progress = {"done": done, "total": total, "message": message}
        self._news.set()

    def log(self, level: str, logger: str, message: str) -> None:
        """No-op: the service's own log has it."""

    async def ask(self, question: bytes) -> bytes:
        raise Unavailable("the command line cannot answer questions; use an MCP client that can")

    def finish(self) -> None:
        """Note that the call has ended, so that `forward` sends the rest and returns. Cancelling could cut a line."""
        self._finished.set()
        self._news.set()

    async def forward(self, connection: _Connection) -> None:
        """Send progress reports as they arrive, until `finish`."""
        finished = False
        while not finished:
            await self._news.wait()
            self._news = trio.Event()
            finished = self._finished.is_set()
            if self._progress is not None:
                progress, self._progress = self._progress, None
                await connection.send({"progress": progress})
            with trio.move_on_after(PROGRESS_INTERVAL_S):
                await self._finished.wait()
