"""Operations of `memory`: plain statements that an agent keeps, each with scope, times and source."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from proto.errors import InvalidParams
from proto.operation import OPERATOR, Family, Params, Role
from proto.ops.memory import SERVICE
from proto.ops.retrieve import Score

tool = Family(SERVICE)
operator = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))

USER, SESSION, PROJECT = "user", "session", "project:"

MemoryId = Annotated[str, Meta(max_length=64, description="Id")]
_SCOPE = re.compile(r"user|session(:\S.{0,127})?|project:\S.{0,255}")
Scope = Annotated[str, Meta(max_length=264, description="user, session, project:NAME")]
OneScope = Annotated[str, Meta(max_length=264, description="Scope")]
Statement = Annotated[str, Meta(min_length=1, max_length=2000, description="A plain statement")]
Tags = Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=16, description="Tags")]
Source = Annotated[str, Meta(max_length=1024, description="Turn's hash, path or URL")]
Moment = Annotated[str, Meta(max_length=64)]
IncludeExpired = Annotated[bool, Meta(description="Include expired")]


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One time it was said."""

    at: Annotated[str, Meta(description="RFC 3339")]
    text: Annotated[str, Meta(description="If worded differently")] = ""
    source: str = ""
    session: Annotated[str, Meta(description="Label of the session")] = ""
    client: Annotated[str, Meta(description="Token of the client, if it has its own")] = ""


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A statement. `conflicts_with` lists those that contradict it; the reader judges which is right."""

    id: str
    text: str
    scope: str
    at: Annotated[str, Meta(description="When it was last said")]
    tags: list[str] = []
    expires: str = ""
    expired: bool = False
    conflicts_with: list[str] = []
    similar_to: Annotated[list[str], Meta(description="Close to it, kept apart")] = []
    said: Annotated[list[Said], Meta(description="Each time it was said, latest first")] = []


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """Another memory."""

    id: str
    text: str
    at: str


class Remembered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """It is on disk. `merged_with` is an equal earlier statement, which now has the new time and source too."""

    id: str
    scope: str
    merged_with: Other | None = None
    conflicts_with: Annotated[list[Other], Meta(description="Contradict it; kept, and recalled with it")] = []
    similar_to: Annotated[list[Other], Meta(description="Close to it; kept")] = []
    expires: str = ""
    degraded: Annotated[list[str], Meta(description="What was skipped, and why")] = []


@tool.write("remember", idempotent=True, deadline_s=60, surfaces=("core",))
class Remember(Params[Remembered], frozen=True, kw_only=True):
    """Memory: remember a fact, or what the user wants or prefers, as one statement. Equal ones merge, close ones are
    kept and linked. Not for files: op add."""

    text: Statement
    scope: Scope = USER
    tags: Tags = []
    expires: Annotated[Moment | None, Meta(description="Date, or 30d, 6 months")] = None
    source: Source = ""

    def __post_init__(self) -> None:
        _trim_scope(self)

    def check(self) -> None:
        _require_text(self.text)
        _require_scope(self.scope)


class Recalled(Memory, frozen=True, kw_only=True, omit_defaults=True):
    """A memory that was found."""

    score: Score = 0.0


class RecallResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memories, best first. Those that contradict each other stand together, newest first, if the query does not tell
    them apart."""

    query: str
    count: int
    memories: list[Recalled]
    degraded: Annotated[list[str], Meta(description="What did not run, or is not indexed yet, and why")] = []
    unlikely: Annotated[int, Meta(description="Left out as unlikely answers")] = 0
    note: Annotated[str, Meta(description="Set if no result is likely to be an answer")] = ""


@tool.read("recall", deadline_s=30, surfaces=("core",))
class Recall(Params[RecallResult], frozen=True, kw_only=True):
    """Memory: what do you remember of the user's preferences or a project's facts. Not past chats: search."""

    query: Annotated[str, Meta(min_length=1, max_length=65536, description="What to find, in words")]
    scope: OneScope | None = None
    limit: Annotated[int, Meta(ge=1, le=200, description="Limit")] = 10
    since: Annotated[Moment | None, Meta(description="Since")] = None
    until: Annotated[Moment | None, Meta(description="Until")] = None
    include_expired: IncludeExpired = False

    def __post_init__(self) -> None:
        _trim_scope(self)

    def check(self) -> None:
        _require_scope(self.scope)
        if not self.query.strip():
            raise InvalidParams("parameter `query` is blank; say what to look for", field="query")


