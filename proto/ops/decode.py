"""The operations of `decode`: pictures, metadata and text out of a file, in a process that may die of it.

Image, video, audio and PDF decoders are large, old, and fed by strangers. They run here and nowhere else, with nothing
to lose: no data, no network, no files, little memory and little time. The bytes come with the call, or are asked for of
the caller while it waits.

The router sends a call whose process died once more; a second death is `Quarantined`, which the callers keep with the
content (see `services.runtime.decoding`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from proto.ops.media import Hash, MediaKind

SERVICE = "decode"

of_media = Family(SERVICE, role=Role.INTERNAL, callers=("media",))
of_documents = Family(SERVICE, role=Role.INTERNAL, callers=("documents",))
operator = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))


TIME_LIMIT_S = 30.0
"""For one file; a decoder that takes longer is ended, with its process."""
MEMORY_BYTES = 1536 * 1024**2
"""Of the process, set by the system: past it an allocation fails. A picture of 120 megapixels is turned in it."""
MAX_SOURCE_BYTES = 64 * 1024**2
"""Of a file that text is taken from."""
MAX_TEXT_CHARACTERS = 16 * 1024**2
"""Of its text; the rest is left out."""


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


@of_media.read("decode_file", deadline_s=TIME_LIMIT_S + 15)
class DecodeFile(Params[Decoded], frozen=True, kw_only=True):
    """Decode a file, which is read by `media_bytes`."""

    hash: Hash
    size: Annotated[int, Meta(ge=0, description="Bytes")]
    kind: MediaKind


class DecodedText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file, its pages apart by a line with a form feed."""

    text: Annotated[str | None, Meta(description="Null where there is none to be had")]
    problem: Annotated[str | None, Meta(description="Why there is less than there could be")] = None


@of_documents.read("decode_text", deadline_s=TIME_LIMIT_S + 15)
class DecodeText(Params[DecodedText], frozen=True, kw_only=True):
    """Take the text from a PDF."""

    data: Annotated[bytes, Meta(max_length=MAX_SOURCE_BYTES)]


class Formats(msgspec.Struct, frozen=True, kw_only=True):
    """What there are decoders for."""

    pictures: list[str]
    containers: Annotated[list[str], Meta(description="Of videos and of sound")]
    documents: list[str]


@operator.read("decode_formats", deadline_s=30)
class DecodeFormats(Params[Formats], frozen=True, kw_only=True):
    """List the formats that pictures and metadata are made from."""
