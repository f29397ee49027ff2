"""A standby: a process of a service that was forked ahead of need, and takes the place of the one that dies.

It is confined, its event loop runs, its code has been rehearsed; once it is wanted, it has only to take its link and
to open the service. Until then it touches nothing that is the service's: data and roots belong to the generation that
lives.

A rehearsal: the loop serves a few calls that the service's module names (`handlers.Rehearse`) to itself, in a folder
that is thrown away. In a process that was just forked each page of code and data costs a fault when it is first used,
and each cache is filled by the first call that needs it: without a rehearsal it takes twice as long from the kill to
the next answer (18 → 34 ms, two busy cores).
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import trio

from proto import frames
from proto.birth import MAX_DESCRIPTORS, MAX_PACKET_BYTES, PREPARED, Birth, Wake
from proto.channel import Channel
from proto.errors import Unavailable
from proto.frames import Bye, ByeAck, Call, Drain, Fault, Ready, Return
from proto.link import LinkClosed, SocketLink
from proto.operation import Params, operation_of
from services.runtime.handlers import Rehearse
from services.runtime.loop import LINK_MESSAGE_BYTES, ServiceLoop

REHEARSAL_S = 5.0
"""A rehearsal takes some 20 ms; one that hangs is given up, and the service starts without it."""

LEAVE_S = 1.0
"""How long a rehearsal may take to end once its process is wanted."""

CALL_MS = 2000
EXIT_STUCK = 1

_PREFIX = "linckia-rehearsal-"

_decoder = msgspec.msgpack.Decoder(Wake)
_log = logging.getLogger("linckia.service")


SocketPair = tuple[socket.socket, socket.socket]
"""The two ends of a link (`proto.link.socket_pair`)."""


async def stand_by(
    birth: Birth, control_fd: int, module: ModuleType, stage: SocketPair
) -> tuple[Birth, int, int | None] | None:
    """Prepare, and wait to be woken: what this becomes, its link and its handoff.

    None where the kernel has no use for it any more.  Standard output and error are the new generation's log
    afterwards.

    Args:
        stage: what the rehearsal is played on, since behind the walls no socket can be made.
    """
    with socket.socket(fileno=control_fd) as control:
        await _prepare(birth, control, module, stage)
        await trio.lowlevel.wait_readable(control)
        packet, fds = receive(control)
        if not packet:
            return None
        trio.lowlevel.notify_closing(control)
    link_fd, log_fd, *handoff = fds
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    return (
        msgspec.structs.replace(birth, generation=_decoder.decode(packet).generation),
        link_fd,
        handoff[0] if handoff else None,
    )


def receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """The packet that waits, and its descriptors; an empty one where the kernel's end is closed."""
    for _ in range(2):
        with contextlib.suppress(ConnectionResetError):
            packet, fds, _flags, _address = socket.recv_fds(
                control, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            return packet, fds
        # The kernel closed its end before it had read PREPARED.  Linux reports that once, ahead of what was sent: the
        # packet that wakes us may lie behind it.
    return b"", []


async def _prepare(birth: Birth, control: socket.socket, module: ModuleType, stage: SocketPair) -> None:
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
            await rehearse(birth, module, stage)
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


async def rehearse(birth: Birth, module: ModuleType, stage: SocketPair, place: Path | None = None) -> None:
    """Serve the service's rehearsal, to the end or for `REHEARSAL_S`; nothing is left of it but warm memory.

    Its folder is made in `place`, by default among the service's own temporary files. Cancellation: given up.

    Args:
        stage: the two ends of the link, which are closed afterwards.

    Raises whatever the service's `rehearse` or its start-up raises.
    """
    with stage[0], stage[1]:
        await _play(birth, module, stage, place or Path(tempfile.gettempdir()))


async def _play(birth: Birth, module: ModuleType, stage: SocketPair, place: Path) -> None:
    hook: Rehearse | None = getattr(module, "rehearse", None)
    if hook is None:
        return
    with _scratch(place) as folder:
        root, data = folder / "root", folder / "data"
        root.mkdir()
        data.mkdir()
        if (calls := hook(root, birth.settings)) is None:
            return
        birth = msgspec.structs.replace(
            birth, generation=0, data_dir=str(data), roots=(str(root),), read_only=(), denied=(), denied_patterns=()
        )
        ours, theirs = stage
        try:
            # What goes wrong in the service is told by its answers, and what it logs of such a folder only misleads.
            logging.disable(logging.CRITICAL)
            with (
                contextlib.closing(SocketLink(ours.detach(), max_message_bytes=LINK_MESSAGE_BYTES)) as link,
                contextlib.closing(SocketLink(theirs.detach(), max_message_bytes=LINK_MESSAGE_BYTES)) as end,
                trio.move_on_after(REHEARSAL_S),
            ):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_play_kernel, Channel(link), calls)
                    await ServiceLoop(birth, end).run(module.open_service)
                    nursery.cancel_scope.cancel()
        except* LinkClosed:
            pass
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A folder for one rehearsal.

    Making one removes those of processes that were killed before they could; a lock tells which process lives.
    """
    for other in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(other):
            shutil.rmtree(other)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    with _locked(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError where another process holds it, or it is not ours to open."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


async def _play_kernel(channel: Channel, calls: Sequence[Params[Any]]) -> None:
    """Make the calls, one after the other, and end the service in order; no other service is there."""
    left = iter(enumerate(calls, 1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        while True:
            match await channel.receive():
                case Ready() | Return() | Fault():
                    if (call := next(left, None)) is None:
                        channel.post(Drain(0))
                    else:
                        name, body = operation_of(call[1]).name, frames.pack_body(call[1])
                        channel.post(Call(call[0], name, body, CALL_MS, frames.new_trace(), "client", 0))
                case Call(id=number, op=op):
                    channel.post(Fault(number, Unavailable(f"{op}: a rehearsal has no other services").failure))
                case Bye():
                    channel.post(ByeAck())
                case _:
                    continue
