"""Mounted MCP servers: their settings, names, operations, and what they offer.

A mount is a service made from a table `[mcp.NAME]` of the settings: an adapter process that runs another MCP server and
speaks MCP with it. Requests of clients reach it by three operations, which differ in what the router may do with them
after a death.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, UnsetType

from proto.errors import InvalidParams
from proto.json_types import Layer
from proto.operation import CLIENT, OPERATOR, Access, Operation, Params, Role
from proto.wire.cluster import Resources

TABLE: Final = "mcp"
"""Name of the settings table with a table for each mount."""

PREFIX: Final = "mcp_"
"""Prefix of the names of mounts' services."""

NAME_PATTERN: Final = r"^[a-z][a-z0-9_-]{0,31}$"
"""Pattern for names of mounts; `-` becomes `_` in the name of the service."""

SIZE_PATTERN: Final = r"^\s*\d+(\.\d+)?\s*[KMGTkmgt]?(i?[Bb])?\s*$"
"""Pattern for sizes such as `512MiB` and `4G`."""

REGISTRY: Final = "mounts"
"""Service that keeps what each mount offers."""

CALL_LIMIT_S: Final = 86_400.0
"""Deadline of calls. The adapter applies the mount's `timeout`, which progress extends, so this one is never reached in
practice."""

CHANGED: Final = "mcp.mount_changed"
"""Topic of the event that a mount's definitions have changed; the body is a `MountChanged`."""

UPDATED: Final = "mcp.mount_resource_updated"
"""Topic of the event that a resource of a mount has changed; the body is a `MountResourceUpdated`."""

TOOLS_CALL: Final = "tools/call"

ACTIVITY: Final = "activity"
"""Key in the `info` of a mount's service: whether the server is busy or silent, once calls have been in flight for a
while."""

MAX_NAME_CHARS: Final = 4096
"""Longer names of tools, prompts and URIs are cut in `MountRequest.name`."""

PROGRESS_S: Final = 0.01
"""Shortest time between two reports of progress that are passed on; a server may report each of its steps."""

MountName = Annotated[str, Meta(pattern=NAME_PATTERN, description="Name of the mounted server")]
Seconds = Annotated[float, Meta(gt=0)]


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tools`: which tools clients see. Names may have the wildcards of shells (`fnmatch`)."""

    allow: list[str] = []
    """If not empty, only these."""
    deny: list[str] = []
    rename: dict[str, str] = {}
    """New names, by the server's own."""


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`oauth`: how to get tokens for the server at `url`."""

    flow: Literal["authorization_code", "client_credentials"] = "authorization_code"
    client_id: str = ""
    """Empty: register dynamically. An https address: that of a document which describes the client."""
    client_secret_from: str = ""
    """Name of an environment variable, or path of a file."""
    scopes: list[str] = []
    issuer: str = ""
    """The only authorization server that gets the credentials; by default the first one that the server names."""
    redirect_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """The port of 127.0.0.1 that logins come back to; 0: any, the same one each time."""


SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of variables and options whose values are probably secret, even if the settings contain them."""


class MountSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[mcp.NAME]`. One of `command`, `url` and `url_from` is set."""

    command: str = ""
    args: list[str] = []
    args_from: dict[str, str] = {}
    """By placeholder, such as `{key}`: the name of an environment variable, or the path of a file, with the text that
    takes its place in `args`."""
    cwd: str = ""
    """Working directory; by default the user's home directory."""
    env: dict[str, str] = {}
    env_from: list[str] = []
    """Variables of Linckia's environment to pass on, by name, or files of `NAME=value` lines, by path."""
    url: str = ""
    url_from: str = ""
    """Name of an environment variable, or path of a file, with a URL that contains a secret."""
    transport: Literal["http", "sse"] | None = None
    """How to speak with `url`; by default Streamable HTTP, then SSE if the server is an old one."""
    headers: dict[str, str] = {}
    headers_from: dict[str, str] = {}
    """By header: the name of an environment variable, a text with variables such as `Bearer ${TOKEN}`, or the path of a
    file."""
    oauth: OAuthClient | None = None
    tools: ToolChoice = ToolChoice()
    roots: list[str] = []
    """Folders that a confined server may write to, and that the server is told if it asks for roots and no client
    answers."""
    network: bool = True
    """Whether a confined server may connect to other machines."""
    confine: bool = False
    """Whether the server may write only below `roots` and in its own folder."""
    memory_limit: Annotated[str, Meta(pattern=SIZE_PATTERN)] = "4GiB"
    """Memory of the server and all its processes, after which it is restarted."""
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    timeout: Seconds = 600.0
    """Seconds without answer or progress after which a call fails."""
    start_timeout: Seconds = 300.0
    """Seconds for the start: a package may have to be downloaded first."""
    share: Literal["one", "client"] | None = None
    """One process for all clients (`one`), or one for each (`client`); by default `one`, unless `stateful`."""
    max_instances: Annotated[int, Meta(ge=1, le=256)] = 16
    """Maximum number of processes with `share = "client"`; the one unused for longest ends first."""
    extra_instances: Annotated[int, Meta(ge=0, le=8)] = 0
    """Processes that may be started beside the one that all clients share, for calls that would wait behind it while it
    gives no sign of life."""
    start: Literal["eager", "lazy"] = "lazy"
    """Whether it starts with Linckia or with its first call."""
    rest_after_s: Annotated[float, Meta(ge=0)] | None = None
    """Idle seconds after which its process ends; 0: never. Default: as all services; never if `stateful` or `eager`."""
    stateful: bool = False
    """Whether the server keeps state between calls, so that calls must not go to a new process without notice."""
    pin: bool = False
    """Whether changed definitions are held back until `linckia mcp approve`."""
    cluster: Resources | None = None
    """What the server reserves on a node of the cluster, where it then runs; null: it runs on this machine."""
    enabled: bool = True

    @property
    def is_remote(self) -> bool:
        """Whether the server is reached over HTTP."""
        return bool(self.url or self.url_from)

    @property
    def is_shared(self) -> bool:
        """Whether all clients use one instance."""
        return (self.share or ("client" if self.stateful else "one")) == "one"


