"""A standby: a process of a service that was forked ahead of need, and takes the place of the one that dies.

It is confined, and its event loop runs; once it is wanted, it has only to take its link and to open the service. Until
then it touches nothing that is the service's: data and roots belong to the generation that lives.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from types import ModuleType

import msgspec
import trio

from proto.birth import MAX_DESCRIPTORS, MAX_PACKET_BYTES, Birth, Wake
from services.runtime.handlers import Prepare

_decoder = msgspec.msgpack.Decoder(Wake)
_log = logging.getLogger("linckia.service")


async def stand_by(birth: Birth, control_fd: int, module: ModuleType) -> tuple[Birth, int, int | None] | None:
    """Prepare, and wait to be woken: what this becomes, its link and its handoff.

    None where the kernel has no use for it any more.  Standard output and error are the new generation's log
    afterwards.
    """
    prepare: Prepare | None = getattr(module, "prepare", None)
    if prepare is not None:
        try:
            prepare(birth.settings)
        except Exception:  # noqa: BLE001  # the service's own start-up meets it again, and says it
            _log.exception("%s cannot be prepared", birth.service)
    # Else the collector would look through all that was just made, in the middle of the first calls.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=control_fd) as control:
        _log.info("waits for its turn")
        await trio.lowlevel.wait_readable(control)
        packet, fds, _flags, _address = socket.recv_fds(
            control, MAX_PACKET_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
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
