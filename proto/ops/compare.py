"""The operation of `compare`: which folders are not as the index has them, found out beside the scan that asks.

Looking at a million files takes longer than all else that a rescan does, and a Python process looks with one
processor. So a scan looks at a part of the folders itself and has others do so for the rest of them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role

SERVICE = "compare"

internal = Family(SERVICE, role=Role.INTERNAL, callers=("files", OPERATOR))


MAX_FOLDERS = 10_000


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    different: Annotated[list[int], Meta(description="Which of the folders, counted from 0, are not as they were")]


@internal.read("compare_folders", deadline_s=60)
class CompareFolders(Params[Compared], frozen=True, kw_only=True):
    """Tell which folders are not as they were listed: other entries, or an entry with another inode, size or time.

    A folder that cannot be read, or is not below the roots, is different.
    """

    paths: Annotated[list[str], Meta(max_length=MAX_FOLDERS, description="Real paths, each with its slash")]
    fingerprints: Annotated[
        list[bytes], Meta(max_length=MAX_FOLDERS, description="Of each folder, what its last listing came to")
    ]
    ignore: Annotated[tuple[str, ...], Meta(description="Patterns, as in .gitignore, of what was left out")] = ()
    empty_devices: Annotated[
        tuple[int, ...], Meta(description="File systems that hold no files, and are shown empty (/proc)")
    ] = ()
