"""Operations of `memory`: plain statements that an agent keeps, each with scope, times and source."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from proto.errors import InvalidParams
from proto.operation import OPERATOR, SYNC, Family, Params, Role, detail
from proto.ops.memory import SERVICE
from proto.ops.retrieve import Score

tool = Family(SERVICE)
operator = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))

USER, SESSION, PROJECT = "user", "session", "project:"

MemoryId = Annotated[str, Meta(max_length=64, description="Id")]
_SCOPE = re.compile(r"user|session(:\S.{0,127})?|project:\S.{0,255}")
Scope = Annotated[str, Meta(max_length=264, description="user, session, project:NAME")]
OneScope = Annotated[str, Meta(max_length=264, description="Scope")]
Statement = Annotated[str, Meta(min_length=1, max_length=2000), detail("One plain statement")]
Tags = Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=16, description="Tags")]
Source = Annotated[str, Meta(max_length=1024), detail("Turn's hash, path or URL")]
Moment = Annotated[str, Meta(max_length=64)]
IncludeExpired = Annotated[bool, Meta(description="Include expired")]
ValidFrom = Annotated[Moment | None, detail("From when it holds, as `expires`; by default from when it is first said")]
ValidUntil = Annotated[Moment | None, detail("Last day or moment at which it holds, as `expires`")]
Ids = Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=20)]


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One time it was said."""

    at: Annotated[str, Meta(description="RFC 3339")]
    text: Annotated[str, Meta(description="If worded differently")] = ""
    source: str = ""
    session: Annotated[str, Meta(description="Label of the session")] = ""
    client: Annotated[str, Meta(description="Token of the client, if it has its own")] = ""


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """A memory that another one replaced, and when it ended."""

    id: str
    text: str
    until: str


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A statement. `conflicts_with` lists those that contradict it; the reader judges which is right."""

    id: str
    text: str
    scope: str
    at: Annotated[str, Meta(description="When it was last said")]
    tags: list[str] = []
    expires: str = ""
    expired: bool = False
    valid_from: str = ""
    valid_until: Annotated[str, Meta(description="Stated, or when another replaced it")] = ""
    superseded_by: Annotated[str, Meta(description="Id of the memory that replaced it")] = ""
    replaced: Annotated[list[Replaced], Meta(description="What it replaced, latest first")] = []
    stale: Annotated[str, Meta(description="Why it may not hold: expired, replaced, contradicted, unconfirmed")] = ""
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
    valid_from: Annotated[str, detail("From when it holds, if stated")] = ""
    valid_until: Annotated[str, detail("When it ends")] = ""
    replaced: Annotated[
        list[Replaced], detail("What it replaced; a memory that was replaced before counts as the last")
    ] = []
    may_replace: Annotated[list[Other], detail("Earlier ones on the same thing, which hold too unless you say so")] = []
    note: Annotated[str, detail("How to say that it replaces them")] = ""
    degraded: Annotated[list[str], Meta(description="What was skipped, and why")] = []


@tool.write("memory_add", idempotent=True, deadline_s=60, surfaces=("core",))
class Remember(Params[Remembered], frozen=True, kw_only=True):
    """Memory: remember a fact, or what the user wants or prefers, as one statement. Not for files: documents_add."""

    text: Statement
    scope: Scope = USER
    tags: Tags = []
    expires: Annotated[Moment | None, Meta(description="Date or 6 months")] = None
    valid_from: ValidFrom = None
    valid_until: ValidUntil = None
    supersedes: Annotated[Ids, detail("Ids of the memories that it replaces")] = []
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
    not_holding: Annotated[int, detail("Memories of the scope left out: replaced, no longer or not yet valid")] = 0
    note: Annotated[str, Meta(description="Set if no result is likely to be an answer")] = ""


@tool.read("memory_recall", is_essential=True, deadline_s=30, surfaces=("core",))
class Recall(Params[RecallResult], frozen=True, kw_only=True):
    """Memory: what do you remember of the user's preferences or a project's facts. Not past chats: chats_search."""

    query: Annotated[str, Meta(min_length=1, max_length=65536), detail("What to find, in words")]
    scope: OneScope | None = None
    limit: Annotated[int, Meta(ge=1, le=200, description="Limit")] = 10
    since: Annotated[Moment | None, Meta(description="Since")] = None
    until: Annotated[Moment | None, Meta(description="Until")] = None
    as_of: Annotated[Moment | None, detail("A date or moment: what held then, instead of now")] = None
    include_expired: IncludeExpired = False

    def __post_init__(self) -> None:
        _trim_scope(self)

    def check(self) -> None:
        _require_scope(self.scope)
        if self.as_of is not None and self.include_expired:
            said = "give `as_of`, or `include_expired` for the memories of all times"
            raise InvalidParams(f"parameter `include_expired`: {said}", field="include_expired")
        if not self.query.strip():
            raise InvalidParams("parameter `query` is blank; say what to look for", field="query")


@tool.write("memory_update", idempotent=True, deadline_s=60)
class UpdateMemory(Params[Remembered], frozen=True, kw_only=True):
    """Correct a memory: `text`, `tags`, `expires`, validity or what it `supersedes`, at least one."""

    id: MemoryId
    text: Statement | None = None
    tags: Tags | None = None
    expires: Annotated[Moment | None, detail("Or never")] = None
    valid_from: Annotated[Moment | None, detail("From when it holds, or none")] = None
    valid_until: Annotated[Moment | None, detail("Until when it holds, or none")] = None
    supersedes: Annotated[Ids | None, detail("Ids of all memories that it replaces")] = None

    def check(self) -> None:
        changes = (self.text, self.tags, self.expires, self.valid_from, self.valid_until, self.supersedes)
        if all(change is None for change in changes):
            right = "`text`, `tags`, `expires`, `valid_from`, `valid_until` or `supersedes`"
            raise InvalidParams(f"nothing to change: give {right}", field="text")
        if self.text is not None:
            _require_text(self.text)


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memories deleted for good, or without `confirm` that would be."""

    forgotten: int
    memories: Annotated[list[Other], Meta(description="The first 100")]
    note: str = ""
    search_pending: Annotated[int, Meta(description="Of those: still in search files, to be purged automatically")] = 0


