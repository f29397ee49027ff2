"""Scopes: who a memory belongs to, and what each client may find.

`user` and `project:NAME` are shared by all clients. `session` is the MCP session in which something is said, and no
other session finds it. If that session has a document session open, the label of the latter is used instead
(`session:LABEL`), so that later sessions can ask for it.
"""

from __future__ import annotations

from proto.errors import InvalidParams, LinckiaError, UnknownOperation
from proto.ops.documents.sessions import SessionBound
from proto.ops.memory import found_by
from proto.ops.retrieve import Filter
from services.memory.memory_db import Place
from services.memory.operations import PROJECT, SESSION, USER
from services.runtime.handlers import Context

LABEL_WAIT_S = 5.0


async def label(ctx: Context, degraded: list[str]) -> str:
    """Return the label of the document session that this client started last, or an empty string."""
    if not ctx.session:
        return ""
    try:
        bound = await ctx.call(SessionBound(), timeout_s=LABEL_WAIT_S)
    except UnknownOperation:
        return ""
    except LinckiaError as error:
        degraded.append(f"the label of this session is unknown: {error}")
        return ""
    return "" if bound is None else bound.label


def place_of(scope: str, client: str, label: str) -> Place:
    """Return where a client of this MCP session stores its statements. Raises InvalidParams if it has no session."""
    if scope == SESSION and label:
        return Place(f"{SESSION}:{label}"[:128], client)
    if scope == SESSION and not client:
        raise InvalidParams(
            f"parameter `scope`: this client is in no session; name one as {SESSION}:LABEL, or give another scope",
            field="scope",
        )
    return Place(scope, client if scope.startswith(SESSION) else "")


def conditions(scope: str | None, client: str, label: str) -> list[Filter]:
    """Return the search filters for a scope; None means everything that this client may find."""
    own = [Place(SESSION, client).key] if client else []
    if scope is None:
        return found_by(client, None)
    if scope == SESSION:
        place = place_of(scope, client, label)
        return [Filter(field="in", any_of=[place.key, *own])]
    return [Filter(field="in", any_of=[scope, USER, *own] if scope.startswith(PROJECT) else [scope])]


def visible(scope: str | None, client: str, label: str) -> tuple[str, tuple[str, ...]]:
    """Return an SQL condition and its arguments for exactly this scope."""
    if scope is None:
        return "owner IN ('', ?)", (client,)
    if scope == SESSION:
        return "(place=? OR (owner=? AND owner<>''))", (place_of(scope, client, label).key, client)
    if scope.startswith(SESSION):
        said = "number IN (SELECT memory FROM said WHERE session=?)"
        return f"(place=? OR {said})", (scope, scope.partition(":")[2])
    return "place=?", (scope,)


def within(scope: str | None, client: str, label: str) -> tuple[str, tuple[str, ...]]:
    """Return an SQL condition and its arguments for what a search of this scope finds."""
    if scope is not None and scope.startswith(PROJECT):
        return "place IN (?, ?, ?)", (scope, USER, Place(SESSION, client).key)
    return visible(scope, client, label)
