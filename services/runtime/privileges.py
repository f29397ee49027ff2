"""A process's relation to the operating system: its parent, its user and its privileges.

A service started by root becomes a user of its own or drops most of root's privileges, after it has been given its
folder. This is reversible: a kernel that next runs as root takes the folder over in the same way.

Sources: prctl(2), credentials(7), capabilities(7).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import stat
import struct
from pathlib import Path

from proto.wire.launch import FilesOfOthers, User

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_NAME = 1, 4, 8, 15
_CAPABILITY_VERSION_3 = 0x20080522

_CHOWN, _DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER, _FSETID = 1, 2, 4, 8, 16
_TO_READ = (_DAC_READ_SEARCH, _DAC_OVERRIDE)
"""To read other users' files, the first of these that is permitted is used; a container's root often lacks one."""
_TO_WRITE = _CHOWN | _DAC_OVERRIDE | _DAC_READ_SEARCH | _FOWNER | _FSETID
"""Capabilities to write other users' files and keep their owners, modes and times."""

_NO_OWNERS = (errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class KernelGone(Exception):
    """The kernel died after it launched this process."""


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """Return the result of a libc function. Raises OSError if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, *arguments: int | bytes) -> None:
    """Call prctl(2). Raises OSError."""
    padded = [*arguments, 0, 0, 0, 0][:4]
    passed = (each if isinstance(each, bytes) else ctypes.c_ulong(each) for each in padded)
    checked(libc().prctl(option, *passed), f"prctl {option}")


def die_with(parent_pid: int, name: str) -> None:
    """Die when `parent_pid` dies, even by SIGKILL, and set the process name to the first 15 bytes of `name`.

    The signal is tied to the *thread* that is the parent, so the kernel starts processes from its main thread only.

    Raises KernelGone if `parent_pid` is no longer the parent.
    """
    prctl(_PR_SET_NAME, name.encode()[:15])
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    # The parent may have died before the call above, in which case the signal never comes.
    require_parent(parent_pid)


def require_parent(parent_pid: int) -> None:
    """Raise KernelGone if `parent_pid` is no longer the parent."""
    if os.getppid() != parent_pid:
        raise KernelGone(f"process {parent_pid} is gone")


def own(folder: Path, user: User | None) -> bool:
    """Give `folder` and everything in it to `user`, or back to root. Returns True if that succeeded.

    The folder itself comes last, so that an interrupted change is noticed and repeated. Links are not followed, and a
    file with a second hard link is left alone. Returns False if the file system does not keep owners.
    """
    uid, gid = (0, 0) if user is None else (user.uid, user.gid)
    if os.stat(folder).st_uid == uid:
        return True
    try:
        for _, folders, files, at in os.fwalk(folder, topdown=False, follow_symlinks=False):
            for name in (*folders, *files):
                found = os.stat(name, dir_fd=at, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:
                    os.chown(name, uid, gid, dir_fd=at, follow_symlinks=False)
        os.chown(folder, uid, gid)
    except OSError as error:
        if error.errno in _NO_OWNERS:
            return False
        raise
    return True


def drop_capabilities(held: int = 0) -> None:
    """Drop all capabilities except `held`. Raises OSError."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    checked(libc().capset(header, struct.pack("=IIIIII", held, held, 0, 0, 0, 0)), "capset")


def give_up(user: User | None, files: FilesOfOthers) -> str:
    """Become `user`, or stay root, and drop all privileges except the access to other users' files that `files` grants.

    Returns a description for `status`. Raises OSError if the operating system refuses.
    """
    header, now = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    checked(libc().capget(header, now), "capget")
    # Only those that are permitted now; a container's root lacks some.
    permitted: int = struct.unpack("=6I", now)[1]
    held = permitted & _TO_WRITE if files == "write" else 0
    if files == "read":
        held = next((capability for capability in _TO_READ if permitted & capability), 0)
    if user is not None:
        prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups(())
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
        # Otherwise root would own /proc/self, which this process reads.
        prctl(_PR_SET_DUMPABLE, 1)
        # Changing the user cleared it; the caller checks whether the parent is still alive.
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    drop_capabilities(held)
    if user is not None:
        return f"user {user.uid}, may {files} files of others" if held else f"user {user.uid}"
    return "root's access to files only" if held else "no privileges of root"
