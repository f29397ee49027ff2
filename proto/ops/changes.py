"""Changes to files: the services that make them record them, and `files` collects the records to undo changes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from proto.operation import Family, Params, Role, SaidIfAny, detail

ChangeId = Annotated[str, msgspec.Meta(description="For changes_undo"), SaidIfAny]
NotKept = Annotated[str, detail("Why it cannot be undone"), SaidIfAny]


class ChangeRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a call did to one path; numbers increase within a service. `change` is the id of all that it did, `before`
    and `after` are SHA-256, `content` is the former content as a Zstandard frame unless `lost` says why not, and
    `delta` the new one with the former as dictionary."""

    number: int
    change: str
    operation: str
    client: str
    session: str
    task: str
    kind: str
    path: str
    target: str = ""
    before: bytes = b""
    after: bytes = b""
    mode: int = 0
    size: int = 0
    trash_id: int | None = None
    lost: str = ""
    undoes: int | None = None
    is_done: bool | None = None
    content: bytes = b""
    delta: bytes = b""


@Family("yaml", role=Role.INTERNAL, callers=("files",)).write("yaml_changes", idempotent=True, deadline_s=30)
class TakeYamlChanges(Params[list[ChangeRecord]], frozen=True, kw_only=True):
    """Forget the records that are `stored`, by number, and return the oldest others of changes that have ended."""

    stored: list[int] = []


@Family("knowledge", role=Role.INTERNAL, callers=("files",)).write("notes_changes", idempotent=True, deadline_s=30)
class TakeNoteChanges(Params[list[ChangeRecord]], frozen=True, kw_only=True):
    """Forget the records that are `stored`, by number, and return the oldest others of changes that have ended."""

    stored: list[int] = []


@Family("files", role=Role.INTERNAL, callers=("yaml", "knowledge")).write(
    "changes_collect", idempotent=True, deadline_s=60
)
class CollectChanges(Params[None], frozen=True, kw_only=True):
    """Take over the records of all services: one of them has many."""
