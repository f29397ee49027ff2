"""A compromised front: a request for `/attack/NAME` makes it attack the socket on which it listens.

Every process that loads the operations of `tests.hostile` loads this too; only fronts serve HTTP.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from typing import Any

import trio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from services.front.transport import http_server

_SO_ATTACH_FILTER = 26


def shut(listening: socket.socket) -> None:
    listening.shutdown(socket.SHUT_RDWR)


def shut_for_reading(listening: socket.socket) -> None:
    listening.shutdown(socket.SHUT_RD)


def move(listening: socket.socket) -> None:
    """Listen on a port chosen by the system, or on the old one again."""
    listening.shutdown(socket.SHUT_RDWR)
    listening.listen(1)


def take_nobody(listening: socket.socket) -> None:
    """Set the backlog for waiting connections to zero."""
    listening.listen(0)


def drop(listening: socket.socket) -> None:
    """Install a filter that drops all incoming packets."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    with_address = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, with_address)


ATTACKS = {each.__name__: each for each in (shut, shut_for_reading, move, take_nobody, drop)}


def take_over() -> None:
    """Replace the function that serves HTTP in this process."""
    serve = http_server.serve

    async def hostile(app: ASGIApp, settings: Any, listening: socket.socket, **rest: Any) -> None:
        async def attacking(scope: Scope, receive: Receive, send: Send) -> None:
            _, attack, name, *then = (scope["path"] + "/").split("/")[:4] + [""] * 3
            if attack != "attack":
                await app(scope, receive, send)
                return
            try:
                ATTACKS[name](listening)
                outcome = "done"
            except OSError as error:
                outcome = str(error)
            if then[0] == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            await PlainTextResponse(outcome)(scope, receive, send)

        try:
            await serve(attacking, settings, listening, **rest)
        except Exception:  # noqa: BLE001  # it carries on as if nothing had happened
            await trio.sleep_forever()

    setattr(http_server, "serve", hostile)  # noqa: B010  # its type says what it is
