"""Operations of `documents` that change what is stored: tags, deletion, and files written back to disk."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import Params
from proto.ops.documents.change import NewTags
from proto.ops.documents.reading import (
    Collection,
    Glob,
    Hash,
    Metadata,
    Name,
    Pattern,
    Tag,
    pairs,
    step,
)


class UpdateResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many documents were changed."""

    matched: int
    updated: int
    hashes: Annotated[list[str], Meta(description="Of the documents (the first 100)")]


@step.write("documents_update", title="Tag stored documents", idempotent=True, deadline_s=60)
class DocumentsUpdate(Params[UpdateResult], frozen=True, kw_only=True):
    """Change tags and metadata of stored documents, by `hash` or exact `name` or `path`. Not their content: add it
    again."""

    taken: ClassVar = {"use_session": ""}
    hash: Hash | None = None
    name: Name | None = None
    path: Name | None = None
    metadata: Annotated[Metadata, Meta(description='An object or ["key=value"]; null removes a value')] = {}
    tags: NewTags = []
    remove_tags: Annotated[list[Tag], Meta(max_length=256, description="Tags to take away")] = []

    def check(self) -> None:
        if self.hash is None and self.name is None and self.path is None:
            raise InvalidParams("missing parameter: give `hash`, `name` or `path`", field="hash")
        if not pairs(self.metadata) and not self.tags and not self.remove_tags:
            raise InvalidParams("nothing to change: give `metadata`, `tags` or `remove_tags`", field="metadata")


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was deleted, or would be."""

    hash: str
    name: str
    path: str


class DeleteResult(msgspec.Struct, frozen=True, kw_only=True):
    """Documents that were deleted, or with `dry_run` would be."""

    deleted: Annotated[list[Deleted], Meta(description="Documents (the first 1000)")]
    count: int
    dry_run: bool
    kept_by_snapshots: Annotated[int, Meta(description="Contents that a snapshot still holds for `restore`")]
    snapshots: Annotated[int, Meta(description="Snapshots that were deleted")]


@step.destroy("documents_delete", title="Delete stored documents", idempotent=False, deadline_s=300)
class DocumentsDelete(Params[DeleteResult], frozen=True, kw_only=True):
    """Delete stored documents by name or glob, hash or tags, or with `snapshot_id` a snapshot. Not files on disk:
    files_delete."""

    name: Pattern | None = None
    names: Annotated[list[Glob], Meta(max_length=4096, description="Several of them")] = []
    path: Annotated[str, Meta(min_length=1, max_length=4096, description="The same as `name`")] | None = None
    hash: Hash | None = None
    tags: Annotated[list[Tag], Meta(max_length=64, description="Documents that carry every one of these tags")] = []
    collection: Collection | None = None
    snapshot_id: Annotated[str, Meta(min_length=1, max_length=128, description="Snapshot to delete")] | None = None
    dry_run: Annotated[bool, Meta(description="Say what would be deleted, and delete nothing")] = False

    def check(self) -> None:
        given = (self.name, self.path, self.hash, self.collection, self.snapshot_id)
        if all(value is None for value in given) and not self.names and not self.tags:
            raise InvalidParams(
                "missing parameter: give `name`, `names`, `hash`, `tags`, `collection` or `snapshot_id`", field="name"
            )


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was restored, or was not."""

    path: Annotated[str, Meta(description="The file below `output_directory`")]
    hash: str
    reason: Annotated[str, Meta(description="Why it was not restored; empty if it was")]


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were restored, or with `dry_run` would be."""

    files_restored: int
    skipped: Annotated[int, Meta(description="Files that were not restored: they exist, or cannot be")]
    bytes_restored: int
    files: Annotated[list[Restored], Meta(description="The first 1000, those that were skipped first")]
    output_directory: str
    dry_run: bool


@step.write("documents_restore", title="Restore stored files", idempotent=True, deadline_s=86_400)
class DocumentsRestore(Params[RestoreResult], frozen=True, kw_only=True):
    """Restore an earlier version to disk: the stored files of a collection or snapshot, below `output_directory`. Not
    for one document (get with outputPath) or the trash (trash_restore)."""

    taken: ClassVar = {"create_dirs": ""}
    output_directory: Annotated[str, Meta(min_length=1, max_length=4096, description="Directory to write to")]
    collection: Collection | None = None
    snapshot_id: Annotated[str, Meta(min_length=1, max_length=128, description="Id of a snapshot")] | None = None
    dry_run: Annotated[bool, Meta(description="Say what would be written, and write nothing")] = False
    overwrite: Annotated[bool, Meta(description="Replace files that exist")] = False
    include_patterns: Annotated[list[Glob], Meta(max_length=256, description="Only paths that match a glob")] = []
    exclude_patterns: Annotated[list[Glob], Meta(max_length=256, description="No paths that match a glob")] = []

    def check(self) -> None:
        if self.collection is None and self.snapshot_id is None:
            raise InvalidParams("missing parameter: give `collection` or `snapshot_id`", field="snapshot_id")
        if self.collection is not None and self.snapshot_id is not None:
            raise InvalidParams("parameters `collection` and `snapshot_id`: give one of the two", field="snapshot_id")


# Uploads from another service, in pieces, so that no process holds a whole large file.
