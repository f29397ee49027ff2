"""The stand-in of a server that the settings place on the cluster: a process here with its input, output and end.

    python -m services.mounts.node.stand_in COMMAND…

It asks the cluster's driver for a node, connects with the server's host there over TLS, and copies. If no node can be
had, it becomes the server: the command is then executed on this machine. Once the server has begun on a node it stays
there, and if the node is lost, the stand-in ends as a killed server does; the adapter then decides what follows.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio

from proto.wire.cluster import (
    MAX_PACKET_BYTES,
    Ended,
    Failed,
    FromDriver,
    Hello,
    Kill,
    Prepare,
    Prepared,
    Run,
    Silent,
    Started,
    ToDriver,
    socket_of,
)
from services.mounts.node.place import HOST, VARIABLE, Place, Program, folder_of
from services.mounts.node.stream import PIECE_BYTES, Kind, Lost, Stream

PLACE_S = 15.0
"""Time for a node to start the server's host, after which the server runs here, and its next start finds a host that
has started meanwhile. Ray takes some seconds for a new process, and the cluster may still be connecting."""

REPORT_S = 1.0
"""How long a broken connection waits for the report of how the host ended, without which its node counts as lost."""

CANNOT_START = 127
"""Exit code if the command cannot be executed, as in shells."""

_ID = 1


class NotPlaced(Exception):
    """The server cannot run on the cluster now; the message says why."""


class NodeLost(Exception):
    """The node of the server, or the connection to it, is lost."""


class _Driver:
    """The connection to the cluster's driver."""

    def __init__(self, control: trio.socket.SocketType) -> None:
        self._control = control

    async def send(self, message: ToDriver | Hello) -> None:
        await self._control.send(msgspec.msgpack.encode(message))

    async def receive(self) -> FromDriver:
        """Return its next message. Raises NotPlaced: it failed, or is gone."""
        packet = await self._control.recv(MAX_PACKET_BYTES)
        if not packet:
            raise NotPlaced("the cluster is not connected")
        message: FromDriver = msgspec.msgpack.decode(packet, type=FromDriver)
        if isinstance(message, Failed):
            raise NotPlaced(message.error)
        return message


