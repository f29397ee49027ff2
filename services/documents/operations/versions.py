"""The operation of `documents` that reads a version of a file, which only snapshots may have."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Params
from proto.ops.documents.reading import ContentSource, Hash, Length, shown


class VersionContent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a content: of its text, or base64."""

    hash: str
    size: Annotated[int, Meta(description="Bytes of the whole content")]
    content: str
    encoding: Annotated[str, Meta(description="utf-8 or base64")]
    source: ContentSource
    next_offset: Annotated[int | None, Meta(description="Value of `offset` for the next part")]


@shown.read("documents_version", deadline_s=60)
class DocumentsVersion(Params[VersionContent], frozen=True, kw_only=True):
    """Read a content by its hash, whether a document or only a snapshot has it."""

    hash: Hash
    offset: Annotated[int, Meta(ge=0, description="First byte to return")] = 0
    length: Length | None = None
