"""A zygote: a process that imports the modules of its services, uses none of them, and forks the services.

    python -m services.runtime.zygote CONFIG_FD CONTROL_FD

It has one thread, and checks that before each fork: a lock held by another thread would stay locked in the child
forever. It forks twice, so that the service becomes a child of the kernel (a subreaper), which the operating system
notifies of its death; the zygote's own death does not affect any service. A module that cannot be imported is reported
and skipped.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

import proto.wire.nng_link  # noqa: F401  # loaded once for all forked services, which link over it
from proto import ops
from proto.host.machine import limit_heaps
from proto.wire.launch import (
    HEAPS,
    MAX_DESCRIPTORS,
    MAX_PACKET_BYTES,
    Fork,
    Forked,
    Loaded,
    ZygoteConfig,
)
from services.runtime import main as service_main
from services.runtime.privileges import KernelGone, die_with
from services.runtime.told import told

EXIT_FAILED = 1
EXIT_KERNEL_GONE = 3

ADOPTION_TIMEOUT_S = 5.0
"""Time for adoption by the kernel. The first of the two forks ends in milliseconds; after this time the kernel is not a
subreaper, and the service would not die with it."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Fork)


class Library:
    """The modules that this process has loaded for its children, and those still to load."""

    def __init__(self, modules: Sequence[str], on_demand: Sequence[str] = ()) -> None:
        self._left = list(modules)
        self._on_demand = [name for name in on_demand if name not in modules]
        self._failed: dict[str, str] = {}
        self._began = time.monotonic()

    def is_complete(self) -> bool:
        return not self._left

    def load(self, name: str) -> None:
        """Import a module, and run its `warm_up` (`handlers.WarmUp`)."""
        if name in self._left:
            self._left.remove(name)
        try:
            module = importlib.import_module(name)
            getattr(module, "warm_up", lambda: None)()
        except Exception as error:  # noqa: BLE001  # whatever a module raises, load the others
            traceback.print_exc()
            self._failed[name] = f"{type(error).__name__}: {error}"

    def load_next(self, name: str = "") -> None:
        """Load the named module if it is not loaded yet; without a name, load the next one."""
        if name in self._on_demand:
            self._on_demand.remove(name)
            self.load(name)
        elif name in self._left or not name:
            self.load(name or self._left[0])

    def settle(self) -> None:
        """Do the common work that follows the last module."""
        for op in ops.load().values():
            # msgspec caches what it learns about a type on the type.
            msgspec.msgpack.Decoder(op.params)
        gc.collect()
        gc.freeze()

    def report(self) -> Loaded:
        took_ms = (time.monotonic() - self._began) * 1000
        return Loaded(threads=threads(), complete=self.is_complete(), took_ms=took_ms, failed=self._failed)


def threads() -> int:
    """Return the number of threads of this process, including those that C libraries started."""
    return len(os.listdir("/proc/self/task"))


def serve(control: socket.socket, parent_pid: int, library: Library) -> None:
    """Serve fork requests until the kernel closes its end; after the first one, load remaining modules in between."""
    reported, requested = False, False
    while True:
        while requested and not library.is_complete() and not select.select([control], [], [], 0)[0]:
            library.load_next()
        if library.is_complete() and not reported:
            library.settle()
            control.send(_encoder.encode(library.report()))
            reported = True
        packet, fds, _flags, _ = socket.recv_fds(control, MAX_PACKET_BYTES, MAX_DESCRIPTORS)
        if not packet:
            return
        requested = True
        try:
            reply = _answer(packet, fds, parent_pid, library)
        finally:
            for fd in fds:
                os.close(fd)
        control.send(_encoder.encode(reply))


