"""A standby: a process of a service that was forked ahead of need, and takes the place of the one that dies.

It is confined, its event loop runs, its code has been rehearsed; once it is wanted, it has only to
take its link and to open the service.  Until then it touches nothing that is the service's: data and roots belong to
the generation that lives.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
from types import ModuleType

import msgspec
import trio

from proto.birth import MAX_PACKET_BYTES, PREPARED, Birth, Wake
from services.runtime.rehearsal import rehearse

LEAVE_S = 1.0
"""How long a rehearsal may take to end once its process is wanted."""

EXIT_STUCK = 1

_decoder = msgspec.msgpack.Decoder(Wake)

_log = logging.getLogger("linckia.service")


class Called(msgspec.Struct, frozen=True):
    """What a standby becomes, and its link."""

    birth: Birth
    link_fd: int


async def stand_by(birth: Birth, control_fd: int, module: ModuleType) -> Called | None:
    """Prepare, and wait to be woken; None where the kernel has no use for this standby any more.

    Standard output and error are the new generation's log afterwards.
    """
    with socket.socket(fileno=control_fd) as control:
        await _prepare(birth, control, module)
        await trio.lowlevel.wait_readable(control)
        packet, fds = receive(control)
        if not packet:
            return None
        trio.lowlevel.notify_closing(control)
    wake = _decoder.decode(packet)
    link_fd, log_fd = fds
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    return Called(msgspec.structs.replace(birth, generation=wake.generation), link_fd)


def receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """The packet that waits, and its descriptors; an empty one where the kernel's end is closed."""
    for _ in range(2):
        with contextlib.suppress(ConnectionResetError):
            packet, fds, _flags, _address = socket.recv_fds(control, MAX_PACKET_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
            return packet, fds
        # The kernel closed its end before it had read PREPARED.  Linux reports that once, ahead of what was sent: the
        # packet that wakes us may lie behind it.
    return b"", []


async def _prepare(birth: Birth, control: socket.socket, module: ModuleType) -> None:
    began = trio.current_time()
    over = trio.Event()
    async with trio.open_nursery() as nursery:

        async def wanted() -> None:
            await trio.lowlevel.wait_readable(control)
            nursery.cancel_scope.cancel()
            # A service that does not let itself be cancelled would hold up the one that is wanted, with all its calls.
            with trio.move_on_after(LEAVE_S, shield=True):
                await over.wait()
                return
            _log.error("the rehearsal of %s does not end; another process takes its place", birth.service)
            os._exit(EXIT_STUCK)

        nursery.start_soon(wanted)
        try:
            await rehearse(birth, module)
        except* Exception:  # noqa: BLE001  # a rehearsal is a convenience
            # The service's own start-up will meet it again, if it is more than the rehearsal's.  Cancelled at that very
            # moment, the rehearsal raises both together, and only the cancellation may pass.
            _log.exception("the rehearsal of %s failed", birth.service)
        finally:
            over.set()
        # Else the collector would look through all that was just made, in the middle of the first calls.
        gc.collect()
        gc.freeze()
        _log.info("prepared in %.0f ms, and waits for its turn", (trio.current_time() - began) * 1000)
        # Where it was woken meanwhile, the kernel does not listen any more.
        with contextlib.suppress(BrokenPipeError):
            control.send(PREPARED)
        nursery.cancel_scope.cancel()
