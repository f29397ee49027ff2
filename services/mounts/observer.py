"""The observer: runs a server's command inside the walls of a confined mount, and reports what it tries to do.

    python -I -m services.mounts.observer REPORT COMMAND [ARGUMENT…]

`linckia mcp test --learn` puts it before a server's command. It is within the same walls, so the server can do only
what its settings allow. A seccomp filter, which everything that the command starts inherits, tells the observer of
each call that opens, changes or connects, before the system makes it. The observer reads the arguments and lets the
call go on; the walls decide. The arguments may change before the system reads them again, so this is a report, not a
wall.

REPORT gets JSON lines, each once: `{"kind": …, "path": …}`. `kind` is `begun` (the first line), `read`, `write`,
`folder` (making one), `connect`, `listen`, or `problem` (the system does not allow this; nothing was started). Paths
are real paths, those of sockets `HOST:PORT`. Attempts that fail anyway, such as the removal of a file that does not
exist, are left out, and so are the folder of REPORT, devices and `/proc`.

Sources: seccomp(2), seccomp_unotify(2), linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from services.runtime import syscalls
from services.runtime.privileges import checked, libc, prctl
from services.runtime.sandbox import has_seccomp, landlock_version

MAX_LINES: Final = 10_000
"""Of each kind."""
MAX_PATH_BYTES: Final = 4096

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SET_FILTER, _NEW_LISTENER = 1, 1 << 3
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_REQUEST = struct.Struct("=QIIiIQ6Q")
_HERE = -100
_SKIPPED = ("/dev/", "/proc/")

BYTECODE: Final = "__pycache__"
"""Python does without what it cannot write there."""


class _Call(NamedTuple):
    """Where a call has its path: the numbers of its arguments.

    Attributes:
        folder: descriptor that a relative path starts from; None: the current folder.
        flags: those of `open`; None: the call changes something.
        needs: whether what it names must exist, or must not, for the call to succeed; None: neither.
        follows: whether a link at the end of the path is followed.
    """

    path: int
    folder: int | None = None
    flags: int | None = None
    needs: bool | None = None
    follows: bool = False
    kind: str = "write"


_CALLS: Final[dict[str, tuple[_Call, ...]]] = {
    "open": (_Call(0, flags=1, follows=True),),
    "creat": (_Call(0, follows=True),),
    "openat": (_Call(1, 0, flags=2, follows=True),),
    "openat2": (_Call(1, 0, flags=2, follows=True),),
    "mkdir": (_Call(0, needs=False, kind="folder"),),
    "mkdirat": (_Call(1, 0, needs=False, kind="folder"),),
    "mknod": (_Call(0, needs=False),),
    "mknodat": (_Call(1, 0, needs=False),),
    "symlink": (_Call(1, needs=False),),
    "symlinkat": (_Call(2, 1, needs=False),),
    "link": (_Call(1, needs=False),),
    "linkat": (_Call(3, 2, needs=False),),
    "rename": (_Call(0, needs=True), _Call(1)),
    "renameat": (_Call(1, 0, needs=True), _Call(3, 2)),
    "renameat2": (_Call(1, 0, needs=True), _Call(3, 2)),
    "rmdir": (_Call(0, needs=True),),
    "unlink": (_Call(0, needs=True),),
    "unlinkat": (_Call(1, 0, needs=True),),
    "truncate": (_Call(0, needs=True, follows=True),),
    "chmod": (_Call(0, needs=True, follows=True),),
    "fchmodat": (_Call(1, 0, needs=True, follows=True),),
    "chown": (_Call(0, needs=True, follows=True),),
    "lchown": (_Call(0, needs=True),),
    "fchownat": (_Call(1, 0, needs=True),),
    "utime": (_Call(0, needs=True, follows=True),),
    "utimes": (_Call(0, needs=True, follows=True),),
    "utimensat": (_Call(1, 0, needs=True, follows=True),),
}

_SOCKETS: Final = {"connect": (1, 2, "connect"), "bind": (1, 2, "listen"), "sendto": (4, 5, "connect")}
"""Which arguments are the address and its length, and what the call does."""


def main(report: str, command: list[str]) -> int:
    """Run the command, and return its exit code."""
    with open(report, "a", encoding="utf-8") as file:
        lines = _Report(file.fileno(), os.path.dirname(os.path.realpath(report)))
        try:
            listener, pid = _started(command)
        except OSError as error:
            lines.add("problem", error.strerror or str(error))
            print(f"the server cannot be observed: {error.strerror}", file=sys.stderr)
            return 1
        lines.add("begun", "")
        return _watch(listener, pid, lines)


class _Report:
    """Writes each line once."""

    def __init__(self, descriptor: int, own: str) -> None:
        self._descriptor = descriptor
        self._own = own
        self._seen: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, kind: str, path: str) -> None:
        if path not in (seen := self._seen[kind]) and len(seen) < MAX_LINES:
            seen.add(path)
            os.write(self._descriptor, json.dumps({"kind": kind, "path": path}).encode() + b"\n")

    def add_path(self, kind: str, path: str) -> None:
        is_own = path == self._own or path.startswith(f"{self._own}/")
        if not is_own and not path.startswith(_SKIPPED) and not (kind != "read" and BYTECODE in path):
            self.add(kind, path)


def _started(command: list[str]) -> tuple[int, int]:
    """Start the command; return the descriptor that its calls are received from, and its pid. Raises OSError."""
    if not has_seccomp():
        raise OSError(errno.ENOSYS, "this system has no seccomp filters")
    if not landlock_version():
        raise OSError(errno.ENOSYS, "this system has no landlock, without which the server could write anywhere")
    ours, theirs = socket.socketpair()
    if not (pid := os.fork()):
        try:
            ours.close()
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)
            try:
                listener = _install()
            except OSError as error:
                theirs.send(f"{error.errno}".encode())
            else:
                socket.send_fds(theirs, [b"0"], [listener])
                os.close(listener)
                theirs.close()
                os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)
    theirs.close()
    # After SIGTERM to the group, the server decides when it ends.
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)
    with ours:
        code, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
    if not descriptors:
        os.waitpid(pid, 0)
        number = int(code or errno.EIO)
        why = "another program observes this one already" if number == errno.EBUSY else os.strerror(number)
        raise OSError(number, f"{why} (seccomp user notification, Linux 5.5)")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        # The pipes must close when the server closes them.
        os.dup2(null, standard)
    return descriptors[0], pid


def _install() -> int:
    """Install the filter for this process and its descendants. Raises OSError."""
    machine = platform.machine()
    known = syscalls.numbers(machine, programs=True, attributes=True)
    watched = sorted({known[name] for name in (*_CALLS, *_SOCKETS) if name in known})
    code = [struct.pack("=HBBI", _LOAD, 0, 0, 4), struct.pack("=HBBI", _EQUAL, 1, 0, _ARCH[machine])]
    code += [struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW), struct.pack("=HBBI", _LOAD, 0, 0, 0)]
    for number in watched:
        code += [struct.pack("=HBBI", _EQUAL, 0, 1, number), struct.pack("=HBBI", _RETURN, 0, 0, _NOTIFY)]
    code.append(struct.pack("=HBBI", _RETURN, 0, 0, _ALLOW))
    instructions = ctypes.create_string_buffer(b"".join(code))
    program = struct.pack("@HP", len(code), ctypes.addressof(instructions))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    seccomp = ctypes.c_long(_SECCOMP[machine])
    return checked(libc().syscall(seccomp, _SET_FILTER, ctypes.c_ulong(_NEW_LISTENER), program), "seccomp")


def _watch(listener: int, pid: int, report: _Report) -> int:
    """Report the calls until the command has ended; return its exit code."""
    known = syscalls.numbers(platform.machine(), programs=True, attributes=True)
    names = {number: name for name, number in known.items()}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        for _, events in poll.poll(100):
            if events & select.POLLIN:
                _answer(listener, names, report)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _answer(listener: int, names: dict[int, str], report: _Report) -> None:
    """Receive a call, report it, and let it go on."""
    buffer = bytearray(_REQUEST.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError:
        return  # The process has been killed.
    number, pid, _, call, _, _, *arguments = _REQUEST.unpack(buffer)
    try:
        for kind, path in _described(pid, names.get(call, ""), arguments):
            (report.add if kind in ("connect", "listen") else report.add_path)(kind, path)
    except (OSError, ValueError):
        pass  # It has been killed, or its memory cannot be read, or there is no such address: the call will fail.
    try:
        fcntl.ioctl(listener, _SEND, struct.pack("=QqiI", number, 0, 0, _CONTINUE))
    except OSError:
        return


def _described(pid: int, name: str, arguments: list[int]) -> Iterator[tuple[str, str]]:
    """Yield what a call tries to do, and where. Raises OSError, ValueError."""
    if name in _SOCKETS:
        address, length, kind = _SOCKETS[name]
        if arguments[address] and (where := _address(_memory(pid, arguments[address], min(arguments[length], 128)))):
            yield kind, where
        return
    for call in _CALLS[name]:
        kind = call.kind
        if call.flags is not None:
            flags = arguments[call.flags]
            if name == "openat2":
                flags = int.from_bytes(_memory(pid, flags, 8), sys.byteorder)
            is_write = flags & os.O_ACCMODE != os.O_RDONLY or flags & (os.O_CREAT | os.O_TRUNC)
            kind = "write" if is_write else "read"
        path = _path(pid, arguments[call.path], None if call.folder is None else arguments[call.folder])
        if path.startswith(_SKIPPED):
            continue
        parent, last = os.path.split(path)
        found = os.path.realpath(path) if call.follows else os.path.join(os.path.realpath(parent), last)
        exists = os.path.lexists(found)
        if call.needs not in (None, exists) or (kind == "read" and not exists):
            continue
        if exists or os.path.isdir(os.path.dirname(found)):
            yield kind, found


def _path(pid: int, pointer: int, folder: int | None) -> str:
    """Return an absolute path. Raises OSError, ValueError."""
    text = os.fsdecode(_text(pid, pointer)) if pointer else ""
    if os.path.isabs(text):
        return os.path.normpath(text) if ".." not in text else text
    start = ctypes.c_int(folder & 0xFFFFFFFF).value if folder is not None else _HERE
    base = os.readlink(f"/proc/{pid}/cwd" if start == _HERE else f"/proc/{pid}/fd/{start}")
    if not os.path.isabs(base):
        raise ValueError(base)
    return os.path.join(base, text) if text else base


def _text(pid: int, address: int) -> bytes:
    """Return a text in a process's memory, up to its end. Raises OSError, ValueError."""
    found = b""
    while len(found) < MAX_PATH_BYTES:
        # What follows the text may not be readable, but the rest of its page is.
        part = _memory(pid, address + len(found), 4096 - (address + len(found)) % 4096)
        end = part.find(b"\0")
        if end >= 0:
            return found + part[:end]
        found += part
    raise ValueError("longer than paths may be")


def _memory(pid: int, address: int, size: int) -> bytes:
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        if not (found := os.pread(descriptor, size, address)):
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        return found
    finally:
        os.close(descriptor)


def _address(data: bytes) -> str:
    """Return `HOST:PORT`; empty for other families, which need no network."""
    family = int.from_bytes(data[:2], sys.byteorder)
    port = int.from_bytes(data[2:4], "big")
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, data[4:8])}:{port}"
    if family == socket.AF_INET6:
        return f"[{socket.inet_ntop(socket.AF_INET6, data[8:24])}]:{port}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
