"""Sessions of `documents`: a span of work in which documents are added, pinned and watched."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from proto.operation import Params
from proto.ops.documents.reading import Glob, Hash, Metadata, Pattern, step

PINNED = "pinned"
"""Tag of pinned documents."""

SessionId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        description="A session's id, label or name; by default the client's latest one, else the only open one",
    ),
]


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A session that has started; `documents_add` takes its id as `session`."""

    session_id: str
    label: str
    started: str


@step.write("documents_session_start", idempotent=False, deadline_s=30)
class SessionStart(Params[SessionStarted], frozen=True, kw_only=True):
    """Begin a session: documents added until its stop carry its label."""

    label: Annotated[str, Meta(min_length=1, max_length=128, description="What to call it")] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=128, description="The same as `label`")] | None = None


class SessionStopped(msgspec.Struct, frozen=True, kw_only=True):
    """A session that has ended."""

    session_id: str
    label: str
    documents: Annotated[int, Meta(description="Documents added in it")]


@step.write("documents_session_stop", idempotent=False, deadline_s=30)
class SessionStop(Params[SessionStopped], frozen=True, kw_only=True):
    """End a session and its watching; without an id, the last one this client started, else the only open one."""

    session_id: SessionId | None = None
    label: Annotated[str, Meta(min_length=1, max_length=128, description="The session of this label")] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=128, description="The same as `label`")] | None = None


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """How many documents were pinned, or unpinned."""

    updated: int


@step.write("documents_session_pin", idempotent=True, deadline_s=60)
class SessionPin(Params[Pinned], frozen=True, kw_only=True):
    """Pin documents by hash, path or glob: they get the tag `pinned`."""

    hash: Hash | None = None
    path: Pattern | None = None
    name: Annotated[str, Meta(min_length=1, max_length=4096, description="The same as `path`")] | None = None
    paths: Annotated[list[Glob], Meta(max_length=1024, description="Several of them")] = []
    metadata: Annotated[Metadata, Meta(description="Values to set as well")] = {}


@step.write("documents_session_unpin", idempotent=True, deadline_s=60)
class SessionUnpin(Params[Pinned], frozen=True, kw_only=True):
    """Unpin documents, by hash, path or glob: takes the tag `pinned` away."""

    hash: Hash | None = None
    path: Pattern | None = None
    name: Annotated[str, Meta(min_length=1, max_length=4096, description="The same as `path`")] | None = None
    paths: Annotated[list[Glob], Meta(max_length=1024, description="Several of them")] = []


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that a session watches."""

    session_id: str
    enabled: bool
    roots: Annotated[list[str], Meta(description="Folders whose changes are added")]
    interval_ms: int


@step.write("documents_session_watch", idempotent=True, deadline_s=60)
class SessionWatch(Params[Watching], frozen=True, kw_only=True):
    """Watch a folder and add what changes below it, for as long as the session lasts; `enabled: false` ends it."""

    common: ClassVar = {"root": "path"}
    root: Annotated[str, Meta(min_length=1, max_length=4096, description="Folder below a root")] | None = None
    enabled: bool = True
    interval_ms: Annotated[int, Meta(ge=100, le=3_600_000, description="Least time between two checks")] = 2000
    session_id: SessionId | None = None
