"""The operation of `decode`: pictures and metadata out of a file, in a process that may die of it.

Image, video, audio and PDF decoders are large, old, and fed by strangers. They run here and nowhere else, with nothing
to lose: no data, no network, no more than to read below the roots, little memory and little time.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Access, Params, Role, operation
from proto.ops.media import MediaKind

SERVICE = "decode"

TIME_LIMIT_S = 30.0
"""For one file; a decoder that takes longer is ended, with its process."""


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


@operation(
    "decode_file",
    service=SERVICE,
    access=Access.READ,
    # Once more by itself could be once too often: who calls counts the deaths.
    idempotent=False,
    deadline_s=TIME_LIMIT_S + 15,
    role=Role.INTERNAL,
    callers=("media",),
)
class DecodeFile(Params[Decoded], frozen=True, kw_only=True):
    """Decode a file."""

    path: Annotated[str, Meta(max_length=4096, description="Its real path, below the roots")]
    kind: MediaKind
    version: Annotated[str, Meta(description="Device, inode, size and times of the file that is meant")]


class Formats(msgspec.Struct, frozen=True, kw_only=True):
    """What there are decoders for."""

    pictures: list[str]
    containers: Annotated[list[str], Meta(description="Of videos and of sound")]
    documents: list[str]


@operation(
    "decode_formats",
    service=SERVICE,
    access=Access.READ,
    idempotent=True,
    deadline_s=30,
    role=Role.INTERNAL,
    callers=(OPERATOR,),
)
class DecodeFormats(Params[Formats], frozen=True, kw_only=True):
    """List the formats that pictures and metadata are made from."""
