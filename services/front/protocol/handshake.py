"""Answers the first requests of a client without the SDK, which takes a second to import.

A client that starts Linckia waits for the answer to `initialize` (or, in 2026-07-28, `server/discover`).  These answers
depend on the surface only and are identical to the SDK's.  Only requests in the usual form are answered here; all
others wait for the SDK.  `services.front.protocol.lists` does the same for lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict

import msgspec
from msgspec import UNSET, Raw, UnsetType

from proto.json_types import JsonObject
from proto.mcp import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    HANDSHAKE_VERSIONS,
    LOG_LEVEL,
    MODERN_VERSIONS,
    SERVER_INFO,
    TASKS_EXTENSION,
    VERSION,
    RequestId,
)
from services.front import skill_files
from services.front.protocol.client_requests import LEVELS
from services.front.protocol.messages import result_message
from services.front.protocol.session import McpSession
from services.front.surfaces.surface import Surface

NAME = "linckia"
TITLE = "Linckia"

LIST_FRESH_MS = 60_000
"""How long clients may cache lists that change only with a new version of Linckia."""

_MAX_BYTES = 64 * 1024
_MAX_BRACKETS = 100
"""Most brackets in a message; a longer or deeper one is left to the SDK, whose own limits may apply."""


# The usual forms.  Unknown members of these objects are ignored; messages with members typed `None` here are left to
# the SDK.
class _Object(TypedDict):
    pass


class _Roots(TypedDict, total=False):
    listChanged: bool


class _Sampling(TypedDict, total=False):
    context: _Object
    tools: _Object


class _Elicitation(TypedDict, total=False):
    form: _Object
    url: _Object


class _Capabilities(TypedDict, total=False):
    roots: _Roots
    sampling: _Sampling
    elicitation: _Elicitation
    experimental: dict[str, _Object]
    extensions: dict[str, _Object]
    tasks: None


class _ClientInfo(msgspec.Struct, rename="camel"):
    name: str
    version: str
    title: str = ""
    description: str = ""
    website_url: str = ""
    icons: None = None


class _Initialize(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    protocol_version: str
    capabilities: _Capabilities
    client_info: _ClientInfo


class _Meta(msgspec.Struct, forbid_unknown_fields=True):
    version: str = msgspec.field(name=VERSION)
    capabilities: _Capabilities = msgspec.field(name=CLIENT_CAPABILITIES)
    client: _ClientInfo | UnsetType = msgspec.field(default=UNSET, name=CLIENT_INFO)


class _Discover(msgspec.Struct, forbid_unknown_fields=True):
    meta: _Meta = msgspec.field(name="_meta")


_Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


class _RequestMeta(msgspec.Struct):
    """`_meta` of a request of 2026-07-28; other members may be there."""

    version: Literal["2026-07-28"] = msgspec.field(name=VERSION)
    capabilities: _Capabilities = msgspec.field(name=CLIENT_CAPABILITIES)
    client: _ClientInfo | UnsetType = msgspec.field(default=UNSET, name=CLIENT_INFO)
    level: _Level | UnsetType = msgspec.field(default=UNSET, name=LOG_LEVEL)
    token: RequestId | UnsetType = msgspec.field(default=UNSET, name="progressToken")


def is_usual_envelope(meta: Mapping[str, object]) -> bool:
    """Whether `_meta` carries an envelope of 2026-07-28 in the usual form, which the SDK would accept."""
    try:
        msgspec.convert(meta, _RequestMeta)
    except msgspec.ValidationError:
        return False
    return True


def agree(headers: Mapping[str, str], method: str, name: str | None = None) -> bool:
    """Whether the HTTP headers match a request in the usual form, as 2026-07-28 requires.

    Args:
        name: the name in the request's parameters, for methods that have one.
    """
    return (
        headers.get("mcp-protocol-version") in MODERN_VERSIONS
        and headers.get("mcp-method") == method
        and headers.get("mcp-name") == name
    )


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """`params` with no members."""


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: str
    method: str
    id: RequestId
    params: Raw = Raw(b"{}")


"""Member of `_meta` of each result of 2026-07-28."""


def server_info(version: str) -> JsonObject:
    """Return how Linckia presents itself."""
    return {"name": NAME, "title": TITLE, "version": version}


def offered(surface: Surface) -> JsonObject:
    """Return the server's capabilities on a surface, in wire form; the same in all revisions."""
    if surface.capabilities is not None:
        return surface.capabilities
    # Surfaces with all operations declare all capabilities, even if no operation is a prompt.
    whole = surface.is_whole
    capabilities: JsonObject = {"logging": {}, "tools": {"listChanged": True}}
    if whole or surface.listed_prompts or surface.listed_templates:
        capabilities["completions"] = {}
    if whole or surface.listed_prompts:
        capabilities["prompts"] = {"listChanged": True}
    if whole or surface.listed_resources or surface.listed_templates:
        capabilities["resources"] = {"subscribe": True, "listChanged": True}
    if whole:
        capabilities["extensions"] = {skill_files.EXTENSION: skill_files.SETTINGS}
    if surface.has_tasks:
        capabilities.setdefault("extensions", {})[TASKS_EXTENSION] = {}
    return capabilities


