"""The beginning of a connection: which revision of MCP the server speaks, and what it says about itself.

Servers of 2026-07-28 or later answer `server/discover`, and every request carries what the handshake said before.
Others are asked to `initialize`. A server that leaves the first question unanswered (it may still be starting, or drop
unknown requests) gets the second one as well, and what it answers decides.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from typing import Final

import msgspec
import trio
from msgspec import UNSET, Raw

from proto import mcp
from proto.mcp import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    HANDSHAKE_VERSIONS,
    MODERN_VERSIONS,
    SERVER_INFO,
    VERSION,
)
from services.mounts.link import messages
from services.mounts.link.messages import JsonObject, Message
from services.mounts.link.peer import BadReply, Lost, NoReply, Peer
from services.mounts.offers.hidden import without

HINT_S: Final = 5.0
"""Time for an answer to `server/discover`, after which the server is also asked to `initialize`."""

CAPABILITIES: Final[JsonObject] = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
}

_PASSED: Final = (*CAPABILITIES, "extensions", "experimental")


_TITLE_CHARS: Final = 200


class Refused(Exception):
    """The server and this client cannot speak with each other; the message is the cause.

    Args:
        reply: the server's.
    """

    def __init__(self, cause: str, reply: Message | None = None) -> None:
        super().__init__(cause)
        self.reply = reply


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says about itself."""

    version: str
    modern: bool
    info: Raw = Raw(b"{}")
    capabilities: Raw = Raw(b"{}")
    instructions: str = ""

    @property
    def can(self) -> JsonObject:
        """The capabilities, decoded."""
        found = messages.value(self.capabilities)
        return found if isinstance(found, dict) else {}

    @property
    def title(self) -> str:
        """The server's name and version, for `status`."""
        found = messages.value(self.info)
        named = found if isinstance(found, dict) else {}
        return without(f"{named.get('name', '')} {named.get('version', '')}".strip())[:_TITLE_CHARS]

    def meta(self) -> JsonObject:
        """The members of `_meta` that each request must have."""
        return _meta(self.version) if self.modern else {}


def client_info() -> JsonObject:
    """What this client says about itself."""
    try:
        version = importlib.metadata.version("linckia")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return {"name": "linckia", "version": version}


def _meta(version: str) -> JsonObject:
    return {
        VERSION: version,
        CLIENT_INFO: client_info(),
        CLIENT_CAPABILITIES: CAPABILITIES,
    }


def passed_capabilities(given: object) -> JsonObject:
    """Return the capabilities of a client that a server may rely on."""
    found = given if isinstance(given, dict) else {}
    return {name: found[name] for name in _PASSED if isinstance(found.get(name), dict)}


async def greet(peer: Peer, *, limit_s: float, legacy: bool = False) -> Greeting:
    """Negotiate the revision.

    Args:
        limit_s: for everything together.
        legacy: whether the server is known to need a handshake, so that the first question is left out.

    Raises:
        Refused: the server speaks no known revision, or refuses.
        NoReply, Lost: as of `Peer.request`.
    """
    with trio.move_on_after(limit_s):
        if legacy:
            with contextlib.suppress(Refused):
                return await _initialize(peer)
        return await _negotiate(peer)
    raise NoReply


async def _negotiate(peer: Peer) -> Greeting:
    found: Greeting | Message | None = None
    asked = trio.Event()

    async def ask(nursery: trio.Nursery) -> None:
        nonlocal found
        with contextlib.suppress(Lost):
            found = await _discover(peer, MODERN_VERSIONS[-1])
        asked.set()
        if isinstance(found, Greeting):
            nursery.cancel_scope.cancel()

    greeting: Greeting | None = None
    refusal: Refused | Lost | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, nursery)
        with trio.move_on_after(HINT_S):
            await asked.wait()
        try:
            greeting = await _initialize(peer)
        except (Refused, Lost) as error:
            # Raised below: a nursery would wrap it.
            refusal = error
        nursery.cancel_scope.cancel()
    if isinstance(found, Greeting):
        # A server that was slow to start may also have refused to initialize.
        return found
    if greeting is not None:
        return greeting
    if isinstance(refusal, Lost):
        raise refusal
    # It may have taken the first question as the beginning, and answered it too late.
    version = _named(refusal.reply if refusal else None) or _named(found)
    if version and isinstance(found := await _discover(peer, version), Greeting):
        return found
    raise refusal or Refused("the server speaks no revision of MCP that is known here")


async def _discover(peer: Peer, version: str) -> Greeting | Message:
    """Return the greeting of a modern server, or its refusal."""
    try:
        reply = await peer.request("server/discover", {"_meta": _meta(version)}, limit_s=float("inf"))
    except BadReply:
        return Message()
    said = messages.members(reply.result)
    versions = messages.value(said.get("supportedVersions", UNSET))
    common = [each for each in MODERN_VERSIONS if isinstance(versions, list) and each in versions]
    if not common:
        return reply
    meta = messages.members(said.get("_meta", UNSET))
    instructions = messages.value(said.get("instructions", UNSET))
    peer.link.negotiated(common[-1])
    return Greeting(
        version=common[-1],
        modern=True,
        info=said.get("serverInfo", meta.get(SERVER_INFO, Raw(b"{}"))),
        capabilities=said.get("capabilities", Raw(b"{}")),
        instructions=instructions if isinstance(instructions, str) else "",
    )


def _named(refusal: object) -> str:
    """Return a modern revision that the server named when it refused another; empty without one."""
    if not isinstance(refusal, Message) or messages.error_of(refusal)[0] != mcp.UNSUPPORTED_VERSION:
        return ""
    found = messages.value(refusal.error)
    data = found.get("data") if isinstance(found, dict) else None
    supported = data.get("supported") if isinstance(data, dict) else None
    return next((each for each in MODERN_VERSIONS if isinstance(supported, list) and each in supported), "")


async def _initialize(peer: Peer) -> Greeting:
    """Do the handshake. Raises Refused or Lost."""
    offer = {"protocolVersion": HANDSHAKE_VERSIONS[-1], "capabilities": CAPABILITIES, "clientInfo": client_info()}
    try:
        reply = await peer.request("initialize", offer, limit_s=float("inf"))
    except BadReply as error:
        raise Refused(f"the server's reply to `initialize` cannot be read: {error}") from None
    if reply.result is UNSET:
        raise Refused(f"the server refuses to initialize: {messages.error_of(reply)[1]}", reply)
    said = messages.members(reply.result)
    version = messages.value(said.get("protocolVersion", UNSET))
    if version not in HANDSHAKE_VERSIONS:
        raise Refused(f"the server speaks MCP {without(str(version))[:_TITLE_CHARS]}, which is not known here")
    peer.link.negotiated(version)
    await peer.post(messages.notification("notifications/initialized"))
    instructions = messages.value(said.get("instructions", UNSET))
    return Greeting(
        version=version,
        modern=False,
        info=said.get("serverInfo", Raw(b"{}")),
        capabilities=said.get("capabilities", Raw(b"{}")),
        instructions=instructions if isinstance(instructions, str) else "",
    )