async def run(place: Place, command: list[str]) -> int:
    """Run the server on a node; return its exit code as `subprocess` has it. Raises NotPlaced or NodeLost."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_PACKET_BYTES)
        driver = _Driver(control)
        async with contextlib.AsyncExitStack() as stack:
            try:
                with trio.fail_after(PLACE_S):
                    await control.connect(socket_of(place.secret))
                    node, stream = await _placed(place, command, driver, stack)
            except trio.TooSlowError:
                if not place.moves:
                    # Otherwise the driver keeps what starts later.
                    with contextlib.suppress(OSError):
                        await driver.send(Kill(id=_ID))
                raise NotPlaced(f"no node has started it within {PLACE_S:g} s") from None
            except (OSError, trio.BrokenResourceError, Lost) as error:
                why = "the cluster is not connected" if isinstance(error, ConnectionRefusedError) else error
                raise NotPlaced(str(why)) from None
            try:
                return await _copied(stream)
            except* Lost as group:
                why = await _why(driver, str(group.exceptions[0]))
                raise NodeLost(f"node {node}, or the connection to it, was lost: {why}") from None


async def _placed(
    place: Place, command: list[str], driver: _Driver, stack: contextlib.AsyncExitStack
) -> tuple[str, Stream]:
    """Return the node on which the server has started, and the stream to its host."""
    name = f"{place.service.replace('_', '-')}.{secrets.token_hex(4)}.linckia"
    await driver.send(Hello(secret=place.secret, service=place.service))
    await driver.send(Prepare(id=_ID, name=name, resources=place.resources))
    prepared = await driver.receive()
    assert isinstance(prepared, Prepared)
    program = Program(command=command, cwd=place.cwd, environment=place.environment, memory_bytes=place.memory_bytes)
    async with _listener(prepared.host) as (listener, url):
        await driver.send(Run(id=_ID, module=HOST, program=msgspec.json.encode(program), url=url))
        link = await stack.enter_async_context(_secured(listener, prepared, name))
        started = await driver.receive()
        assert isinstance(started, Started)
    stream = Stream(link)
    kind, data = await stream.receive()
    if kind is not Kind.STARTED:
        raise NotPlaced(f"node {prepared.node_name}: {data.decode('utf-8', 'replace')}")
    _say(f"the server runs on node {prepared.node_name} as process {data.decode()}")
    return prepared.node_name, stream


@asynccontextmanager
async def _listener(host: str) -> AsyncIterator[tuple[trio.SocketListener, str]]:
    (listener,) = await trio.open_tcp_listeners(0, host=host)
    async with listener:
        port = listener.socket.getsockname()[1]
        yield listener, f"tls+tcp://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def _secured(
    listener: trio.SocketListener, prepared: Prepared, name: str
) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    """Accept connections until one is that of the named host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=prepared.authority)
    # The library reads certificates from files only.
    with os.fdopen(os.memfd_create("certificate"), "w") as file:
        file.write(prepared.certificate + prepared.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    while True:
        plain = await listener.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = trio.SSLStream(plain, context, server_side=True)
        try:
            await link.do_handshake()
        except (trio.BrokenResourceError, ssl.SSLError):
            await trio.aclose_forcefully(link)
            continue
        names = dict.fromkeys(value for _, value in link.getpeercert().get("subjectAltName", ()))
        if name in names:
            break
        await trio.aclose_forcefully(link)
    try:
        yield link
    finally:
        await trio.aclose_forcefully(link)


async def _copied(stream: Stream) -> int:
    """Copy input and output until the server ends; return its exit code. Raises Lost."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.beat)
        nursery.start_soon(_send_input, stream)
        nursery.start_soon(_send_signals, stream)
        output, log = trio.lowlevel.FdStream(os.dup(1)), trio.lowlevel.FdStream(os.dup(2))
        async with output, log:
            while (received := await stream.receive())[0] is not Kind.ENDED:
                kind, data = received
                with contextlib.suppress(trio.BrokenResourceError):
                    if kind is Kind.OUTPUT:
                        await output.send_all(data)
                    elif kind is Kind.LOG:
                        await log.send_all(data)
        nursery.cancel_scope.cancel()
    return int(received[1])


async def _send_input(stream: Stream) -> None:
    async with trio.lowlevel.FdStream(os.dup(0)) as pipe:
        while data := await pipe.receive_some(PIECE_BYTES):
            await stream.send(Kind.INPUT, data)
    # Nothing stands for the end of the input.
    await stream.send(Kind.INPUT)


async def _send_signals(stream: Stream) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            await stream.send(Kind.TERMINATE)


async def _why(driver: _Driver, said: str) -> str:
    """Return how the host ended if that is reported; otherwise nothing is placed on its node for a while."""
    with contextlib.suppress(NotPlaced, OSError), trio.move_on_after(REPORT_S):
        report = await driver.receive()
        if isinstance(report, Ended) and (report.code is not None or report.signal is not None):
            return f"its host ended with {report.code if report.signal is None else f'signal {report.signal}'}"
    with contextlib.suppress(OSError):
        await driver.send(Silent(id=_ID))
    return said


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(command: list[str]) -> None:
    """Be the server; never returns."""
    place = msgspec.json.decode(os.environ[VARIABLE], type=Place)
    try:
        code = trio.run(run, place, command)
    except NotPlaced as error:
        _say(f"the server runs on this machine instead of the cluster: {error}")
        _become(command, place)
    except NodeLost as error:
        _say(str(error))
        code = -signal.SIGKILL
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _become(command: list[str], place: Place) -> None:
    """Execute the command in this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(folder_of(place.cwd))
        os.execvpe(command[0], command, place.given)
    except OSError as error:
        _say(f"the server cannot be started: {error.filename or command[0]}: {error.strerror}")
        os._exit(CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1:])
