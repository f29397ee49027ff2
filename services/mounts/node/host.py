"""The host of a server on a node of the cluster: runs it below a guardian, as an adapter does on its own machine.

    python -m services.mounts.node.host PROGRAM_FD LINK_FD

It ends with the server, or ends the server once nothing is heard of its stand-in.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from proto.host.environment import of_programs
from services.mounts.node.place import Program, folder_of
from services.mounts.node.stream import PIECE_BYTES, Kind, Lost, Stream
from services.mounts.process.child import LAST_OUTPUT_S, Child, NotStarted, start_child
from services.mounts.process.processes import memory_bytes
from services.runtime.told import told

LOOK_S = 1.0
"""Interval between two looks at the memory of the server."""

_log = logging.getLogger("linckia.mount")


async def serve(program: Program, link: trio.abc.Stream) -> None:
    """Run the server until it ends, or its stand-in is gone."""
    stream = Stream(link)
    try:
        child = await start_child(
            program.command,
            cwd=folder_of(program.cwd),
            environment=of_programs() | program.environment,
        )
    except NotStarted as error:
        with suppress(Lost):
            await stream.send(Kind.FAILED, str(error).encode())
        return
    try:
        await _run(child, stream, program.memory_bytes)
    except* Lost as group:
        _log.warning("the server is ended: %s", group.exceptions[0])
    finally:
        await child.kill()


async def _run(child: Child, stream: Stream, limit_bytes: int) -> None:
    await stream.send(Kind.STARTED, str(child.pid).encode())
    read = trio.Event()

    async def said(text: str) -> None:
        await stream.send(Kind.LOG, text.encode("utf-8", "replace"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(functools.partial(child.watch, str, log=said))
        nursery.start_soon(stream.beat)
        nursery.start_soon(_obey, child, stream)
        nursery.start_soon(_pass_on, child, stream, read)
        nursery.start_soon(_limit, child, limit_bytes, said)
        await child.ended.wait()
        with trio.move_on_after(LAST_OUTPUT_S):
            await read.wait()
        await stream.send(Kind.ENDED, str(child.code).encode())
        nursery.cancel_scope.cancel()


async def _obey(child: Child, stream: Stream) -> None:
    while True:
        kind, data = await stream.receive()
        if kind is Kind.INPUT:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await (child.stdin.send_all(data) if data else child.stdin.aclose())
        elif kind is Kind.TERMINATE:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)


async def _pass_on(child: Child, stream: Stream, read: trio.Event) -> None:
    while data := await child.stdout.receive_some(PIECE_BYTES):
        await stream.send(Kind.OUTPUT, data)
    read.set()


async def _limit(child: Child, limit_bytes: int, said: Callable[[str], Awaitable[None]]) -> None:
    while True:
        await trio.sleep(LOOK_S)
        used = await trio.to_thread.run_sync(memory_bytes, child.guardian_pid, limit_bytes)
        if used > limit_bytes:
            await said(f"memory: its processes use {used} bytes, more than the limit of {limit_bytes}\n")
            await child.kill()
            return


def main(argv: list[str]) -> None:
    """Run a server; the process ends with it."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    program = told(int(argv[0]), Program)

    async def run() -> None:
        own = trio.socket.from_stdlib_socket(socket.socket(fileno=int(argv[1])))
        await serve(program, trio.SocketStream(own))

    trio.run(run)


if __name__ == "__main__":
    main(sys.argv[1:])