@tool.destroy("memory_forget", idempotent=True, deadline_s=60)
class Forget(Params[Forgotten], frozen=True, kw_only=True):
    """Memory: delete one by `id`, or with `confirm` (else listed) all of a `scope` with the words of `query`."""

    id: MemoryId | None = None
    scope: OneScope | None = None
    query: Annotated[str, Meta(max_length=2000), detail("Words it contains")] = ""
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


@tool.read("memory_list", deadline_s=30)
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
    valid_from_ns: int | None = None
    valid_until_ns: int | None = None
    superseded_by: MemoryId | None = None
    superseded_ns: int | None = None
    decided_ns: Annotated[int, Meta(description="When it was last said what replaces it; 0: never")] = 0
    corrected_ns: Annotated[int, Meta(description="When `memory_update` last changed it; 0: never")] = 0
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
        _require_carried(self.memories)


# For `linckia sync`


syncing = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR, SYNC))

FORMAT = 1
"""Changes when kernels of different versions can no longer be joined."""

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
CarriedId = Annotated[str, Meta(pattern="^[0-9a-f]{12}$", description="12 of the digits 0-9 and a-f")]
Buckets = Annotated[list[Annotated[int, Meta(ge=0, lt=256)]], Meta(max_length=256, description="Buckets to list")]


class ForgottenMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A memory that was forgotten, or merged into one in the same words; the time is in nanoseconds since 1970."""

    id: CarriedId
    at_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    merged_into: Annotated[str, Meta(pattern="^([0-9a-f]{12})?$", description="Its id")] = ""


class MemoryFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one database knows: a `memory` with all that it has, or that one was `forgotten`."""

    digest: Digest
    kind: Literal["memory", "forgotten"]
    target: Annotated[str, Meta(description="The memory's id")]
    forgotten: ForgottenMemory | None = None


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A digest for each bucket of facts, or the facts of the first of the given buckets. `kept_here` counts memories of
    single MCP sessions, which stay on their machine."""

    format: int
    buckets: list[Digest] = []
    covered: Annotated[list[int], Meta(description="The buckets whose facts are listed")] = []
    facts: list[MemoryFact] = []
    kept_here: int = 0


@syncing.read("memory_facts", deadline_s=60)
class CompareMemories(Params[MemoryFacts], frozen=True, kw_only=True):
    """Compare memories with those of another kernel: by digests, or the facts of some buckets."""

    buckets: Buckets = []


class ChosenMemories(msgspec.Struct, frozen=True, kw_only=True):
    """The first of the memories that were asked for, as many as fit. `done` counts them, with those that do not exist
    any more."""

    memories: list[CarriedMemory]
    done: int


@syncing.read("memory_chosen", deadline_s=60)
class ChooseMemories(Params[ChosenMemories], frozen=True, kw_only=True):
    """Read memories by their ids."""

    ids: Annotated[list[CarriedId], Meta(min_length=1, max_length=2000)]


class JoinedMemories(msgspec.Struct, frozen=True, kw_only=True):
    """How many were added, changed and forgotten, in how many two texts are kept side by side, and how many were `left`
    because they were forgotten here, have expired, or belong to one MCP session."""

    added: int
    changed: int
    deleted: int
    conflicts: int
    left: int


@syncing.write("memory_join", idempotent=True, deadline_s=120)
class JoinMemories(Params[JoinedMemories], frozen=True, kw_only=True):
    """Join memories of another kernel, and forget what was forgotten there. Repeating it changes nothing."""

    memories: Annotated[list[CarriedMemory], Meta(max_length=1000)] = []
    forgotten: list[ForgottenMemory] = []

    def check(self) -> None:
        _require_carried(self.memories)
        for one in self.forgotten:
            if one.merged_into >= one.id:
                said = f"{one.id} was merged into {one.merged_into}; of two ids, the lesser one is kept"
                raise InvalidParams(said, field="forgotten")


def _require_carried(memories: Sequence[CarriedMemory]) -> None:
    for one in memories:
        _require_scope(one.scope)
        if not re.fullmatch("[0-9a-f]{12}", one.id):
            raise InvalidParams(f"{one.id!r} is not a memory id: 12 of the digits 0-9 and a-f", field="memories")
        if (one.superseded_by is None) != (one.superseded_ns is None):
            raise InvalidParams(f"{one.id}: give `superseded_by` with `superseded_ns`", field="memories")


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