def _answer(packet: bytes, fds: list[int], parent_pid: int, library: Library) -> Forked:
    request = _decoder.decode(packet)
    library.load_next(request.launch.module)
    if (running := threads()) != 1:
        return Forked(id=request.id, error=f"the zygote has {running} threads, so a fork would not be safe")
    try:
        pid = _fork_orphan(lambda: _become(request, fds, parent_pid))
    except OSError as error:
        return Forked(id=request.id, error=f"fork: {error}")
    return Forked(id=request.id, pid=pid)


def _fork_orphan(work: Callable[[], None]) -> int:
    """Run `work` in a grandchild that the kernel adopts. Returns its pid. Raises OSError."""
    receive, send = os.pipe()
    try:
        first = os.fork()
        if first == 0:
            _fork_again(send, work)
        os.close(send)
        send = -1
        written = os.read(receive, 32)
        # After this, the kernel is the grandchild's parent.
        os.waitpid(first, 0)
    finally:
        os.close(receive)
        if send >= 0:
            os.close(send)
    if not written:
        raise OSError("the second fork failed; the zygote's log says why")
    return int(written)


def _fork_again(send: int, work: Callable[[], None]) -> NoReturn:
    code = EXIT_FAILED
    try:
        pid = os.fork()
        if pid == 0:
            work()
        else:
            os.write(send, str(pid).encode())
        code = 0
    except (OSError, KernelGone):
        traceback.print_exc()
    finally:
        os._exit(code)


def _become(request: Fork, fds: Sequence[int], parent_pid: int) -> NoReturn:
    """Become the service, or its standby, in the forked child."""
    code = EXIT_FAILED
    try:
        # Its own session and process group, so that exactly its own children die with it.
        os.setsid()
        fd, log_fd, *handoff = fds
        _take_descriptors(log_fd, (fd, *handoff))
        os.environ.update(request.env)
        if heaps := request.env.get(HEAPS):
            # It is only read when a process starts from scratch.
            limit_heaps(int(heaps))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if "numpy.random" in sys.modules:
            # `random` reseeds itself after a fork; numpy's legacy generator would repeat in every child.
            importlib.import_module("numpy.random").seed()
        _await_adoption(parent_pid)
        gc.freeze()
        gc.enable()
        code = service_main.run(request.launch, fd, *handoff, standby=request.standby)
    except BaseException:  # noqa: BLE001  # nothing may return into the zygote's own code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _take_descriptors(log_fd: int, kept: Sequence[int]) -> None:
    """Redirect standard output and error to the log, and close all descriptors except `kept`."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    begin = 3
    for fd in sorted(kept):
        os.set_inheritable(fd, False)
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))


def _await_adoption(parent_pid: int) -> None:
    deadline = time.monotonic() + ADOPTION_TIMEOUT_S
    while os.getppid() != parent_pid:
        if time.monotonic() > deadline:
            raise TimeoutError("the kernel did not become the parent of this process")
        time.sleep(0.0002)


def live(launch: ZygoteConfig, control_fd: int) -> int:
    """Load modules, report, and fork until the kernel closes its end. Returns the exit code."""
    try:
        die_with(launch.parent_pid, f"zygote-{launch.name}")
    except KernelGone:
        return EXIT_KERNEL_GONE
    with socket.socket(fileno=control_fd) as control:
        # Long-lived objects are hidden from the garbage collector, which would write to their pages and so unshare
        # them.
        gc.disable()
        library = Library(launch.modules, launch.on_demand)
        for name in launch.preload:
            library.load(name)
        try:
            if not library.is_complete():
                control.send(_encoder.encode(library.report()))
            serve(control, launch.parent_pid, library)
        except (BrokenPipeError, ConnectionResetError):
            return EXIT_KERNEL_GONE
    return 0


def main(argv: list[str]) -> int:
    if len(argv) != 2 or not all(fd.isdigit() for fd in argv):
        sys.exit("usage: python -m services.runtime.zygote CONFIG_FD CONTROL_FD (the kernel starts zygotes itself)")
    return live(told(int(argv[0]), ZygoteConfig), int(argv[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
