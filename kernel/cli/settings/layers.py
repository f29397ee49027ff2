"""Settings as they may be written: in `linckia.toml` or `config.yaml`, the environment (`LINCKIA_…`), or flags.

Each source is one layer, which is checked separately; `loading` merges the layers. An unknown setting is an error,
since an ignored one would be noticed only weeks later. `[server]` has the keys of disk browsers for agents; they are
equivalent to those of `[http]`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from kernel.configure.config import (
    MCP_REGISTRY,
    REST_AFTER_S,
    AlertSettings,
    AuditSettings,
    BackupSettings,
    ClusterSettings,
    ConfigError,
    SourceSettings,
)
from proto.json_types import Layer
from proto.manifest import ShortTable
from proto.suggestions import nearest
from proto.wire.front import Http

PREFIX = "LINCKIA_"

NOT_SETTINGS = frozenset(
    {
        "LINCKIA_TORCH", "LINCKIA_PYTHON", "LINCKIA_EXTRA", "LINCKIA_DATA", "LINCKIA_CONFIG", "LINCKIA_SYNC_TOKEN",
        "LINCKIA_BACKUP_PASSPHRASE",
    }
)  # fmt: skip
"""Variables that the set-up script or a command reads, and those that say where the settings are."""

SERVER = {"host": "host", "port": "port", "cors_origins": "allowed_origins"}
"""Keys of `[server]`, with the equivalent keys of `[http]`."""


class Prompts(msgspec.Struct, frozen=True):
    """`[prompts]`: a folder of prompts (PROMPT-*.md) that replaces the usual ones, and whether those in roots are
    shown."""

    dir: str | None = None
    """A folder that replaces the usual one, `prompts` of the data directory."""
    from_roots: bool = True
    """Whether prompts in the roots are shown."""


class ChaosSettings(msgspec.Struct, frozen=True):
    """`[chaos]`: whether faults may be injected, as system tests do, and the module that does it."""

    allowed: bool = False
    """Whether faults may be injected, as system tests do."""
    module: str | None = None
    """The Python module that injects them."""


class Root(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item of `roots` that also has a mode."""

    path: str
    mode: Literal["read", "write"] = "write"


class LayerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one layer."""

    roots: list[str | Root] = []
    """Folders that operations on files may access."""
    read_only: bool = False
    """Whether clients may make no changes at all."""
    deny: list[str] = []
    """Paths, and .gitignore patterns, that clients cannot access even below a root."""
    log_level: Annotated[str, Meta(pattern="^(debug|info|warning|error)$")] = "info"
    """The least severe messages that are logged: debug, info, warning or error."""
    own_users: bool = True
    """Whether services have their own users if the kernel runs as root."""
    standbys: bool = True
    """Whether each service in use has a standby process that replaces it when it dies."""
    rest_after_s: Annotated[float, Meta(ge=0)] = REST_AFTER_S
    """Seconds without a call after which a service that only answers calls has no process; 0: it always has one."""
    alerts: AlertSettings = AlertSettings()
    audit: AuditSettings = AuditSettings()
    backup: BackupSettings | None = None
    """The schedule of backups; null: no backups are made."""
    chaos: ChaosSettings = ChaosSettings()
    http: Http = Http()
    prompts: Prompts = Prompts()
    cluster: ClusterSettings | None = None
    """Other machines that run stateless services; null: none."""
    sources: SourceSettings = SourceSettings()
    services: dict[str, Layer] = {}
    """Tables of single services; see below."""
    mcp: dict[str, object] = {}
    """By name: a mounted MCP server (`mount_settings`)."""
    mcp_registry: str = MCP_REGISTRY
    """The address of the MCP registry that `linckia mcp search` and `install` read."""
    mcp_client_id: str = ""
    """The https address of the document that describes your client to OAuth servers of mounted servers; empty: none."""
    only_mounts: bool = False
    """Whether only mounted servers are served, and none of Linckia's own services."""


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """Settings from the command line; None if not given. `http` is `HOST:PORT`, `:PORT`, `PORT` or `off`."""

    roots: tuple[str, ...] = ()
    read_only: bool = False
    data_dir: str | None = None
    config_file: str | None = None
    http: str | None = None
    token_file: str | None = None
    log_level: str | None = None
    packages: tuple[str, ...] = ()
    """Python packages whose services are served as well."""
    mcp_files: tuple[str, ...] = ()
    """Files of MCP clients that list servers to mount (`kernel.cli.servers.client_files`)."""
    only_mounts: bool = False