class MountRequest(Params["MountReply"], frozen=True, kw_only=True):
    """A request for a mounted server, as MCP defines it."""

    method: Annotated[str, Meta(max_length=128)]
    name: Annotated[str, Meta(max_length=MAX_NAME_CHARS)] = ""
    """The tool, prompt or URI, for the audit log."""
    params: bytes = b"{}"
    """JSON object: the request's parameters, without the members of `_meta` that belong to the connection."""
    answers: bytes = b""
    """JSON object: what the client has answered to questions of an earlier attempt at this call, by question."""
    capabilities: bytes = b""
    """JSON object: the client's own capabilities, for servers that are told them with each request. Empty: unknown."""
    modern: bool = False
    """Whether the client speaks a revision without a handshake (2026-07-28 or later), so that it understands results
    of the type `input_required`."""

    def identity(self) -> bytes:
        """Leave out `_meta`, which has a new trace for each attempt."""
        given = msgspec.json.decode(self.params, type=dict[str, Raw])
        kept = {name: bytes(value) for name, value in sorted(given.items()) if name != "_meta"}
        return msgspec.msgpack.encode([self.method, self.name, kept])

    def check(self) -> None:
        """Check that `name` is the tool in `params`, since approvals and the audit log depend on it."""
        if self.method != TOOLS_CALL or not self.name:
            return
        try:
            called = _called(self.params).name
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidParams(f"`params` is not a call of a tool: {error}", field="params") from None
        if called[: len(self.name)] != self.name or len(called) > len(self.name) < MAX_NAME_CHARS:
            raise InvalidParams(f"`name` is {self.name!r}, but `params` call {called[:200]!r}", field="name")


class _Called(msgspec.Struct):
    name: str = ""


_called = msgspec.json.Decoder(_Called).decode


class MountReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The server's own reply: one of both, as the server wrote it. Other failures are `LinckiaError`s."""

    result: Raw | UnsetType = msgspec.UNSET
    error: Raw | UnsetType = msgspec.UNSET


class Definitions(msgspec.Struct, frozen=True, kw_only=True):
    """What a server offers, as it wrote it; lists are complete, and empty if it has none."""

    protocol_version: str = ""
    server_info: dict[str, Any] = {}
    capabilities: dict[str, Any] = {}
    instructions: str = ""
    tools: list[Raw] = []
    resources: list[Raw] = []
    templates: list[Raw] = []
    prompts: list[Raw] = []
    problems: list[str] = []
    """What was wrong with its lists, for the registry, which turns this into flags."""


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """Something suspicious in a definition."""

    kind: Literal["hidden_characters", "overlong", "cut", "look_alike", "collision", "dropped"]
    """`dropped`: not a definition at all (no object, no name, or a name twice), or a list that the server did not
    return as the protocol requires, so clients do not see it."""
    where: str
    """What it is in, such as `tool create_issue: description`."""
    detail: str = ""


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """The definitions of a mount that clients may see: the approved ones if `pin` is set, otherwise the latest. Hidden
    characters are removed, and long descriptions are cut."""

    version: str = ""
    """Hash of the definitions as the server wrote them; empty if it has never started."""
    definitions: Definitions = Definitions()
    own_names: dict[str, dict[str, str]] = {}
    """The server's own names of tools and prompts with hidden characters, by list and the name in `definitions`."""
    flags: list[Flag] = []
    held_back: bool = False
    """Whether the server now offers something else, which has not been approved."""


