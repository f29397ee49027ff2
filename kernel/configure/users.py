"""Users for services when the kernel runs as root: each service that writes only to its own folder has its own user.

The users are uids without accounts, derived from the data directory and the service's name. Users of one data directory
share a group that may enter it. They cannot access other services, the kernel, or anyone's files.

Services that read the roots, which may belong to anyone, keep the privilege to read files, which landlock limits. All
services keep it if other users cannot reach the interpreter or the data directory (often below /root). Services that
write to the roots stay root, so that files keep their owners, with access to files and no other privilege.

Sources: credentials(7), capabilities(7), user_namespaces(7), systemd's list of unused user numbers.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import proto
from proto.wire.launch import User

FIRST_ID = 1_879_048_192
"""No distribution, container or directory service assigns numbers from here to 2^31."""

IDS = 1 << 24


def user_of(data_dir: Path, service: str) -> User:
    """Return the user of a service in this data directory; all of its users share a group."""
    return User(uid=_number(f"{data_dir}\0{service}"), gid=_number(str(data_dir)))


def _number(text: str) -> int:
    return FIRST_ID + int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:3], "big")


def obstacle() -> str | None:
    """Return why services cannot have their own users, or None if they can."""
    if os.geteuid() != 0:
        return "only root can assign other users"
    if not _is_mapped(FIRST_ID) or not _is_mapped(FIRST_ID + IDS - 1):
        return "this user namespace has too few user numbers"
    return None


def enclosed(data_dir: Path) -> str | None:
    """Describe what keeps other users from the installation or the data directory; None if nothing does."""
    paths = sysconfig.get_paths()
    libraries = (Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    # Everything that a service imports from while it runs.
    code = (Path(sys.executable), *libraries, Path(proto.__file__).resolve().parent)
    return unreachable((*code, data_dir.parent))


def unreachable(folders: Iterable[Path]) -> str | None:
    """Describe the first folder on the way to these that other users cannot enter; None if there is none."""
    for folder in folders:
        real = folder.resolve()
        for step in (real, *real.parents):
            try:
                mode = step.stat().st_mode
            except OSError as error:
                return f"{step}: {error.strerror}"
            if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
                return f"only its owner can enter {step}"
    return None


def admit(data_dir: Path) -> None:
    """Let the services' group through to their folders. Raises OSError: the file system does not support owners."""
    group = _number(str(data_dir))
    services = data_dir / "services"
    services.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (data_dir, services):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            os.chown(folder, -1, group)
            folder.chmod(mode | stat.S_IXGRP)


def _is_mapped(number: int) -> bool:
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    spans = [tuple(map(int, line.split())) for line in lines]
    return any(first <= number < first + count for first, _, count in spans)
