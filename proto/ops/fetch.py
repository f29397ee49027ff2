"""The operation of `fetch`: to download what is at a URL, and store it as a document."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from linckia.proto.operation import Family, Params, Role
from linckia.proto.ops.documents.change import NewTags
from linckia.proto.ops.documents.reading import Collection, Metadata, Scalar

step = Family("fetch", role=Role.STEP, surfaces=("documents",))
internal = Family("fetch", role=Role.INTERNAL)
surfaceless_step = Family("fetch", role=Role.STEP)

_URL = r"^[Hh][Tt][Tt][Pp][Ss]?://"
_CHECKSUM = r"^(sha256:[0-9A-Fa-f]{64}|sha512:[0-9A-Fa-f]{128}|md5:[0-9A-Fa-f]{32})$"

Url = Annotated[str, Meta(min_length=8, max_length=4096, pattern=_URL, description="Begins with http:// or https://")]


class Downloaded(msgspec.Struct, frozen=True, kw_only=True):
    """A document, and where it came from."""

    hash: Annotated[str, Meta(description="Of the content")]
    url: Annotated[str, Meta(description="Where it was found in the end, redirects followed")]
    path: Annotated[str, Meta(description="The document's path: the URL that was asked for")]
    name: str
    size: Annotated[int, Meta(description="Bytes")]
    mime_type: str | None
    is_new: Annotated[bool, Meta(description="Whether this content was not stored before")]
    checksum: Annotated[str, Meta(description="The checksum that it has: the one asked for, else its sha256")]
    resumed_from: Annotated[int, Meta(description="Bytes that an earlier attempt had already brought")]
    redirects: int


@step.write("download", idempotent=True, deadline_s=86_400, open_world=True)
class Download(Params[Downloaded], frozen=True, kw_only=True):
    """Download a URL from the web and store it as a document; with a `checksum`, only if it fits. What broke off is
    gone on with. Addresses of this machine and private networks are refused unless the settings allow them. A local
    file: add."""

    taken: ClassVar = {"concurrency": "", "chunk_size_bytes": "", "timeout_ms": "", "resume": ""}
    url: Url
    checksum: Annotated[str, Meta(pattern=_CHECKSUM, description="sha256:, sha512: or md5: and the sum")] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=255, description="By default the URL's")] | None = None
    tags: NewTags = []
    metadata: Annotated[Metadata, Meta(description='Values to give, as an object or ["key=value"]')] = msgspec.field(
        default_factory=dict[str, Scalar]
    )
    collection: Collection | None = None
    mimeType: Annotated[str, Meta(max_length=255, description="MIME type, where it is known better")] | None = None
    timeout_s: Annotated[float, Meta(gt=0, le=86_400, description="By default the settings' limit")] | None = None
    max_bytes: Annotated[int, Meta(ge=1, description="At most the settings' limit")] | None = None


class DownloadAllowed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a URL may be downloaded from here."""

    allowed: bool
    addresses: Annotated[list[str], Meta(description="Of its host, those that may be reached")]
    reason: Annotated[str, Meta(description="Why it is not allowed")] = ""


@surfaceless_step.read("download_check", deadline_s=30)
class DownloadCheck(Params[DownloadAllowed], frozen=True, kw_only=True):
    """Whether the settings allow a URL to be downloaded; its host is looked up, and nothing fetched."""

    url: Url


class IssuerKeySet(msgspec.Struct, frozen=True):
    """The public keys of an issuer of tokens, each a JSON Web Key (RFC 7517)."""

    keys: Annotated[list[dict[str, Any]], Meta(max_length=100)]


@internal.read("issuer_keys", deadline_s=30, callers=("front",))
class IssuerKeys(Params[IssuerKeySet], frozen=True, kw_only=True):
    """Read the keys of the one issuer that the settings name (`[http.oauth]`). There are no parameters: who calls it
    has no say in what is read."""
