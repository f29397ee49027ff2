"""What a server offers: all pages of its lists, for the registry."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Raw

from linckia.proto.mounts import Definitions
from linckia.services.mounts import messages
from linckia.services.mounts.handshake import Greeting
from linckia.services.mounts.messages import JsonObject, Message
from linckia.services.mounts.peer import BadReply, NoReply

PAGES_MOST = 1000
PAGE_S = 60.0

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
    """Return what a server offers. A list that it fails to return is empty. Raises Lost."""
    greeting = server.greeting
    lists = {
        field: await _whole(server, method, member) for can, method, member, field in _LISTS if can in greeting.can
    }
    return Definitions(
        protocol_version=greeting.version,
        server_info=_object(greeting.info),
        capabilities=_object(greeting.capabilities),
        instructions=greeting.instructions,
        **lists,
    )


def _object(raw: Raw) -> dict[str, Any]:
    found = messages.value(raw)
    return found if isinstance(found, dict) else {}


async def _whole(server: Server, method: str, member: str) -> list[Raw]:
    found: list[Raw] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(PAGES_MOST):
        try:
            reply = await server.ask(method, {} if cursor is None else {"cursor": cursor}, limit_s=PAGE_S)
        except NoReply:
            _log.warning("%s: no answer within %g s", method, PAGE_S)
            return found
        except BadReply as error:
            _log.warning("%s: the reply cannot be read: %s", method, error)
            return found
        said = messages.members(reply.result)
        if reply.result is UNSET:
            code, text = messages.error_of(reply)
            # Servers with resources often lack templates.
            if code != messages.METHOD_NOT_FOUND:
                _log.warning("%s: error %d: %s", method, code, text)
            return found
        try:
            page = msgspec.json.decode(said.get(member, b"[]"), type=list[Raw])
        except msgspec.DecodeError as error:
            _log.warning("%s: %s", method, error)
            return found
        found += [Raw(messages.one_line(bytes(each))) for each in page]
        following = messages.value(said.get("nextCursor", UNSET))
        if not isinstance(following, str) or following in seen:
            return found
        cursor = following
        seen.add(cursor)
    return found
