"""The file systems that are mounted: which of them hold no files (`/proc`, `/sys`), and how much room each has."""

from __future__ import annotations

import os
from typing import NamedTuple

from services.files import paths

_WITHOUT_FILES = frozenset(
    {
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl",
        "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip


class Mount(NamedTuple):
    """A mounted file system."""

    path: str
    kind: str
    device: int
    source: str


def mounts() -> list[Mount]:
    """All that this process sees, as `/proc/self/mountinfo` has them; none where there is no such file."""
    found = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                before, _, after = line.partition(" - ")
                fields, (kind, source, *_) = before.split(" "), after.split(" ")
                major, _, minor = fields[2].partition(":")
                found.append(Mount(_unescaped(fields[4]), kind, os.makedev(int(major), int(minor)), _unescaped(source)))
    except FileNotFoundError:
        return []
    return found


def holds_files(mount: Mount) -> bool:
    """Whether there are files of someone's on it."""
    return mount.kind not in _WITHOUT_FILES


def without_files(root: str) -> frozenset[int]:
    """The devices of file systems below a clean path that hold no files; they answer sizes that mean nothing."""
    return frozenset(
        mount.device for mount in mounts() if mount.kind in _WITHOUT_FILES and paths.overlap(mount.path, root)
    )


def _unescaped(field: str) -> str:
    # Blanks are written as octal numbers.
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return paths.to_text(field)
