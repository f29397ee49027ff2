"""Operations of `files` that change the disk: rename, move, delete and restore.

Each item has a status of its own, and one that fails does not stop the others. Nothing is ever overwritten.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from proto.operation import Params, detail
from proto.ops.changes import ChangeId
from proto.ops.pages import Paged
from proto.outcomes import PerItem
from services.files.operations.shared import Path, step, tool, within

MAX_ITEMS = 10_000

ItemStatus = Literal["success", "preview", "error"]

DryRun = Annotated[bool, detail("Only report what would happen")]


class Relocation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or directory and its new path."""

    from_: Annotated[Path, Meta(description="Its current path")] = msgspec.field(name="from")
    to: Annotated[Path, Meta(description="Its new name, or new path with its name; must not exist yet")]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The outcome of an item."""

    status: ItemStatus
    error: Annotated[str | None, Meta(description="Why it was not done")] = None


class Outcomes(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Totals over all items."""

    per_item: ClassVar = PerItem(done=("succeeded",), failed="failed", details="results")

    total: int
    succeeded: Annotated[int, Meta(description="Items done; in a dry run, that would be")]
    failed: int
    dry_run: bool = False
    summary: Annotated[str | None, detail("If there are too many to list")] = None
    change: ChangeId = ""


class RelocationOutcome(Outcome, frozen=True, kw_only=True, rename="camel"):
    """The outcome of one of them."""

    from_: str = msgspec.field(name="from")
    to: str


class Relocations(Outcomes, frozen=True, kw_only=True):
    """The outcomes, in the order given."""

    results: list[RelocationOutcome]
    hint: Annotated[str | None, detail("For a note: the tool that renames its links too")] = None


@within.write("files_rename", idempotent=False, deadline_s=3600)
class RenameFiles(Params[Relocations], frozen=True, kw_only=True, rename="camel"):
    """Rename files or folders on disk, many at once, each `from` a path `to` a new name; never overwrites. The index
    and resource sets follow. Use files_move for another folder."""

    renames: Annotated[list[Relocation], Meta(min_length=1, max_length=MAX_ITEMS, description="What to rename to what")]
    dry_run: DryRun = False


@within.write("files_move", idempotent=False, deadline_s=86_400)
class MoveFiles(Params[Relocations], frozen=True, kw_only=True, rename="camel"):
    """Move files or folders on disk to another path or file system (copied, verified, then deleted); never overwrites.
    The index and resource sets follow. A new name in place: files_rename."""

    moves: Annotated[list[Relocation], Meta(min_length=1, max_length=MAX_ITEMS, description="What to move where")]
    dry_run: DryRun = False
    make_directories: Annotated[bool, Meta(description="Make missing directories")] = False


class Duplicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or directory and the path of its copy."""

    from_: Annotated[Path, Meta(description="What to copy")] = msgspec.field(name="from")
    to: Annotated[Path, Meta(description="Path of the copy, with its name; must not exist yet")]


@step.write("files_copy", idempotent=False, deadline_s=86_400)
class CopyFiles(Params[Relocations], frozen=True, kw_only=True, rename="camel"):
    """Copy files or folders on disk, many at once; never overwrites. A copy appears at its path whole or not at all."""

    copies: Annotated[list[Duplicate], Meta(min_length=1, max_length=MAX_ITEMS, description="What to copy where")]
    dry_run: DryRun = False
    make_directories: Annotated[bool, Meta(description="Make missing directories")] = False


class FolderOutcome(Outcome, frozen=True, kw_only=True, rename="camel"):
    """The outcome of one of them."""

    path: str
    existed: Annotated[bool, Meta(description="Whether the folder was there already")] = False


class FoldersMade(Outcomes, frozen=True, kw_only=True):
    """The outcomes, in the order given."""

    results: list[FolderOutcome]


@step.write("folders_create", idempotent=True, deadline_s=600)
class CreateFolders(Params[FoldersMade], frozen=True, kw_only=True, rename="camel"):
    """Make folders on disk (mkdir), with the missing ones above them; those that exist are not changed."""

    paths: Annotated[list[Path], Meta(min_length=1, max_length=MAX_ITEMS, description="Folders to make")]
    dry_run: DryRun = False


class DeletionOutcome(Outcome, frozen=True, kw_only=True, rename="camel"):
    """The outcome of one of them."""

    path: str
    trash_id: Annotated[int | None, Meta(description="For trash_restore, if deleted files are kept")] = None


Permanent = Annotated[bool, Meta(description="Whether deletion is final: the trash is off")]


class Deletions(Outcomes, frozen=True, kw_only=True):
    """The outcomes, in the order given."""

    results: list[DeletionOutcome]
    permanent: Permanent = False


@within.destroy("files_delete", idempotent=False, deadline_s=86_400)
class DeleteFiles(Params[Deletions], frozen=True, kw_only=True, rename="camel"):
    """Delete files or folders on disk, throw them away; a folder that is not empty only with `force`. They
    go to the trash (trash_restore), unless the result has `permanent: true`. Stored documents: documents_delete."""

    paths: Annotated[list[Path], Meta(min_length=1, max_length=MAX_ITEMS, description="What to delete")]
    dry_run: DryRun = False
    force: Annotated[bool, Meta(description="With the contents of a directory")] = False


class Trashed(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file or directory in the trash."""

    trash_id: int
    path: Annotated[str, Meta(description="Where it was")]
    kind: str
    size: Annotated[int, Meta(description="Bytes according to the index; 0 if not indexed")]
    deleted_at: Annotated[str, Meta(description="RFC 3339")]


class TrashList(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Items in the trash, newest first."""

    items: list[Trashed]
    total: int
    permanent: Permanent = False


@tool.read("trash_list", deadline_s=10)
class ListTrash(Paged, Params[TrashList], frozen=True, kw_only=True, rename="camel"):
    """List the trash: files deleted by files_delete, newest first, for trash_restore. Says whether deleting is
    permanent."""


class RestoreItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Something in the trash."""

    trash_id: Annotated[int, Meta(ge=1, description="From files_delete or trash_list")]
    to: Annotated[Path | None, Meta(description="Restore to this path instead")] = None


@tool.write("trash_restore", title="Restore deleted files", idempotent=False, deadline_s=86_400)
class RestoreFiles(Params[Relocations], frozen=True, kw_only=True, rename="camel"):
    """Undelete: bring files or folders back from the trash to where they were, the last deleted of a path; never
    overwrites. Earlier versions of documents: documents_restore."""

    paths: Annotated[list[Path], Meta(max_length=MAX_ITEMS, description="Paths that were deleted")] = []
    items: Annotated[list[RestoreItem], Meta(max_length=MAX_ITEMS, description="Or items by id")] = []
    dry_run: DryRun = False


class EmptiedTrash(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Number of items deleted for good."""

    per_item: ClassVar = PerItem(done=("deleted",), failed="failed", details="problems")

    deleted: int
    permanent: Permanent = False
    failed: Annotated[int, Meta(description="Items that could not be deleted and stay in the trash")] = 0
    problems: Annotated[list[str], Meta(description="Why, for the first of them")] = []


@tool.destroy("trash_empty", idempotent=False, deadline_s=86_400)
class EmptyTrash(Params[EmptiedTrash], frozen=True, kw_only=True, rename="camel"):
    """Empty the trash for good, to free space: the items named, or all deleted at least that long ago. Cannot be
    undone."""

    trash_ids: Annotated[list[int], Meta(max_length=MAX_ITEMS, description="These items")] = []
    older_than_days: Annotated[
        Annotated[float, Meta(ge=0, le=36500)] | None,
        Meta(description="All deleted at least this many days ago; 0: all"),
    ] = None
