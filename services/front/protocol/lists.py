"""The lists of a surface: tools, resources, templates of resources, and prompts.

A client asks for them when it connects, so a request in the usual form is answered without the SDK. Its handlers return
the same lists.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from proto.json_types import JsonObject
from proto.mcp import SERVER_INFO
from proto.origin import Origin
from services.front import skill_files
from services.front.mounted.surface import MountSurface
from services.front.protocol.handshake import LIST_FRESH_MS, agree, is_usual_envelope, offered
from services.front.protocol.messages import Answer, result_message
from services.front.protocol.served import Served
from services.front.protocol.session import Request

MEMBERS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""Methods that list what a surface offers, with the member that holds the list."""

FRESH_MS: Final = dict.fromkeys(MEMBERS, LIST_FRESH_MS) | {"prompts/list": 1000}
"""How long clients may cache a list: a minute if it changes only with a new version, and a second for the list of
prompts, which the user's files may change."""

_MAX_BYTES = 64 * 1024
"""Longest parameters that are examined here."""


class _Params(msgspec.Struct, forbid_unknown_fields=True):
    meta: JsonObject | UnsetType = msgspec.field(default=UNSET, name="_meta")


async def result(served: Served, method: str, origin: Origin) -> JsonObject:
    """Return the whole list, complete with what mounted servers offer."""
    surface, mounted = served.surface, served.mounted
    await mounted.complete()
    whole = surface.is_whole
    match method:
        case "tools/list":
            items = surface.listed_tools
        case "resources/list":
            skills = [skill_files.resource_of(each.files[0]) for each in skill_files.skills().values()] if whole else []
            items = [*surface.listed_resources, *skills, *(mounted.names.resources if whole else ())]
        case "resources/templates/list":
            items = [*surface.listed_templates, *(mounted.names.templates if whole else ())]
        case _:
            items = await _prompts(served, origin)
    return {MEMBERS[method]: items}


async def _prompts(served: Served, origin: Origin) -> list[JsonObject]:
    files, built_in = await served.prompts.current(origin.grant), served.surface.prompts
    hidden = {name for name, prompt in files.items() if prompt.folder.is_own}
    own = [prompt.listed() for prompt in files.values() if prompt.folder.is_own or prompt.name not in built_in]
    listed = [prompt for prompt in served.surface.listed_prompts if prompt["name"] not in hidden]
    return [*listed, *own, *(served.mounted.names.prompts if served.surface.is_whole else ())]


async def answer(served: Served, request: Request) -> Answer | None:
    """Return the answer to a request for a list; None if the SDK must answer it."""
    session, surface = request.session, served.surface
    if request.method not in MEMBERS or isinstance(surface, MountSurface) or not session.admits_requests:
        return None
    # A surface without any resources or prompts does not have the method.
    if request.method.split("/")[0] not in offered(surface) or not _is_usual(request):
        return None
    listed = await result(served, request.method, request.origin)
    if session.modern:
        listed |= {"resultType": "complete", "ttlMs": FRESH_MS[request.method], "cacheScope": "public"}
        listed["_meta"] = {SERVER_INFO: served.info}
    return Answer(result_message(request.id, listed))


def _is_usual(request: Request) -> bool:
    """Whether the request has the usual form in the era of its session."""
    envelope, modern = request.envelope, bool(request.session.modern)
    if envelope.jsonrpc != "2.0" or not (envelope.result is UNSET and envelope.error is UNSET):
        return False
    if isinstance(envelope.params, UnsetType):
        return not modern
    if len(bytes(envelope.params)) > _MAX_BYTES:
        return False
    try:
        # Decode the whole first, because a typed decoder does not check unknown members.
        given: object = msgspec.json.decode(envelope.params)
        meta = msgspec.convert(given, _Params).meta
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if not modern:
        # With a handshake, a request does not carry an envelope.
        return meta is UNSET or not meta
    headers_agree = request.headers is None or agree(request.headers, request.method)
    return not isinstance(meta, UnsetType) and is_usual_envelope(meta) and headers_agree