@tool.write("update_memory", idempotent=True, deadline_s=60)
class UpdateMemory(Params[Remembered], frozen=True, kw_only=True):
    """Correct a memory: its `text`, `tags` or `expires`, at least one of them."""

    id: MemoryId
    text: Statement | None = None
    tags: Tags | None = None
    expires: Annotated[Moment | None, Meta(description="Or never")] = None

    def check(self) -> None:
        if self.text is None and self.tags is None and self.expires is None:
            raise InvalidParams("nothing to change: give `text`, `tags` or `expires`", field="text")
        if self.text is not None:
            _require_text(self.text)


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memories deleted for good, or without `confirm` that would be."""

    forgotten: int
    memories: Annotated[list[Other], Meta(description="The first 100")]
    note: str = ""
    search_pending: Annotated[int, Meta(description="Of those: still in search files, to be purged automatically")] = 0


@tool.destroy("forget", idempotent=True, deadline_s=60)
class Forget(Params[Forgotten], frozen=True, kw_only=True):
    """Memory: delete memories: either one by `id`, or with `confirm` (else listed) all of a `scope` that contain the
    words of `query`."""

    id: MemoryId | None = None
    scope: OneScope | None = None
    query: Annotated[str, Meta(max_length=2000, description="Words it contains")] = ""
    confirm: Annotated[bool, Meta(description="Confirm")] = False

    def __post_init__(self) -> None:
        _trim_scope(self)

    def check(self) -> None:
        _require_scope(self.scope)
        if (self.id is None) == (self.scope is None):
            raise InvalidParams("give either `id`, or `scope` with `query`", field="id")


class MemoryList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memories, newest first; `total` counts all pages."""

    total: int
    memories: list[Memory]
    note: Annotated[str, Meta(description="Set if the scope is unknown")] = ""
    next_cursor: Annotated[str, Meta(description="Value of `cursor` for the next page; empty at the end")] = ""


@tool.read("list_memories", deadline_s=30)
class ListMemories(Params[MemoryList], frozen=True, kw_only=True):
    """List memories, newest first."""

    scope: OneScope | None = None
    include_expired: IncludeExpired = False
    limit: Annotated[int, Meta(ge=1, le=1000, description="Limit")] = 50
    cursor: Annotated[str, Meta(max_length=64, description="`next_cursor`")] = ""

    def __post_init__(self) -> None:
        _trim_scope(self)

    def check(self) -> None:
        _require_scope(self.scope)
        if self.cursor and not re.fullmatch("[0-9]{1,18}", self.cursor):
            raise InvalidParams("parameter `cursor`: give the `next_cursor` of the previous page", field="cursor")


# For `linckia export` and `import`


class CarriedSaid(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One time it was said; times are nanoseconds since 1970."""

    at_ns: int
    text: str
    source: str = ""
    session: str = ""
    client: str = ""


class CarriedMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory; `owner` is the MCP session of a memory of scope `session`."""

    id: MemoryId
    scope: Scope
    owner: str = ""
    text: Statement
    tags: list[str] = []
    expires_ns: int | None = None
    said: Annotated[list[CarriedSaid], Meta(min_length=1)]
    conflicts_with: list[MemoryId] = []
    similar_to: list[MemoryId] = []


class ExportedMemories(msgspec.Struct, frozen=True, kw_only=True):
    """A page of memories, oldest first; empty at the end."""

    memories: list[CarriedMemory]
    next: Annotated[int, Meta(description="The value of `after` for the next page")]


@operator.read("memory_export", deadline_s=60)
class MemoryExport(Params[ExportedMemories], frozen=True, kw_only=True):
    """Read the next memories."""

    after: Annotated[int, Meta(ge=0)] = 0


class RestoredMemories(msgspec.Struct, frozen=True, kw_only=True):
    """How many were new."""

    changed: int


@operator.write("memory_import", idempotent=True, deadline_s=120)
class MemoryImport(Params[RestoredMemories], frozen=True, kw_only=True):
    """Import memories unchanged; existing ones, by id or by words, are not changed."""

    memories: Annotated[list[CarriedMemory], Meta(max_length=1000)]

    def check(self) -> None:
        for one in self.memories:
            _require_scope(one.scope)
            if not re.fullmatch("[0-9a-f]{12}", one.id):
                raise InvalidParams(f"{one.id!r} is not a memory id: 12 of the digits 0-9 and a-f", field="memories")


def _require_text(text: str) -> None:
    # A symbol such as an emoji means something; punctuation alone does not.
    if not any(char.isalnum() or (unicodedata.category(char).startswith("S") and not char.isascii()) for char in text):
        raise InvalidParams("parameter `text` has no content; give one plain statement", field="text")


def _trim_scope(params: Remember | Recall | Forget | ListMemories) -> None:
    if params.scope is not None:
        force_setattr(params, "scope", params.scope.strip())


def _require_scope(scope: str | None) -> None:
    if scope is not None and not _SCOPE.fullmatch(scope):
        right = "give user, session, session:LABEL or project:NAME"
        raise InvalidParams(f"parameter `scope`: {scope[:80]!r} is not a scope; {right}", field="scope")
