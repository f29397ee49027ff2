"""Messages to fronts: their settings at launch, and the descriptors that the kernel passes to them.

A front talks to clients, and holds nothing that must not be lost. Listening sockets, the descriptors of local clients
and their sessions' memory files stay with the kernel, which passes them to the next front when one dies. Messages are
msgpack on a SEQPACKET socket, one per packet, with descriptors attached.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from proto.approvals import ApprovalSettings
from proto.names import module
from proto.origin import Origin

SERVICE = "front"
"""The service of which fronts are instances; it owns the operations that they handle themselves."""

OWN: Final = Origin(SERVICE)
"""The origin of calls that a front makes for itself."""

CALL_MOUNTED = "call_mounted"
"""Operation of the front by which the operator calls a tool of a mounted server, since only fronts know their names."""

LIBRARIES = (
    module("services.front.protocol.server"),
    module("services.front.web.serving"),
)
"""Modules that a front needs for everything beyond lists and ordinary calls of local clients: MCP's SDK and the HTTP
server."""

OFF = "off"
"""Value of the token setting that makes HTTP open to everyone."""

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 3000
PATIENCE_S = 50.0
"""How long clients wait for a long call, unless the settings say otherwise."""
PATIENCE_SETTING = ("tasks", "after_s")
"""The service and its setting that say otherwise."""

MIN_TOKEN_CHARACTERS = 16
"""A shorter token could be guessed."""

TO_FRONTS = "front."
"""Prefix for topics of events between fronts; such events from other services are not passed on."""

MAX_PACKET_BYTES = 4096
MAX_DESCRIPTORS = 3

MAX_BETWEEN = 1024
"""Maximum number of HTTP connections that wait for the next front; others are closed."""


_Audience = Annotated[str, Meta(min_length=1, max_length=2048)]

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric signature algorithms (RFC 7518, RFC 8037): a key that checks a signature cannot create one."""


def is_loopback(host: str) -> bool:
    """Return whether `host` (a name, or an address without brackets) can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ScopeGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[http.oauth.scopes.NAME]`: what clients with this scope may do, as in `proto.grants.Grant`."""

    surfaces: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    read_only: bool = False


class OAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[http.oauth]`: the issuer whose access tokens (JSON Web Tokens) are accepted besides Linckia's own."""

    issuer: Annotated[str, Meta(min_length=1, max_length=2048)]
    """The issuer's identifier, a URL, exactly as in its tokens (`iss`)."""
    audience: _Audience | Annotated[tuple[_Audience, ...], Meta(min_length=1, max_length=16)]
    """Values of `aud` in the issuer's tokens for this server; one of them must match."""
    scopes: dict[str, ScopeGrant] = {}
    """Scopes by name. If a token has several, the first one listed here applies."""
    jwks_url: Annotated[str, Meta(max_length=2048)] | None = None
    """URL of the issuer's keys, if it differs from the one in the issuer's metadata."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    """Seconds by which the two clocks may differ."""
    resource: Annotated[str, Meta(max_length=2048)] | None = None
    """URL of this server as clients know it, without `/mcp`, if it is behind a proxy."""


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """`[http]`: settings for MCP over HTTP."""

    enabled: bool = True
    """Whether HTTP is served."""
    host: Annotated[str, Meta(min_length=1)] = DEFAULT_HOST
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """0 picks a free port; null: `DEFAULT_PORT`, or the next one that is free."""
    token: str | None = None
    """Bearer token that clients must send, unless it is `OFF`; None: the kernel's own token."""
    token_file: str | None = None
    """File with that token."""
    allowed_hosts: tuple[str, ...] = ()
    """Additional host names that requests may use."""
    allowed_origins: tuple[str, ...] = ()
    """Allowed web origins besides those of this machine."""
    max_body_bytes: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    """Maximum size of a request's body."""
    max_connections: Annotated[int, Meta(ge=1)] = 2048
    """Maximum number of connections."""
    max_connections_per_peer: Annotated[int, Meta(ge=1)] = 1024
    """Limit per peer: an address (without a token), where new connections replace the oldest; or a token; or an address
    with the operator's token."""
    header_timeout_s: Annotated[float, Meta(gt=0)] = 20.0
    """Time allowed for the complete head of a request to arrive."""
    body_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """Time allowed for a body to arrive, plus its size at 16 KiB/s."""

    rate: str | None = None
    """How often each client with its own token may call (`proto.grants.parse_rate`). The operator is not limited."""
    oauth: OAuth | None = None
    """The issuer whose tokens are accepted too; null: none."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


class PromptFolder(msgspec.Struct, frozen=True):
    """A folder that may have prompts. If `within` is set, files must not lead out of that real path."""

    path: str
    within: str | None = None


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a front.

    `ops_modules` declare operations in addition to those of `proto.ops`; operations of `unserved` services are
    disabled. `session_key` signs the ids of HTTP sessions, which every generation of every front accepts. Calls that
    `approvals` chooses may take longer.
    """

    version: str
    session_key: Annotated[str, Meta(min_length=32)]
    http: Http | None = None
    prompt_folders: tuple[PromptFolder, ...] = ()
    ops_modules: tuple[str, ...] = ()
    unserved: tuple[str, ...] = ()
    approvals: ApprovalSettings = ApprovalSettings()
    patience_s: Annotated[float, Meta(gt=0)] = PATIENCE_S
    """How long clients wait for a long call, which then goes on as a task."""
    workers: int = 1


class Listen(msgspec.Struct, frozen=True, tag="listen"):
    """To a front: serve HTTP on this socket, which is already listening."""


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """To a front: serve a local client on its input and output; a third descriptor is its session's memory file."""

    id: int
    surface: str


class Detach(msgspec.Struct, frozen=True, tag="detach"):
    """To a front: this client has left, so cancel its calls."""

    id: int


class Detached(msgspec.Struct, frozen=True, tag="detached"):
    """From a front: this client's input has ended, and all its requests are answered."""

    id: int


class Between(msgspec.Struct, frozen=True, tag="between"):
    """An HTTP client's connection between two requests: from a front that ends, and to the next one."""


ToFront: TypeAlias = Listen | Attach | Detach | Between
FromFront: TypeAlias = Detached | Between