NameKind: TypeAlias = Literal["tools", "prompts"]


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who has a name beside Linckia's own: a tool or prompt of a mount, by its server's own name."""

    mount: str
    own: str
    wanted: str = ""
    """The name that it has not got, since that belongs to another."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A name that a tool or prompt of a mount wants to have beside Linckia's own."""

    kind: NameKind
    mount: str
    own: str
    name: str
    other: str
    """The name that it has if `name` belongs to another."""
    is_taken: bool = False
    """Whether `name` is one of Linckia's own."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A name and who has it."""

    kind: NameKind
    name: str
    holder: Holder


class MountNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names beside Linckia's own, and who has them; `refused` have none, since others have both of theirs."""

    tools: dict[str, Holder] = {}
    prompts: dict[str, Holder] = {}
    refused: list[Wanted] = []


class MountChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The definitions of a mount have changed. `lists`: `tools`, `resources`, `prompts`."""

    mount: str
    lists: list[str] = []


class MountResourceUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of a mount has changed."""

    mount: str
    uri: str


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A mount as fronts need to know it."""

    name: str
    tools: ToolChoice = ToolChoice()
    stateful: bool = False


class MountTable(msgspec.Struct, frozen=True, kw_only=True):
    """All enabled mounts, and a version number for this set."""

    version: int = 0
    mounts: list[Mount] = []
    disabled: list[str] = []
    """Names of mounts that are in the settings, and disabled."""


def service_of(mount: str) -> str:
    """Return the name of a mount's service."""
    return PREFIX + mount.replace("-", "_")


def is_route(operation: str) -> bool:
    """Return whether an operation carries the requests of a mount."""
    service, dot, _ = operation.partition(".")
    return bool(dot) and service.startswith(PREFIX)


def is_name(text: str) -> bool:
    """Return whether a mount may be named so."""
    return re.fullmatch(NAME_PATTERN, text) is not None


def read_settings(name: str, table: Layer) -> MountSettings:
    """Return the settings of a mount, each checked for itself. Raises ValueError, which names the setting."""
    if not is_name(name):
        raise ValueError(f"mcp.{name}: a mount's name must match {NAME_PATTERN}")
    try:
        return msgspec.convert(table, MountSettings)
    except msgspec.ValidationError as error:
        raise ValueError(f"mcp.{name}: {error}") from None


REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable in a text of `headers_from`."""


def is_url(text: str) -> bool:
    """Return whether a server may be at this address."""
    return re.match(r"https?://[^/]", text) is not None


READ: Final = "read"
"""Requests that change nothing: lists, resources, prompts, completions, and tools with `readOnlyHint`."""
REPEAT: Final = "repeat"
"""Calls of tools with `idempotentHint`: sent again if the server dies."""
CHANGE: Final = "change"
"""Calls of other tools: never sent twice."""


def operations_of(mount: str) -> dict[str, Operation[Any]]:
    """Return the operations of a mount: `READ`, `REPEAT` and `CHANGE`, named `SERVICE.read` and so on."""
    service = service_of(mount)

    def declared(kind: str, access: Access, *, idempotent: bool) -> Operation[Any]:
        return Operation(
            name=f"{service}.{kind}",
            description=f"A request for the mounted server {mount}.",
            service=service,
            params=MountRequest,
            result=MountReply,
            access=access,
            idempotent=idempotent,
            deadline_ms=int(CALL_LIMIT_S * 1000),
            title=f"Request for {mount}",
            role=Role.INTERNAL,
            surfaces=(mount,),
            callers=(CLIENT, OPERATOR),
            asks=True,
            open_world=True,
        )

    return {
        READ: declared(READ, Access.READ, idempotent=True),
        REPEAT: declared(REPEAT, Access.WRITE, idempotent=True),
        CHANGE: declared(CHANGE, Access.DESTRUCTIVE, idempotent=False),
    }
