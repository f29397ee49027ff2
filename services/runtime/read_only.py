"""A view of the file system in which everything except some folders is read-only, for programs and their processes.

Landlock does not restrict changes of modes, owners, times and attributes. Read-only mounts do, for every system call.
They are in a mount namespace of the process. Root may create one; other users need a user namespace as well, which not
every system allows. There, files of other users appear to belong to `nobody`.

    python -m services.runtime.read_only    exit code 1, with the reason, if the system does not allow it

Sources: mount_namespaces(7), user_namespaces(7), mount_setattr(2), open_tree(2), move_mount(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Collection
from pathlib import Path

from services.runtime.privileges import checked, drop_capabilities, libc

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_NEW_MOUNTS, _NEW_USERS = 0x00020000, 0x10000000
_HERE = -100
_RECURSIVE, _CLONE = 0x8000, 0x1
_FROM_DESCRIPTOR = 0x4
_READ_ONLY, _PRIVATE = 0x1, 1 << 18

_UNKNOWN = 255
"""Exit code of the trial if it raised something other than OSError."""


def make_others_read_only(writable: Collection[str]) -> str:
    """Make everything outside these folders (real paths) read-only, for this process and its future children.

    File systems that are mounted later do not appear. The process must have one thread. Returns an empty text, or why
    the system does not allow it; nothing has changed then. Raises OSError if it fails after the trial.
    """
    if "/" in writable:
        return ""
    # A child tries it, since some systems create the user namespace and then refuse everything in it.
    if why := _tried(writable):
        return why
    _change(writable)
    return ""


def _tried(writable: Collection[str]) -> str:
    if not (pid := os.fork()):
        code = _UNKNOWN
        try:
            _change(writable)
            code = 0
        except OSError as error:
            code = min(error.errno or errno.EIO, _UNKNOWN)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"no mount namespace: {os.strerror(code)}" if code else ""


def _change(writable: Collection[str]) -> None:
    uid, gid = os.geteuid(), os.getegid()
    checked(libc().unshare(_NEW_MOUNTS if uid == 0 else _NEW_MOUNTS | _NEW_USERS), "unshare")
    if uid != 0:
        # A process may only map groups if it can no longer leave any.
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path("/proc/self", name).write_text(text)
    trees = [(path, tree) for path in sorted(writable) if (tree := _copy(path)) is not None]
    try:
        attributes = struct.pack("=QQQQ", _READ_ONLY, 0, _PRIVATE, 0)
        _call(_MOUNT_SETATTR, _HERE, b"/", ctypes.c_uint(_RECURSIVE), attributes, ctypes.c_size_t(len(attributes)))
        for path, tree in trees:
            _call(_MOVE_MOUNT, tree, b"", _HERE, os.fsencode(path), ctypes.c_uint(_FROM_DESCRIPTOR))
    finally:
        for _, tree in trees:
            os.close(tree)
    if uid != 0:
        drop_capabilities()


def _copy(path: str) -> int | None:
    """Return a descriptor of a copy of the mounts at and below `path`; None if it does not exist."""
    flags = ctypes.c_uint(_RECURSIVE | _CLONE | os.O_CLOEXEC)
    try:
        return _call(_OPEN_TREE, _HERE, os.fsencode(path), flags)
    except (FileNotFoundError, PermissionError):
        if os.path.exists(path):
            raise
        return None


def _call(number: int, *arguments: object) -> int:
    return checked(libc().syscall(ctypes.c_long(number), *arguments), f"system call {number}")


if __name__ == "__main__":
    sys.exit(_tried(()) or 0)
