"""Who services run as where the kernel runs as root: each that writes only to its own folder, as a user of its own.

The users are numbers that no account has, derived from the data directory and the service's name.  Those of a data
directory share a group, which may enter it, and can do nothing to other services, the kernel or anybody's files.

Services that read the roots, which may be anybody's, keep the privilege to read, which landlock bounds; so do all where
other users cannot reach the interpreter or the data directory (often below /root).  Services that write to the roots
stay root, for what they write keeps its owner, and have its access to files and no other privilege.

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

from linckia import proto
from linckia.proto.birth import User

FIRST_ID = 1_879_048_192
"""From here to 2^31 no distribution, container or directory service hands out numbers."""

IDS = 1 << 24


def user_of(data_dir: Path, service: str) -> User:
    """The user that a service of this data directory has; all of its users share a group."""
    return User(uid=_number(f"{data_dir}\0{service}"), gid=_number(str(data_dir)))


def _number(text: str) -> int:
    return FIRST_ID + int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:3], "big")


def obstacle() -> str | None:
    """Why services cannot have users of their own; None where they can."""
    if os.geteuid() != 0:
        return "only root can give them others"
    if not _is_mapped(FIRST_ID) or not _is_mapped(FIRST_ID + IDS - 1):
        return "this user namespace has no numbers to spare"
    return None


def enclosed(data_dir: Path) -> str | None:
    """What keeps other users from the installation or the data directory, in words; None: nothing does."""
    paths = sysconfig.get_paths()
    libraries = (Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    # What a service imports from while it runs.
    code = (Path(sys.executable), *libraries, Path(proto.__file__).resolve().parent)
    return unreachable((*code, data_dir.parent))


def unreachable(folders: Iterable[Path]) -> str | None:
    """The first folder on the way to one of these that other users cannot enter, in words; None where there is none."""
    for folder in folders:
        real = folder.resolve()
        for step in (real, *real.parents):
            try:
                mode = step.stat().st_mode
            except OSError as error:
                return f"{step}: {error.strerror}"
            if stat.S_ISDIR(mode) and not mode & stat.S_IXOTH:
                return f"{step} can be entered by its owner only"
    return None


def admit(data_dir: Path) -> None:
    """Let the services' group pass to their own folders.  Raises OSError: the file system keeps no owners."""
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
