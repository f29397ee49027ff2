"""The operation of `documents` that adds to the store."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import Params
from proto.ops.documents.change import AddResult, MimeType, NewTags, SessionToAdd
from proto.ops.documents.reading import Collection, Glob, Metadata, pairs, step


@step.write("documents_add", title="Remember or store", idempotent=True, deadline_s=86_400)
class DocumentsAdd(Params[AddResult], frozen=True, kw_only=True):
    """Remember a text for later (`content` with `name`), or store a file or folder below a root (`path`), each version
    of it. An existing path gets the new content and keeps its tags. Notes (.md below the roots) are known
    already; a URL is for
    documents_download."""

    taken: ClassVar = {
        "directory_path": "path",
        "include_patterns": "include",
        "exclude_patterns": "exclude",
        "no_embeddings": "",
        "disable_auto_mime": "",
    }
    path: Annotated[str, Meta(max_length=4096, description="File or directory below a root")] | None = None
    content: Annotated[str, Meta(description="The text to store, instead of a path")] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=4096, description="Name of `content`")] | None = None
    url: Annotated[str, Meta(max_length=8192, description="Not here: use `documents_download`")] | None = None
    tags: NewTags = []
    metadata: Annotated[Metadata, Meta(description='Values to give, as an object or ["key=value"]')] = {}
    collection: Collection | None = None
    mimeType: MimeType | None = None
    recursive: Annotated[bool, Meta(description="Of a directory: the folders below it as well")] = True
    include: Annotated[
        list[Glob], Meta(max_length=256, description="Of a directory: only files that match a glob")
    ] = []
    exclude: Annotated[list[Glob], Meta(max_length=256, description="Of a directory: no files that match a glob")] = []
    no_ignore: Annotated[
        bool,
        Meta(description="Of a directory: also what .gitignore and .ignore leave out, and node_modules and the like"),
    ] = False
    snapshot_label: Annotated[str, Meta(max_length=256, description="Of a directory: its label")] | None = None
    session: SessionToAdd | None = None

    def check(self) -> None:
        if self.url is not None:
            raise InvalidParams(
                "parameter `url`: `documents_add` stores files and texts; `documents_download` fetches a URL",
                field="url",
            )
        pairs(self.metadata)
        if self.content is None and self.path is None:
            raise InvalidParams("missing required parameter `path` (or `content` with `name`)", field="path")
        if self.content is not None and self.path is not None:
            raise InvalidParams("parameters `path` and `content`: give one of the two", field="content")
        if self.content is not None and self.name is None:
            raise InvalidParams("missing required parameter `name`: what to call `content`", field="name")
