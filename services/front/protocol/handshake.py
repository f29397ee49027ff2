"""The first messages of a client, answered without the SDK: of a local one while it still loads.

A client that starts Linckia waits for the answer of `initialize` (or, in 2026-07-28, `server/discover`), and the SDK
takes a second to import.  What these answers say follows from the surface alone, in the SDK's own words.  Only what is
beyond doubt is taken; any other message waits for the SDK, which is then told what was answered here (`taken`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import msgspec
from msgspec import UNSET, Raw, UnsetType

from linckia.proto.json_types import JsonObject
from linckia.proto.surfaces.surface import Surface
from linckia.services.front.protocol.messages import RequestId, result_message

NAME = "linckia"
TITLE = "Linckia"

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that open with `initialize`, oldest first; another one asked for is answered with the latest."""

MODERN_VERSIONS = ("2026-07-28",)
"""Revisions whose every request carries an envelope, and that have `server/discover`."""

LIST_FRESH_MS = 60_000
"""What changes with a new version only may be kept so long."""

_MAX_BYTES = 64 * 1024
_MAX_BRACKETS = 100
"""Beyond either it is no greeting, and the SDK's own limits, which are not ours to know, may matter."""


# Forms that are beyond doubt.  Other members of these objects are not looked at; what is `None` only the SDK judges.
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
    version: str = msgspec.field(name="io.modelcontextprotocol/protocolVersion")
    capabilities: _Capabilities = msgspec.field(name="io.modelcontextprotocol/clientCapabilities")
    client: _ClientInfo | UnsetType = msgspec.field(default=UNSET, name="io.modelcontextprotocol/clientInfo")


class _Discover(msgspec.Struct, forbid_unknown_fields=True):
    meta: _Meta = msgspec.field(name="_meta")


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """`params` with no members."""


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    jsonrpc: str
    method: str
    id: RequestId | None = None
    params: Raw = Raw(b"{}")


class _Identified(msgspec.Struct):
    id: RequestId | None = None


def offered(surface: Surface) -> JsonObject:
    """What a surface offers of the protocol: a server's capabilities in wire form, the same in all revisions."""
    # Those that have everything speak the whole protocol, also while no operation makes a prompt.
    whole = surface.is_whole
    capabilities: JsonObject = {"logging": {}, "tools": {"listChanged": True}}
    if whole or surface.listed_prompts or surface.listed_templates:
        capabilities["completions"] = {}
    if whole or surface.listed_prompts:
        capabilities["prompts"] = {"listChanged": True}
    if whole or surface.listed_resources or surface.listed_templates:
        capabilities["resources"] = {"subscribe": True, "listChanged": True}
    return capabilities


def lists_of(capabilities: JsonObject) -> frozenset[str]:
    """The lists that a client can ask for."""
    return frozenset(name for name, said in capabilities.items() if "listChanged" in said)


class Greeting(msgspec.Struct, frozen=True):
    """A message that is answered here; `answer` is empty where it is a notification, `params` are as they came."""

    method: str
    id: RequestId | None
    answer: bytes
    # As the client sent them: each method reads its own.
    params: JsonObject = {}


class Greeter:
    """Answers the greetings of the clients of one surface."""

    def __init__(self, surface: Surface, version: str) -> None:
        self.surface = surface
        self._info = {"name": NAME, "title": TITLE, "version": version}

    def answer(self, data: bytes, *, greeted: bool, modern: bool = False, listing: bool = False) -> Greeting | None:
        """The answer to a message; None where the SDK must see it first.

        `greeted`, the client has opened its session, `modern` without a handshake; `listing`, it may be told all the
        tools here, as a local client once it has said that it is ready.
        """
        if len(data) > _MAX_BYTES or data.count(b"{") + data.count(b"[") > _MAX_BRACKETS:
            return None
        try:
            message = msgspec.json.decode(data, type=_Message)
            # As a whole and then by type: what a type passes over would not be looked at otherwise.
            params = msgspec.json.decode(message.params)
            result = (
                None if message.jsonrpc != "2.0" else self._result(message.method, params, greeted, modern, listing)
            )
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if result is None:
            return None
        if message.id is not None and message.method != "notifications/initialized":
            return Greeting(message.method, message.id, result_message(message.id, result), params)
        is_notification = message.method == "notifications/initialized" and message.id is None
        return Greeting(message.method, None, b"") if is_notification else None

    def _result(self, method: str, params: object, greeted: bool, modern: bool, listing: bool) -> JsonObject | None:
        match method:
            case "initialize" if not greeted:
                return {
                    "protocolVersion": agreed(msgspec.convert(params, _Initialize).protocol_version),
                    "capabilities": offered(self.surface),
                    "serverInfo": self._info,
                    "instructions": self.surface.instructions,
                }
            case "ping" | "notifications/initialized" if greeted and not modern:
                msgspec.convert(params, _Nothing)
                return {}
            case "tools/list" if listing:
                msgspec.convert(params, _Nothing)
                return {"tools": self.surface.listed_tools}
            case "server/discover" if not greeted:
                if msgspec.convert(params, _Discover).meta.version not in MODERN_VERSIONS:
                    return None
                return {
                    "resultType": "complete",
                    "supportedVersions": list(MODERN_VERSIONS),
                    "capabilities": offered(self.surface),
                    "instructions": self.surface.instructions,
                    "ttlMs": LIST_FRESH_MS,
                    "cacheScope": "public",
                    "_meta": {"io.modelcontextprotocol/serverInfo": self._info},
                }
        return None


def agreed(version: object) -> str:
    """The revision that is spoken with a client that asks for `version`."""
    return version if isinstance(version, str) and version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]


class Handshake:
    """The first messages of one local client.

    `taken` are the messages that the SDK has not seen yet, in order; `answered` are the ids of those requests
    among them that have their answer.
    """

    def __init__(self, surface: Surface, version: str) -> None:
        self._greeter = Greeter(surface, version)
        self._greeted = False
        self._modern = False
        self._ready = False
        self.taken: list[bytes] = []
        self.answered: list[RequestId] = []

    def _take(self, message: bytes, request_id: RequestId | None) -> None:
        self._greeted = True
        self.taken.append(message)
        if request_id is not None:
            self.answered.append(request_id)

    def resume(self, said: Sequence[bytes]) -> None:
        """Begin where another kernel's session ended: the SDK has to be told what was said, and the client nothing."""
        for message in said:
            self._take(message, msgspec.json.decode(message, type=_Identified).id)

    def news(self) -> list[str]:
        """Notifications for a client whose session goes on with another kernel, which may offer other things."""
        if not self._greeted or self._modern:
            return []
        return [f"notifications/{name}/list_changed" for name in sorted(lists_of(offered(self._greeter.surface)))]

    def answer(self, data: bytes) -> bytes | None:
        """The answer to a message, empty for a notification; None where the SDK must see it first."""
        greeting = self._greeter.answer(data, greeted=self._greeted, modern=self._modern, listing=self._ready)
        if greeting is None:
            return None
        # Those are of no consequence, so the SDK need not hear of them.
        if greeting.method not in ("ping", "tools/list"):
            self._ready = greeting.method == "notifications/initialized"
            self._modern = self._modern or greeting.method == "server/discover"
            self._take(data, greeting.id)
        return greeting.answer
