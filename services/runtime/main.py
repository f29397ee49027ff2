"""The main program of a service process, from its launch configuration and inherited descriptor to its exit code.

    python -m services.runtime.main CONFIG_FD LINK_FD [HANDOFF_FD [MODULE…]]

The kernel uses this command to start a service without a zygote; MODULEs are imported while the launch configuration is
not there yet. A zygote calls `run` in the forked child.

A standby is a process forked in advance to replace one that dies. It is already confined and its event loop runs; it
only has to take its link and open the service. Until then it must not touch the service's data or roots, which belong
to the live generation.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import msgspec
import trio

from proto import ops
from proto.errors import LinckiaError
from proto.host.log_lines import JsonLines
from proto.host.machine import give_back_at_rest
from proto.wire.channel import Link, LinkClosed, SocketLink
from proto.wire.launch import MAX_DESCRIPTORS, MAX_PACKET_BYTES, LaunchConfig, Wake
from services.runtime.ending import EXIT_FAILED, ProgramEnded, first_of
from services.runtime.handlers import Prepare
from services.runtime.loop import LINK_MESSAGE_BYTES, SOURCES, ServiceLoop
from services.runtime.privileges import KernelGone, die_with, require_parent
from services.runtime.sandbox import bound_files, bound_memory, bound_threads, confine, end_out_of_memory
from services.runtime.told import told

EXIT_OK = 0
EXIT_KERNEL_GONE = 3

SWITCH_S = 0.0005
"""How long a thread may hold the interpreter lock while others wait for it. With the default 5 ms, the event loop would
resume that late after each step of a worker thread, and a call takes several steps."""

_log = logging.getLogger("linckia.service")


def run(launch: LaunchConfig, fd: int, handoff_fd: int | None = None, *, standby: bool = False) -> int:
    """Serve until drained, and return the exit code. Never raises for errors inside the service.

    Args:
        fd: the link, or the socket on which a standby waits.
        handoff_fd: the socket over which the kernel passes descriptors, if there is one.
    """
    _prepare(launch)
    code = EXIT_OK
    try:
        die_with(launch.parent_pid, launch.service)
        if launch.programs:
            # The programs get the environment of this process, without what was set for Linckia's own processes.
            os.environ.clear()
        os.environ.update(launch.environment)
        for name in launch.ops_modules:
            importlib.import_module(name)
        module = importlib.import_module(launch.module)
        data_dir = Path(launch.data_dir)
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        info: dict[str, str] = {}
        if not launch.programs:
            bound_memory(launch)
            bound_files(launch)
            bound_threads(launch)
        if launch.confinement is not None:
            # Before the first thread starts: landlock and seccomp only bind the calling thread and its children.
            info["confined"] = confine(launch.confinement, data_dir)
            _log.info("confined by %s", info["confined"])
            # Changing the user cleared the parent-death signal for a moment.
            require_parent(launch.parent_pid)
        trio.run(_main, launch, fd, handoff_fd, module, info, standby)
    except* (LinkClosed, KernelGone):
        _log.info("the kernel is gone; %s generation %d ends", launch.service, launch.generation)
        code = EXIT_KERNEL_GONE
    except* MemoryError:
        end_out_of_memory("work in the background")
    except* ProgramEnded as group:
        ended = first_of(group)
        # The last line of the log, which the kernel shows as the cause.
        print(ended, file=sys.stderr, flush=True)
        code = ended.code
    except* Exception as group:  # noqa: BLE001  # reported by the exit code
        _log.exception("%s generation %d ends with an error", launch.service, launch.generation)
        print(_cause(first_of(group)), file=sys.stderr, flush=True)
        code = EXIT_FAILED
    return code


def _cause(error: BaseException) -> str:
    """Return what went wrong, on one line: the last one of the log."""
    said = " ".join(str(error).split())[:500]
    return said if isinstance(error, LinckiaError) and said else f"{type(error).__name__}: {said}".removesuffix(": ")


async def _main(
    launch: LaunchConfig, fd: int, handoff_fd: int | None, module: ModuleType, info: dict[str, str], standby: bool
) -> None:
    if standby:
        if (woken := await _stand_by(launch, fd, module)) is None:
            return
        launch, fd, handoff_fd = woken
        _name_log(launch)
    open_link: Callable[..., Link]
    if handoff_fd is None:
        from proto.wire.nng_link import NngLink

        open_link = NngLink.inherited
    else:
        # Only processes that receive descriptors have a link without nng.
        open_link = SocketLink
    with contextlib.closing(open_link(fd, max_message_bytes=LINK_MESSAGE_BYTES)) as link:
        async with trio.open_nursery() as nursery:
            handoff = None if handoff_fd is None else socket.socket(fileno=handoff_fd)
            loop = ServiceLoop(launch, link, info, handoff=handoff)
            nursery.start_soon(loop.end_at_sigterm)
            nursery.start_soon(partial(give_back_at_rest, loop.give_back, wait=loop.pause))
            await loop.run(module.open_service)
            nursery.cancel_scope.cancel()


async def _stand_by(
    launch: LaunchConfig, control_fd: int, module: ModuleType
) -> tuple[LaunchConfig, int, int | None] | None:
    """Prepare, then wait to be woken. Returns the launch configuration, the link and the handoff descriptor.

    Returns None if the kernel no longer needs this standby. Afterwards, standard output and error go to the new
    generation's log.
    """
    prepare: Prepare | None = getattr(module, "prepare", None)
    if prepare is not None:
        try:
            prepare({name: value for name, value in launch.settings.items() if name != SOURCES})
        except Exception:  # noqa: BLE001  # the service's own start-up meets the error again and reports it
            _log.exception("%s cannot be prepared", launch.service)
    # Without this, a collection of everything just created would interrupt the first calls.
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
        msgspec.structs.replace(launch, generation=msgspec.msgpack.decode(packet, type=Wake).generation),
        link_fd,
        handoff[0] if handoff else None,
    )


def _prepare(launch: LaunchConfig) -> None:
    # On SIGABRT, dump the stack of every thread; the kill ladder uses this to leave a trace of a hung service.
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_S)
    # The kernel handles Ctrl-C at a terminal: it stops its services in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, force=True)
    _name_log(launch)


def _name_log(launch: LaunchConfig) -> None:
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines(service=launch.service, generation=launch.generation or "standby"))


def main(argv: list[str]) -> int:
    fds, ahead = argv[:3], argv[3:]
    if len(fds) < 2 or not all(fd.isdigit() for fd in fds):
        sys.exit(
            "usage: python -m services.runtime.main CONFIG_FD LINK_FD [HANDOFF_FD [MODULE…]] (the kernel does this)"
        )
    for name in ahead:
        importlib.import_module(name)
        ops.load()
    try:
        launch = told(int(fds[0]), LaunchConfig)
    except msgspec.DecodeError:
        # The kernel ended before it had written the whole configuration.
        return EXIT_KERNEL_GONE
    return run(launch, *map(int, fds[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
