"""What `media` makes of a file, as `inspect` answers it; nothing where it is away."""

from __future__ import annotations

from urllib.parse import quote

from proto.errors import LinckiaError
from proto.ops.files_reading import Artifact
from proto.ops.media import THUMBNAIL, TIMELINE, MediaArtifact, MediaInspect
from services.runtime.handlers import Context

LIMIT_S = 45.0
"""Less than `inspect` has: a slow decoder must not cost the rest of the answer."""


async def artifacts(ctx: Context, path: str) -> list[Artifact]:
    """Pictures of a file's content, and what is said of it."""
    try:
        found = await ctx.call(MediaInspect(path=path), timeout_s=LIMIT_S)
    except LinckiaError as error:
        ctx.log("info", f"no media of {path}: {error}")
        return []
    told = [_artifact(each) for each in found.artifacts]
    said = found.metadata | ({"problem": found.problem} if found.problem else {})
    if said:
        told.append(Artifact(type="metadata", mime_type=found.mime_type, url=_url(path), metadata=said))
    return told


def first(of: list[Artifact], kind: str) -> str | None:
    """Where the first artefact of a type is."""
    return next((each.url for each in of if each.type == kind), None)


def _artifact(made: MediaArtifact) -> Artifact:
    metadata = made.metadata | {"width": made.width, "height": made.height, "size": made.size}
    return Artifact(type=made.type, mime_type=made.mime_type, url=_url(made.path), metadata=metadata)


def _url(path: str) -> str:
    return f"/api/content?path={quote(path)}"


__all__ = ["THUMBNAIL", "TIMELINE", "artifacts", "first"]
