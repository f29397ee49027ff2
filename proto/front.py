"""What a front is told: its settings at its launch, and the descriptors that the kernel hands it.

A front speaks to clients, and holds nothing that may not be lost: listening sockets, the descriptors of local clients
and the memory of their sessions stay with the kernel, which hands them to the next front when one dies.  The messages
are msgpack on a SEQPACKET socket, one message a packet, with the descriptors beside it.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

SERVICE = "front"
"""The service that fronts are instances of, and that owns what they answer themselves."""

LIBRARIES = (
    "linckia.services.front.transport.sdk_session",
    "linckia.services.front.web.serving",
)
"""What a front needs for all but the greeting of a local client: with the protocol's SDK, and the HTTP server."""

OFF = "off"
"""As a token: HTTP asks for none."""

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 3000
MIN_TOKEN_CHARACTERS = 16
"""A shorter one could be guessed."""

TO_FRONTS = "front."
"""Prefix of the topics of events that fronts tell one another; of no other service they are passed on."""

MAX_PACKET_BYTES = 4096
MAX_DESCRIPTORS = 3

MAX_BETWEEN = 1024
"""Connections over HTTP that wait for the next front to come; others are closed."""


_Audience = Annotated[str, Meta(min_length=1, max_length=2048)]

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Algorithms (RFC 7518, RFC 8037) by which whoever can check a signature cannot make one."""


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached by it; `host` is a name, or an address without brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ScopeGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[http.oauth.scopes.NAME]`: what a client whose token has this scope may do, as `proto.grants.Grant` has it."""

    surfaces: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    read_only: bool = False


class OAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[http.oauth]`: the issuer whose access tokens (JSON Web Tokens) are taken beside Linckia's own."""

    issuer: Annotated[str, Meta(min_length=1, max_length=2048)]
    """Its identifier, an URL, exactly as it stands in its tokens (`iss`)."""
    audience: _Audience | Annotated[tuple[_Audience, ...], Meta(min_length=1, max_length=16)]
    """What its tokens for this server name (`aud`): one of these."""
    scopes: dict[str, ScopeGrant] = {}
    """By name; of several that a token has, the first here counts."""
    jwks_url: Annotated[str, Meta(max_length=2048)] | None = None
    """Where its keys are, if not where its metadata says."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    """By which the two clocks may differ."""
    resource: Annotated[str, Meta(max_length=2048)] | None = None
    """This server's URL as its clients know it, without `/mcp`, where a proxy stands before it."""


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """`[http]`: how MCP is served over HTTP."""

    enabled: bool = True
    host: Annotated[str, Meta(min_length=1)] = DEFAULT_HOST
    port: Annotated[int, Meta(ge=0, le=65535)] = DEFAULT_PORT
    """0 takes a free one."""
    token: str | None = None
    """What clients must send as bearer token, unless it is `OFF`; without one, the kernel's own."""
    token_file: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    """Names besides its own that it may be asked for."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins besides this machine's."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    max_connections: Annotated[int, Meta(ge=1)] = 2048
    max_connections_per_peer: Annotated[int, Meta(ge=1)] = 1024
    """Without a token, of one address, of which the oldest yield to new ones; and with a token, of that token: of one
    address for the operator's."""
    header_timeout_s: Annotated[float, Meta(gt=0)] = 20.0
    """For the head of a request to come whole."""
    body_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """For a body to come whole, and as much longer as it takes at 16 KiB/s."""

    rate: str | None = None
    """How often each client with a token of its own may call (`proto.grants.parse_rate`); never the operator's."""
    oauth: OAuth | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


class PromptFolder(msgspec.Struct, frozen=True):
    """Where prompts may lie; `within`, where it is set, is the real path that no file may lead out of."""

    path: str
    within: str | None = None


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a front serves.

    `ops_modules` declare operations beside those of `proto.ops`; those of `unserved` services are switched off.
    `session_key` signs the ids of sessions over HTTP, which every generation of every front takes up.
    """

    version: str
    session_key: Annotated[str, Meta(min_length=32)]
    http: Http | None = None
    prompt_folders: tuple[PromptFolder, ...] = ()
    ops_modules: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()
    workers: int = 1


class Listen(msgspec.Struct, frozen=True, tag="listen"):
    """To a front: serve HTTP on this socket, which listens already."""


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """To a front: serve a local client on its input and its output; a third descriptor is its session's memory."""

    id: int
    surface: str


class Detach(msgspec.Struct, frozen=True, tag="detach"):
    """To a front: that client has gone; its calls are not wanted any more."""

    id: int


class Detached(msgspec.Struct, frozen=True, tag="detached"):
    """From a front: that client's input has ended, and what it had asked is answered."""

    id: int


class Between(msgspec.Struct, frozen=True, tag="between"):
    """The connection of a client over HTTP, between two requests: from a front that ends, and to the next one."""


ToFront: TypeAlias = Listen | Attach | Detach | Between
FromFront: TypeAlias = Detached | Between
