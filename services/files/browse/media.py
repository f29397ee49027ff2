"""What `media` makes of a file, as `inspect` answers it; nothing where it is away."""

from __future__ import annotations

from urllib.parse import quote

from proto.errors import LinckiaError, OperationError
from proto.http import CONTENT_PATH
from proto.ops.files.reading import Artifact
from proto.ops.kernel import KernelContentUrl
from proto.ops.media import (
    THUMBNAIL,
    TIMELINE,
    MediaArtifact,
    MediaArtifactParams,
    MediaInspect,
    MediaThumbnails,
)
from services.runtime.handlers import Context

LIMIT_S = 45.0
"""Less than `inspect` has: a slow decoder must not cost the rest of the answer."""

KNOWN_LIMIT_S = 1.0
"""A directory is shown without thumbnails rather than late."""


async def artifacts(ctx: Context, path: str) -> list[Artifact]:
    """Pictures and metadata of a file's content."""
    try:
        found = await ctx.call(MediaInspect(path=path), timeout_s=LIMIT_S)
    except LinckiaError as error:
        ctx.log("info", f"no media of {path}: {error}")
        return []
    url = await _content_url(ctx)
    told = [_artifact(each, url) for each in found.artifacts]
    said = found.metadata | ({"problem": found.problem} if found.problem else {})
    if said:
        told.append(Artifact(type="metadata", mime_type=found.mime_type, url=_of(url, path), metadata=said))
    return told


async def thumbnail(ctx: Context, path: str) -> bytes:
    """A JPEG. Raises LinckiaError where there is none, and says why."""
    found = await ctx.call(MediaInspect(path=path), timeout_s=LIMIT_S)
    made = next((each for each in found.artifacts if each.type == THUMBNAIL), None)
    if made is None or found.hash is None:
        raise OperationError(f"there is no thumbnail of {path[:200]!r}: {found.problem or f'it is {found.mime_type}'}")
    return (await ctx.call(MediaArtifactParams(hash=found.hash, name=made.name))).data


async def known_thumbnails(ctx: Context, versions: list[str]) -> list[str | None]:
    """Where the thumbnail is, of each file that has one already; `media` knows files by these versions."""
    try:
        found = await ctx.call(MediaThumbnails(versions=versions), timeout_s=KNOWN_LIMIT_S)
    except LinckiaError as error:
        ctx.log("info", f"no thumbnails: {error}")
        return [None] * len(versions)
    if not any(found.paths):
        return [None] * len(versions)
    url = await _content_url(ctx)
    return [_of(url, path) if path else None for path in found.paths]


def first(of: list[Artifact], kind: str) -> str | None:
    """Where the first artefact of a type is."""
    return next((each.url for each in of if each.type == kind), None)


def _artifact(made: MediaArtifact, url: str) -> Artifact:
    metadata = made.metadata | {"width": made.width, "height": made.height, "size": made.size}
    return Artifact(type=made.type, mime_type=made.mime_type, url=_of(url, made.path), metadata=metadata)


async def _content_url(ctx: Context) -> str:
    """Where files are served; its path alone where that is nowhere, for it may be so later."""
    try:
        return await ctx.call(KernelContentUrl()) or CONTENT_PATH
    except LinckiaError as error:
        ctx.log("info", f"the address where files are served is unknown: {error}")
        return CONTENT_PATH


def _of(url: str, path: str) -> str:
    return f"{url}?path={quote(path)}"


__all__ = ["THUMBNAIL", "TIMELINE", "artifacts", "first", "known_thumbnails", "thumbnail"]
