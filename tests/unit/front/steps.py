"""Operations made for the tests of the composite tools: a small store of documents, and the service that handles it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
import trio
from msgspec import Meta

from proto.errors import InvalidParams, MaybeExecuted, OperationError
from proto.mcp import Content, Image, Text
from proto.operation import Access, Operation, Params, Role, operation
from proto.ops import Table
from proto.outcomes import PerItem
from services.front.operations import steps as front
from services.runtime.handlers import Context, Environment, Handlers, handles
from tests.unit.front import operations

_step = partial(
    operation, service="test", role=Role.STEP, surfaces=("documents",), access=Access.READ, idempotent=True,
    deadline_s=30,
)  # fmt: skip
_change = partial(_step, access=Access.WRITE, idempotent=False)
_tool = partial(operation, service="test", access=Access.READ, idempotent=True, deadline_s=30)


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    results: list[dict[str, Any]]


@_step("documents_search", step="search")
class Search(Params[Hits], frozen=True, kw_only=True):
    """Search documents."""

    query: Annotated[str, Meta(min_length=1, description="What to look for")]
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


@_step("documents_get", step="get")
class Get(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Return the given value."""

    hash: str
    include_content: bool = False
    outputPath: str | None = "default"
    depth: int = 2
    options: dict[str, Any] = msgspec.field(default_factory=dict)


@_step("documents_grep", step="grep")
class Grep(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Fail as requested."""

    pattern: str
    maybe: bool = False


@_change("documents_add", step="add")
class Add(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Add a document."""

    path: str
    mimeType: str = ""
    op: str = ""


@_change("documents_delete", step="delete", access=Access.DESTRUCTIVE)
class Delete(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Fail where there is nothing."""

    name: str
    also: str = ""

    def check(self) -> None:
        if self.also == self.name:
            raise InvalidParams("parameters `name` and `also`: twice the same", field="also")


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    per_item: ClassVar = PerItem(done=("moved",), failed="kept", details="reasons")

    moved: int
    kept: list[str]
    reasons: list[str] = []


@_change("documents_move", step="move")
class Move(Params[Moved], frozen=True, kw_only=True):
    """Moves all documents whose names do not begin with a dot."""

    names: list[str]


@_change("documents_session_start", step="session.start")
class SessionStart(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Start a session."""

    label: str | None = None


@_tool("chats_search")
class OtherSearch(Params[str], frozen=True, kw_only=True):
    """A tool with a former name that is also the name of a step."""


@_tool("picture")
class Picture(Params[Content], frozen=True, kw_only=True):
    """An image."""

    broken: bool = False


@_tool("words")
class Words(Params[list[str]], frozen=True, kw_only=True):
    """A list, and bytes within."""

    size: int = 0


@_tool("t_long")
class Long(Params[str], frozen=True, kw_only=True):
    """Tells how far it is, and waits."""

    wait: bool = False


OPERATIONS: list[Operation[Any]] = [
    value.__dict__["__operation__"]
    for space in (globals(), vars(front))
    for value in list(space.values())
    if isinstance(value, type) and "__operation__" in value.__dict__
]

TABLE = Table([*OPERATIONS, *operations.OPERATIONS])


class _Answers:
    """The handlers of the steps here."""

    def __init__(self) -> None:
        self._added: list[str] = []

    @handles(Search)
    async def search(self, params: Search, ctx: Context) -> Hits:
        hits = [{"hash": f"{params.query}-{n}", "score": 1 / (n + 1), "raw": b"\x00"} for n in range(params.limit)]
        return Hits(total=len(hits), results=hits)

    @handles(Move)
    async def move(self, params: Move, ctx: Context) -> Moved:
        kept = [name for name in params.names if name.startswith(".")]
        return Moved(moved=len(params.names) - len(kept), kept=kept, reasons=["it begins with a dot"] * bool(kept))

    @handles(Get)
    async def get(self, params: Get, ctx: Context) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.to_builtins(params)
        return answer

    @handles(Grep)
    async def grep(self, params: Grep, ctx: Context) -> dict[str, Any]:
        if params.maybe:
            raise MaybeExecuted("service test died with the call in flight")
        raise OperationError(f"no match for {params.pattern}")

    @handles(Add)
    async def add(self, params: Add, ctx: Context) -> dict[str, Any]:
        self._added.append(params.path)
        if params.op:
            return {"op": params.op, "path": params.path}
        return {"hash": f"sha256-{params.path}", "mime": params.mimeType, "added": len(self._added)}

    @handles(Delete)
    async def delete(self, params: Delete, ctx: Context) -> dict[str, Any]:
        if params.name == "said":
            return {"success": False, "reason": "said so itself"}
        raise OperationError(f"nothing is called {params.name}")

    @handles(SessionStart)
    async def start(self, params: SessionStart, ctx: Context) -> dict[str, Any]:
        return {"session_id": "s1", "label": params.label}

    @handles(OtherSearch)
    async def other(self, params: OtherSearch, ctx: Context) -> str:
        return "the other"

    @handles(Picture)
    async def picture(self, params: Picture, ctx: Context) -> Content:
        if params.broken:
            return Content(content=[Text(text="no picture")], is_error=True)
        return Content(content=[Image(data=b"\x89PNG", mime_type="image/png")])

    @handles(Words)
    async def words(self, params: Words, ctx: Context) -> list[str]:
        return ["one", "two"] if not params.size else ["x" * params.size]

    @handles(Long)
    async def long(self, params: Long, ctx: Context) -> str:
        ctx.progress(1, 4, "quarter")
        ctx.log("info", "a line")
        if params.wait:
            await trio.sleep_forever()
        return "done"


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    handlers = Handlers(_Answers())
    async with operations.open_service(env) as others:
        handlers.by_name.update(others.by_name)
        yield handlers
