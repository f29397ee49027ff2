"""Operations of `files` on the journal of changes: list, show and undo the changes that clients made to files."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import Params, SaidIfAny, detail
from proto.ops.changes import ChangeId
from services.files.operations.shared import Instant, Path, whole_step

ChangeKind = Literal["write", "create", "move", "copy", "folder", "trash", "restore", "delete", "rmdir"]
Session = Annotated[str, Meta(max_length=256, description="`this`, or as in changes_list")]
Task = Annotated[str, Meta(max_length=256, description="The task, plan or timer, as in changes_list")]
Below = Annotated[Path | None, Meta(description="Only this file, or what is below this folder")]
Client = Annotated[str, Meta(max_length=256), detail("Only changes of this client, as in changes_list")]
Until = Annotated[Instant | None, detail("Before then")]
Since = Annotated[Instant | None, Meta(description="Then or later: RFC 3339, date, `1 hour ago`")]


class ChangedPath(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change did to one path."""

    kind: Annotated[ChangeKind, Meta(description="`folder` makes one, `rmdir` removes one, `delete` is for good")]
    path: str
    to: Annotated[str, Meta(description="Its new path")] = ""
    trash_id: Annotated[int | None, Meta(description="Where it is in the trash")] = None
    undone_by: Annotated[str, Meta(description="The change that has undone it")] = ""
    lost: Annotated[str, Meta(description="Why it cannot be undone")] = ""


class ListedChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that one call changed."""

    id: Annotated[str, Meta(description="For changes_undo")]
    at: Annotated[str, Meta(description="RFC 3339")]
    operation: str
    client: str
    session: str = ""
    task: str = ""
    undoes: Annotated[list[str], Meta(description="Changes of which it undid something")] = []
    files: list[ChangedPath]
    more_files: Annotated[int, Meta(description="How many further paths it changed")] = 0


class ChangeList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes, the latest first."""

    changes: list[ListedChange]
    has_more: Annotated[bool, Meta(description="Whether older ones match"), SaidIfAny] = False
    degraded: Annotated[list[str], Meta(description="Services whose latest changes may be missing")] = []


@whole_step.read("changes_list", deadline_s=60)
class ListChanges(Params[ChangeList], frozen=True, kw_only=True):
    """List what was changed in files, the latest first: by whom, and what may be undone."""

    id: Annotated[str, Meta(max_length=64)] = ""
    client: Client = ""
    session: Session = ""
    task: Task = ""
    path: Below = None
    since: Since = None
    until: Until = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="Changes at most")] = 20
    offset: Annotated[int, Meta(ge=0)] = 0


class ShownPath(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change did to one path, with the difference in its content."""

    kind: str
    path: str
    to: str = ""
    diff: Annotated[str, Meta(description="Unified; a long one is cut, with a note")] = ""
    note: Annotated[str, Meta(description="Why there is no diff")] = ""


class ShownChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change with its diffs."""

    id: str
    at: str
    operation: str
    client: str
    files: list[ShownPath]


@whole_step.read("changes_show", deadline_s=60)
class ShowChange(Params[ShownChange], frozen=True, kw_only=True):
    """Show what one change did: a unified diff of each file."""

    id: Annotated[str, Meta(min_length=1, max_length=64, description="From an answer or changes_list")]
    path: Below = None


class Undone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one path."""

    change: Annotated[str, Meta(description="The change that was to be undone")]
    kind: str
    path: str
    status: Annotated[
        Literal["undone", "merged", "skipped", "preview"],
        Meta(description="merged: into what others wrote since; preview: would be undone"),
    ]
    reason: Annotated[str, Meta(description="Why it was skipped")] = ""
    trash_id: Annotated[int | None, Meta(description="Where what it had made is in the trash")] = None


class UndoResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was undone, the latest first."""

    results: list[Undone]
    undone: int
    skipped: int
    dry_run: bool = False
    change: ChangeId = ""
    degraded: Annotated[list[str], Meta(description="Services whose latest changes may be missing")] = []


@whole_step.destroy("changes_undo", idempotent=True, deadline_s=300)
class UndoChanges(Params[UndoResult], frozen=True, kw_only=True):
    """Undo changes of files, the latest first: one by its `id` (an undo, too), or all that match. What others changed
    since is skipped, or with `merge` merged."""

    id: Annotated[str, Meta(max_length=64, description="From an answer or changes_list")] = ""
    client: Client = ""
    session: Session = ""
    task: Task = ""
    path: Below = None
    since: Since = None
    until: Until = None
    merge: Annotated[bool, detail("Merge with later changes of the same file, if they are to other lines")] = False
    dry_run: Annotated[bool, detail("Only report what would happen")] = False

    def check(self) -> None:
        if not (self.id or self.session or self.task or self.path or self.since is not None):
            raise InvalidParams(
                "`id`: required: the change to undo, or `session`, `task`, `path` or `since` to undo all that match",
                field="id",
            )
