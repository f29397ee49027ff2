"""What a server offers: all pages of its lists, for the registry."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from proto import mcp
from proto.mounts import Definitions
from services.mounts.link import messages
from services.mounts.link.handshake import Greeting
from services.mounts.link.messages import JsonObject, Message
from services.mounts.link.peer import BadReply, NoReply
from services.mounts.offers import shapes
from services.mounts.offers.canonical import MAX_BYTES

PAGES_MOST = 1000
PAGE_S = 60.0
LIST_S = 300.0
"""How long all pages of a list may take."""

_LISTS = (
    ("tools", "tools/list", "tools", "tools"),
    ("resources", "resources/list", "resources", "resources"),
    ("resources", "resources/templates/list", "resourceTemplates", "templates"),
    ("prompts", "prompts/list", "prompts", "prompts"),
)
"""Capability, method, member of the result, member of `Definitions`."""

_log = logging.getLogger("linckia.mount")


class Server(Protocol):
    """What this needs of an instance."""

    greeting: Greeting

    async def ask(self, method: str, params: JsonObject, *, limit_s: float) -> Message: ...


async def definitions_of(server: Server) -> Definitions:
    """Return what a server offers. A list that it fails to return is empty, or ends there. Raises Lost."""
    greeting = server.greeting
    problems: list[str] = []
    lists = {
        field: await _whole(server, method, member, problems)
        for can, method, member, field in _LISTS
        # Some servers with tools declare nothing at all.
        if can in greeting.can or (can == "tools" and not greeting.can)
    }
    return Definitions(
        protocol_version=greeting.version,
        server_info=_object(greeting.info),
        capabilities=_object(greeting.capabilities),
        instructions=greeting.instructions,
        problems=problems,
        **lists,
    )


def _object(raw: Raw) -> dict[str, Any]:
    found = messages.value(raw)
    return found if isinstance(found, dict) else {}


async def _whole(server: Server, method: str, member: str, problems: list[str]) -> list[Raw]:
    """Return all pages of a list, up to the first that is missing or wrong; what was wrong is added to `problems`."""
    found: list[Raw] = []

    def problem(said: str) -> list[Raw]:
        problems.append(f"{method}: {said}")
        _log.warning("%s: %s", method, said)
        return found

    with trio.move_on_after(LIST_S):
        cursor: str | None = None
        seen: set[str] = set()
        size = 0
        for _ in range(PAGES_MOST):
            try:
                reply = await server.ask(method, {} if cursor is None else {"cursor": cursor}, limit_s=PAGE_S)
            except NoReply:
                return problem(f"no answer within {PAGE_S:g} s")
            except BadReply as error:
                return problem(f"the reply cannot be read: {error}")
            if isinstance(reply.result, UnsetType):
                code, text = messages.error_of(reply)
                # Servers with resources often lack templates.
                return found if code == mcp.METHOD_NOT_FOUND else problem(f"error {code}: {text}")
            try:
                shapes.check(method, reply.result, modern=server.greeting.modern)
            except shapes.Disallowed as error:
                return problem(f"the server answered in a way that MCP does not allow: {error}")
            said = messages.members(reply.result)
            # A result of another type than `complete` has no list.
            page = msgspec.json.decode(said.get(member, b"[]"), type=list[Raw])
            size += sum(len(memoryview(each)) for each in page)
            if size > MAX_BYTES:
                return problem(f"more than {MAX_BYTES >> 20} MiB; the rest is left out")
            found += [Raw(messages.one_line(bytes(each))) for each in page]
            following = messages.value(said.get("nextCursor", UNSET))
            if not isinstance(following, str) or not following:
                # Some servers write an empty cursor on the last page.
                return found
            if following in seen:
                return problem("the server gave a cursor twice, so this list has no end")
            cursor = following
            seen.add(cursor)
        return problem(f"more than {PAGES_MOST} pages; the rest is left out")
    return problem(f"not complete within {LIST_S:g} s; the rest is left out")
