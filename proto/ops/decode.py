"""The operation of `decode`: pictures and metadata out of a file, in a process that may die of it.

Image, video, audio and PDF decoders are large, old, and fed by strangers. They run here and nowhere else, with nothing
to lose: no data, no network, no more than to read below the roots, little memory and little time.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from proto.ops.media import MediaKind

SERVICE = "decode"

internal = Family(SERVICE, role=Role.INTERNAL, callers=("media",))
operator = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))


TIME_LIMIT_S = 30.0
"""For one file; a decoder that takes longer is ended, with its process."""


def version_of(status: os.stat_result) -> str:
    """What tells a file from what it was, or from what else it could be."""
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A JPEG that was made from a file; at most 320 by 320."""

    name: str
    type: str
    width: int
    height: int
    data: bytes
    metadata: dict[str, Any]


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """What could be made of a file."""

    metadata: dict[str, Any]
    pictures: list[Picture]
    problem: Annotated[str | None, Meta(description="Why there is less than there could be")]
    changed: Annotated[bool, Meta(description="Whether it is another file than the one that was meant")] = False


@internal.read("decode_file", idempotent=False, deadline_s=TIME_LIMIT_S + 15)
class DecodeFile(Params[Decoded], frozen=True, kw_only=True):
    """Decode a file."""

    path: Annotated[str, Meta(max_length=4096, description="Its real path, below the roots")]
    kind: MediaKind
    version: Annotated[str, Meta(description="`version_of` the file that is meant")]


class Formats(msgspec.Struct, frozen=True, kw_only=True):
    """What there are decoders for."""

    pictures: list[str]
    containers: Annotated[list[str], Meta(description="Of videos and of sound")]
    documents: list[str]


@operator.read("decode_formats", deadline_s=30)
class DecodeFormats(Params[Formats], frozen=True, kw_only=True):
    """List the formats that pictures and metadata are made from."""