def _address(text: str) -> Layer:
    if text == "off":
        return {"enabled": False}
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.isdecimal():
        host, rest, port = "", ":", text
    elif text.count(":") > 1:
        # A bare IPv6 address cannot be followed by a port.
        host, rest, port = text, "", ""
    else:
        host, rest, port = text.partition(":")
    is_right = (port.isdecimal() and int(port) <= 65535) if rest else bool(host)
    if not is_right or any(c in host for c in "/[] "):
        raise ValueError("write HOST:PORT (127.0.0.1:3000), :PORT, or off")
    return {"enabled": True} | ({"port": int(port)} if rest else {}) | ({"host": host} if host else {})


def _number(text: str, what: str = "a port, 0 to 65535", most: float = 65535) -> int:
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"it must be {what}")
    return int(text)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _toml(text: str) -> object:
    """Parse a number, boolean or list in TOML syntax; return any other text unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


Variables: TypeAlias = Mapping[str, tuple[tuple[str, ...], Callable[[str], object]]]
"""For each variable, the setting and a parser for its text, which raises ValueError saying what would be right."""

ENVIRONMENT: Variables = {
    "LINCKIA_ROOTS": (("roots",), lambda text: [part for part in text.split(os.pathsep) if part]),
    "LINCKIA_READ_ONLY": (("read_only",), _toml),
    "LINCKIA_DENY": (("deny",), lambda text: [part for part in text.split(os.pathsep) if part]),
    "LINCKIA_LOG_LEVEL": (("log_level",), str),
    "LINCKIA_OWN_USERS": (("own_users",), _toml),
    "LINCKIA_STANDBYS": (("standbys",), _toml),
    "LINCKIA_REST_AFTER_S": (("rest_after_s",), _toml),
    "LINCKIA_MCP_REGISTRY": (("mcp_registry",), str),
    "LINCKIA_MCP_CLIENT_ID": (("mcp_client_id",), str),
    "LINCKIA_AUDIT": (("audit", "enabled"), _toml),
    "LINCKIA_CHAOS": (("chaos", "allowed"), _toml),
    "LINCKIA_CHAOS_MODULE": (("chaos", "module"), str),
    "LINCKIA_HTTP": (("http",), _address),
    "LINCKIA_TOKEN": (("http", "token"), str),
    "LINCKIA_TOKEN_FILE": (("http", "token_file"), str),
    "LINCKIA_ALLOWED_HOSTS": (("http", "allowed_hosts"), _listed),
    "LINCKIA_ALLOWED_ORIGINS": (("http", "allowed_origins"), _listed),
    "LINCKIA_MAX_BODY_BYTES": (("http", "max_body_bytes"), partial(_number, what="a number of bytes", most=inf)),
    "LINCKIA_PROMPTS_DIR": (("prompts", "dir"), str),
    "LINCKIA_PROMPTS_FROM_ROOTS": (("prompts", "from_roots"), _toml),
}

ShortTables: TypeAlias = Mapping[str, ShortTable]
"""For each service, its short table, an alternative to `[services.NAME]`."""


def with_short_tables(raw: Layer, tables: ShortTables, origin: str) -> Layer:
    """Return the layer with its short tables moved to `services`. Raises ConfigError."""
    services = raw.get("services", {})
    for service, table in tables.items():
        if table.name not in raw or not isinstance(services, dict):
            continue
        given = raw[table.name]
        if not isinstance(given, dict):
            raise ConfigError(f"{origin}: {table.name}: expected a table, such as [{table.name}], got {given!r}")
        for name, value in given.items():
            if table.lists and name not in table.lists:
                raise ConfigError(f"{origin}: {table.name}.{name} is not a setting{nearest(name, table.lists)}")
            if table.lists and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
                raise ConfigError(f"{origin}: {table.name}.{name}: expected a list of strings, got {value!r}")
        own = services.get(service, {})
        services = {**services, service: {**given, **own} if isinstance(own, dict) else own}
    short = {table.name for table in tables.values()}
    rest = {name: value for name, value in raw.items() if name not in short}
    return {**rest, "services": services} if services else rest


def from_environment(environment: Mapping[str, str], tables: ShortTables) -> Layer:
    """Return the layer of LINCKIA_ variables. Raises ConfigError for one that is not a setting."""
    layer: Layer = {}
    lists = {f"{PREFIX}{t.name}_{each}".upper(): (t.name, each) for t in tables.values() for each in t.lists}
    open_tables = {f"{PREFIX}{t.name}__".upper(): t.name for t in tables.values() if not t.lists}
    for name, value in environment.items():
        head, separator, key = name.partition("__")
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        if name.startswith("LINCKIA_SERVICES__"):
            service, _, key = name.removeprefix("LINCKIA_SERVICES__").lower().partition("__")
            if not service or not key:
                raise ConfigError(f"{name}: write it as LINCKIA_SERVICES__NAME__KEY")
            _put(layer, ("services", service, key), name, _toml, value)
        elif name.startswith("LINCKIA_MCP__"):
            mount, _, key = name.removeprefix("LINCKIA_MCP__").lower().partition("__")
            if not mount or not key:
                raise ConfigError(f"{name}: write it as LINCKIA_MCP__NAME__KEY")
            _put(layer, ("mcp", mount, key), name, _toml, value)
        elif (short := open_tables.get(head + separator)) and key:
            _put(layer, (short, key.lower()), name, _toml, value)
        elif name in lists:
            _put(layer, lists[name], name, _listed, value)
        elif name in ENVIRONMENT:
            where, read = ENVIRONMENT[name]
            _put(layer, where, name, read, value)
        else:
            known = {
                *ENVIRONMENT, *NOT_SETTINGS, *lists, *(f"{each}KEY" for each in open_tables),
                "LINCKIA_SERVICES__NAME__KEY", "LINCKIA_MCP__NAME__KEY",
            }  # fmt: skip
            raise ConfigError(f"the environment: {name} is not a setting{nearest(name, known)}")
    return layer


def from_flags(flags: Flags) -> Layer:
    """Return the layer of the command line. Raises ConfigError."""
    layer: Layer = {}
    if flags.roots:
        layer["roots"] = list(flags.roots)
    if flags.read_only:
        layer["read_only"] = True
    if flags.only_mounts:
        layer["only_mounts"] = True
    if flags.log_level is not None:
        layer["log_level"] = flags.log_level
    if flags.http is not None:
        _put(layer, ("http",), "--http", _address, flags.http)
    if flags.token_file is not None:
        _put(layer, ("http", "token_file"), "--token-file", str, flags.token_file)
    return layer


def _put(layer: Layer, where: tuple[str, ...], origin: str, read: Callable[[str], object], text: str) -> None:
    try:
        value = read(text)
    except ValueError as error:
        raise ConfigError(f"{origin} is {text!r}; {error}") from None
    for name in where[:-1]:
        layer = layer.setdefault(name, {})
    if isinstance(value, dict):
        layer.setdefault(where[-1], {}).update(value)
    else:
        layer[where[-1]] = value


def from_file(path: Path, text: str | None = None) -> Layer:
    """Return the layer in a file, or in what is to be its `text`. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8") if text is None else text
        raw = _yaml(path, text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return _with_server_as_http(raw, path)


def _yaml(path: Path, text: str) -> Layer:
    import yaml  # Imported only if there is such a file, since the import would slow down every start.

    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise ConfigError(f"{path} must contain keys and values, such as `server:` with `port: 3000`")
    return raw


def _with_server_as_http(layer: Layer, path: Path) -> Layer:
    server, http = layer.pop("server", {}), layer.get("http", {})
    if not isinstance(server, dict):
        raise ConfigError(f"{path}: server: expected a table with {', '.join(SERVER)}")
    if not server or not isinstance(http, dict):
        return layer
    for key, value in server.items():
        if key not in SERVER:
            raise ConfigError(f"{path}: server.{key} is not a setting; known: {', '.join(SERVER)}")
        if SERVER[key] in http:
            both = f"server.{key} and http.{SERVER[key]}"
            raise ConfigError(f"{path}: {both} mean the same and are both set; remove one of them")
        http = {**http, SERVER[key]: _listed(value) if key == "cors_origins" and isinstance(value, str) else value}
    return {**layer, "http": http}


def check(raw: Layer, origin: str) -> LayerSettings:
    """Convert a layer to typed settings. Raises ConfigError, which names the setting and `origin`."""
    check_names(raw, LayerSettings, "", origin)
    try:
        return msgspec.convert(raw, LayerSettings)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`") or "the settings"
        hint = "; it must be debug, info, warning or error" if name == "log_level" else ""
        raise ConfigError(f"{origin}: {name}: {what[0].lower()}{what[1:]}{hint}") from None


def check_names(raw: Mapping[str, object], tp: type[msgspec.Struct], prefix: str, origin: str) -> None:
    """Raise ConfigError if a key of the table, or of a table in it, is not a setting."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(tp)}
    for name, value in raw.items():
        if name not in fields:
            raise ConfigError(f"{origin}: {prefix}{name} is not a setting{nearest(name, fields)}")
        of = fields[name]
        if isinstance(of, type) and issubclass(of, msgspec.Struct) and isinstance(value, dict):
            check_names(value, of, f"{prefix}{name}.", origin)
