"""Operations of `fetch`: download a URL and store it as a document."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from proto.operation import Family, Params, Role
from proto.ops.documents.change import NewTags
from proto.ops.documents.reading import Collection, Metadata, Scalar

step = Family("fetch", role=Role.STEP, surfaces=("documents",))
surfaceless_step = Family("fetch", role=Role.STEP)

_URL = r"^[Hh][Tt][Tt][Pp][Ss]?://"
_CHECKSUM = r"^(sha256:[0-9A-Fa-f]{64}|sha512:[0-9A-Fa-f]{128}|md5:[0-9A-Fa-f]{32})$"

Url = Annotated[str, Meta(min_length=8, max_length=4096, pattern=_URL, description="Begins with http:// or https://")]


class Downloaded(msgspec.Struct, frozen=True, kw_only=True):
    """A downloaded document and its source."""

    hash: Annotated[str, Meta(description="Of the content")]
    url: Annotated[str, Meta(description="Final URL, after redirects")]
    path: Annotated[str, Meta(description="The document's path: the requested URL")]
    name: str
    size: Annotated[int, Meta(description="Bytes")]
    mime_type: str | None
    is_new: Annotated[bool, Meta(description="Whether this content was not stored before")]
    checksum: Annotated[str, Meta(description="The requested checksum, else its sha256")]
    resumed_from: Annotated[int, Meta(description="Bytes from an earlier attempt")]
    redirects: int


@step.write("documents_download", idempotent=True, deadline_s=86_400, open_world=True)
class Download(Params[Downloaded], frozen=True, kw_only=True):
    """Download a URL from the web and store it as a document; with a `checksum`, only if it matches. Resumes a
    broken download. Addresses of this machine and private networks are refused unless the settings allow them. A
    local file: documents_add."""

    taken: ClassVar = {"concurrency": "", "chunk_size_bytes": "", "timeout_ms": "", "resume": ""}
    url: Url
    checksum: Annotated[str, Meta(pattern=_CHECKSUM, description="sha256:, sha512: or md5: and the sum")] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=255, description="By default the URL's")] | None = None
    tags: NewTags = []
    metadata: Annotated[Metadata, Meta(description='Values to give, as an object or ["key=value"]')] = msgspec.field(
        default_factory=dict[str, Scalar]
    )
    collection: Collection | None = None
    mimeType: Annotated[str, Meta(max_length=255, description="MIME type, if you know better")] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=86_400, description="By default the settings' limit")] | None = None
    max_bytes: Annotated[int, Meta(ge=1, description="At most the settings' limit")] | None = None


class DownloadAllowed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a URL may be downloaded."""

    allowed: bool
    addresses: Annotated[list[str], Meta(description="Permitted addresses of its host")]
    reason: Annotated[str, Meta(description="Why it is not allowed")] = ""


@surfaceless_step.read("documents_download_check", deadline_s=30)
class DownloadCheck(Params[DownloadAllowed], frozen=True, kw_only=True):
    """Check whether the settings allow a URL to be downloaded; its host is resolved, nothing is fetched."""

    url: Url