def lists_of(capabilities: JsonObject) -> frozenset[str]:
    """Return the names of the lists that can change."""
    return frozenset(name for name, options in capabilities.items() if "listChanged" in options)


GREETINGS = frozenset({"initialize", "ping", "server/discover"})
"""Methods of the requests that a `Greeter` may answer."""


class Greeter:
    """Answers the first requests of one surface's clients."""

    def __init__(self, surface: Surface, version: str) -> None:
        self._surface = surface
        self._own_info = server_info(version)

    @property
    def _info(self) -> JsonObject:
        return self._surface.server_info or self._own_info

    @property
    def _instructions(self) -> JsonObject:
        """The member with the instructions; some mounted servers have none."""
        return {"instructions": self._surface.instructions} if self._surface.instructions else {}

    def answer(self, data: bytes, session: McpSession) -> bytes | None:
        """Answer a request and update the session; return None if the SDK must answer it."""
        if len(data) > _MAX_BYTES or data.count(b"{") + data.count(b"[") > _MAX_BRACKETS:
            return None
        try:
            message = msgspec.json.decode(data, type=_Message)
            # Decode the whole first, because a typed decoder does not check unknown members.
            params = msgspec.json.decode(message.params)
            result = None if message.jsonrpc != "2.0" else self._result(message.method, params, session)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return None if result is None else result_message(message.id, result)

    def _result(self, method: str, params: object, session: McpSession) -> JsonObject | None:
        match method:
            case "initialize" if session.modern is None:
                version = negotiated_version(msgspec.convert(params, _Initialize).protocol_version)
                session.open(msgspec.convert(params, JsonObject), version)
                return {
                    "protocolVersion": version,
                    "capabilities": offered(self._surface),
                    "serverInfo": self._info,
                    **self._instructions,
                }
            case "ping" if session.modern is False:
                msgspec.convert(params, _Nothing)
                return {}
            case "server/discover" if session.modern is None:
                if msgspec.convert(params, _Discover).meta.version not in MODERN_VERSIONS:
                    return None
                session.modern = True
                return {
                    "resultType": "complete",
                    "supportedVersions": list(MODERN_VERSIONS),
                    "capabilities": offered(self._surface),
                    **self._instructions,
                    "ttlMs": LIST_FRESH_MS,
                    "cacheScope": "public",
                    "_meta": {SERVER_INFO: self._info},
                }
        return None


def negotiated_version(version: object) -> str:
    """Return the revision to use with a client that asks for `version`."""
    return version if isinstance(version, str) and version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]


class _SessionMessage(msgspec.Struct):
    method: str
    params: JsonObject = {}


def resume(session: McpSession, messages: Iterable[bytes]) -> None:
    """Restore a session that another front served.

    Args:
        messages: the client's messages that set the session's state, in order; all were answered.
    """
    for data in messages:
        # Skip malformed ones: the client can write to the memory that holds them.
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            _resume(session, msgspec.json.decode(data, type=_SessionMessage))


def _resume(session: McpSession, message: _SessionMessage) -> None:
    params = message.params
    match message.method:
        case "initialize":
            session.open(params, negotiated_version(params.get("protocolVersion")))
        case "notifications/initialized":
            session.initialized = True
        case "logging/setLevel" if params.get("level") in LEVELS:
            session.state.level = params["level"]
        case "resources/subscribe" if isinstance(params.get("uri"), str):
            session.state.subscribe(params["uri"])
