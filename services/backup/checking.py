"""Checks what a manifest lists before anything is written: a backup may have been made by somebody else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from proto.backup import BackupFailed, File, Manifest
from services.backup.beneath import is_normal
from services.backup.packing import CHUNK_BYTES
from services.backup.places import Damaged

_CHUNK: Final = re.compile(r"[0-9a-f]{64}")
_MOST_MODE: Final = 0o7777
_MOST_TIME_NS: Final = 1 << 62
_MOST_ID: Final = (1 << 32) - 2


def check(manifest: Manifest, folder: Path) -> None:
    """Raise Damaged unless every file can be restored inside `folder` and has the size that it promises, and
    BackupFailed if they do not fit on its disk."""
    paths = {file.path for file in manifest.files}
    if len(paths) < len(manifest.files):
        raise Damaged(f"the snapshot {manifest.id} lists a file twice")
    leaves = {file.path for file in manifest.files if file.link or file.sha256 is not None}
    for file in manifest.files:
        if not is_normal(file.path) or _has_parent(file.path, leaves):
            raise Damaged(f"the snapshot {manifest.id} lists a file outside the data directory: {file.path}")
        if not _is_consistent(file):
            raise Damaged(f"the snapshot {manifest.id} contradicts itself about {file.path}")
    needed, free = manifest.size, shutil.disk_usage(folder).free
    if needed > free:
        raise BackupFailed(
            f"the snapshot {manifest.id} has {needed:,} bytes, but the disk of {folder.parent} has {free:,} left; "
            "free some, or choose another place with --data"
        )


def _has_parent(path: str, leaves: set[str]) -> bool:
    """Return whether a file or link is on the way to this path."""
    at = path.rfind("/")
    while at > 0:
        if path[:at] in leaves:
            return True
        at = path.rfind("/", 0, at)
    return False


def _is_consistent(file: File) -> bool:
    is_file = file.sha256 is not None and not file.link
    return (
        "\0" not in file.link
        and file.size >= 0
        and len(file.chunks) == (-(-file.size // CHUNK_BYTES) if is_file else 0)
        and (is_file or file.size == 0)
        and all(map(_CHUNK.fullmatch, file.chunks))
        and 0 <= file.mode <= _MOST_MODE
        and -_MOST_TIME_NS < file.modified_ns < _MOST_TIME_NS
        and all(0 <= each <= _MOST_ID for each in file.owner)
    )
