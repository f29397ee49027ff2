"""The settings as they may be written: `linckia.toml` or `config.yaml`, the environment (`LINCKIA_…`), flags.

Each amounts to one layer, checked by itself; `kernel.config` lays them over each other. An unknown setting is an error
that names the nearest known one, since a misspelt setting that is passed over is found out weeks later. Other names
that some settings go by are `kernel.aliases`'.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from kernel import aliases
from kernel.json_types import Layer

DEFAULT_PORT = 3000

ENVIRONMENT_PREFIX = "LINCKIA_"

NOT_SETTINGS = frozenset({"LINCKIA_TORCH", "LINCKIA_PYTHON", "LINCKIA_EXTRA"})
"""What the set-up script reads; it is no concern of a running kernel."""


class ConfigError(Exception):
    """A setting is wrong; the message names it, where it came from, and what would be right."""


MIN_TOKEN_CHARACTERS = 16
"""A shorter one could be guessed."""

Token: TypeAlias = Annotated[str, Meta(min_length=MIN_TOKEN_CHARACTERS)]
LogLevel: TypeAlias = Annotated[str, Meta(pattern="^(debug|info|warning|error)$")]


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[http]` as it may be written; None is what was not said."""

    enabled: Annotated[bool | None, Meta(description="Whether HTTP is served at all")] = None
    host: Annotated[Annotated[str, Meta(min_length=1)] | None, Meta(description="Address to listen on")] = None
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)] | None, Meta(description="Port; 0 takes a free one")] = None
    token: Annotated[Token | None, Meta(description="Bearer token that clients must send")] = None
    token_file: Annotated[str | None, Meta(description="File that holds the token")] = None
    allowed_hosts: Annotated[list[str] | None, Meta(description="Names besides its own that it may be asked for")] = (
        None
    )
    allowed_origins: Annotated[list[str] | None, Meta(description="Web origins besides this machine's")] = None
    max_body_bytes: Annotated[Annotated[int, Meta(ge=1024)] | None, Meta(description="Longest request body")] = None


class PromptSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[prompts]` as it may be written."""

    dir: Annotated[str | None, Meta(description="Folder of prompts (PROMPT-*.md), instead of the usual ones")] = None


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[fetch]` as it may be written; the same as in `[services.fetch]`."""

    allow: Annotated[list[str] | None, Meta(description="Hosts and networks on this side of the Internet")] = None


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer: `linckia.toml` as it may be written, or what the environment or the flags amount to."""

    roots: Annotated[list[str] | None, Meta(description="Folders that operations on files may use")] = None
    log_level: Annotated[LogLevel | None, Meta(description="debug, info, warning or error")] = None
    own_users: Annotated[bool | None, Meta(description="Whether services run as users of their own under root")] = None
    standbys: Annotated[
        bool | None, Meta(description="Whether a process waits to take the place of each service in use")
    ] = None
    rest_after_s: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Time without a call after which what only answers calls has no process; 0: never"),
    ] = None
    http: HttpSettings = HttpSettings()
    prompts: PromptSettings = PromptSettings()
    fetch: FetchSettings = FetchSettings()
    llm: Annotated[Layer, Meta(description="The language model; the same as [services.llm]")] = {}
    services: dict[str, Layer] = {}
    transcripts: Annotated[Layer, Meta(description="The same as [services.transcripts]")] = {}


ENVIRONMENT = {
    "LINCKIA_ROOTS": ("roots",),
    "LINCKIA_LOG_LEVEL": ("log_level",),
    "LINCKIA_OWN_USERS": ("own_users",),
    "LINCKIA_STANDBYS": ("standbys",),
    "LINCKIA_REST_AFTER_S": ("rest_after_s",),
    "LINCKIA_HTTP": ("http",),
    "LINCKIA_TOKEN": ("http", "token"),
    "LINCKIA_TOKEN_FILE": ("http", "token_file"),
    "LINCKIA_ALLOWED_HOSTS": ("http", "allowed_hosts"),
    "LINCKIA_ALLOWED_ORIGINS": ("http", "allowed_origins"),
    "LINCKIA_MAX_BODY_BYTES": ("http", "max_body_bytes"),
    "LINCKIA_PROMPTS_DIR": ("prompts", "dir"),
    "LINCKIA_FETCH_ALLOW": ("fetch", "allow"),
}
"""Variables by what they set, besides LINCKIA_DATA, LINCKIA_CONFIG, LINCKIA_LLM__KEY and
LINCKIA_SERVICES__NAME__KEY."""


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said; None where it said nothing. `http` is `HOST:PORT`, `:PORT`, `PORT` or `off`."""

    roots: tuple[str, ...] = ()
    data_dir: str | None = None
    config_file: str | None = None
    http: str | None = None
    token_file: str | None = None
    log_level: str | None = None


def from_environment(environment: Mapping[str, str]) -> Layer:
    """The variables as one layer of settings.

    Raises:
        ConfigError: a variable that starts with LINCKIA_ and sets nothing.
    """
    layer: Layer = {}
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in NOT_SETTINGS | {"LINCKIA_DATA", "LINCKIA_CONFIG"}:
            continue
        if name.startswith("LINCKIA_SERVICES__"):
            service, _, key = name.removeprefix("LINCKIA_SERVICES__").partition("__")
            if not service or not key:
                raise ConfigError(f"{name}: write it as LINCKIA_SERVICES__NAME__KEY")
            layer.setdefault("services", {}).setdefault(service.lower(), {})[key.lower()] = _toml_value(value)
            continue
        if name.startswith("LINCKIA_LLM__"):
            layer.setdefault("llm", {})[name.removeprefix("LINCKIA_LLM__").lower()] = _toml_value(value)
            continue
        if name not in ENVIRONMENT:
            known = {*ENVIRONMENT, *NOT_SETTINGS, "LINCKIA_DATA", "LINCKIA_CONFIG"}
            known |= {"LINCKIA_LLM__KEY", "LINCKIA_SERVICES__NAME__KEY"}
            raise ConfigError(f"the environment: {name} is no setting{nearest(name, known)}")
        _put(layer, ENVIRONMENT[name], name, value)
    return layer


def _put(layer: Layer, where: tuple[str, ...], name: str, value: str) -> None:
    if where == ("http",):
        layer.setdefault("http", {}).update(_address(value, name))
    elif where == ("roots",):
        layer["roots"] = [part for part in value.split(os.pathsep) if part]
    elif where[-1] in ("allowed_hosts", "allowed_origins", "allow"):
        layer.setdefault(where[0], {})[where[-1]] = [part.strip() for part in value.split(",") if part.strip()]
    elif where[-1] == "max_body_bytes":
        if not value.isdecimal():
            raise ConfigError(f"{name} is {value!r}; it is a number of bytes")
        layer.setdefault("http", {})[where[-1]] = int(value)
    elif where in (("own_users",), ("standbys",), ("rest_after_s",)):
        layer[where[0]] = _toml_value(value)
    elif where[0] in ("http", "prompts"):
        layer.setdefault(where[0], {})[where[-1]] = value
    else:
        layer[where[0]] = value


def from_flags(flags: Flags) -> Layer:
    """The command line as one layer of settings.  Raises ConfigError."""
    layer: Layer = {}
    if flags.roots:
        layer["roots"] = list(flags.roots)
    if flags.log_level is not None:
        layer["log_level"] = flags.log_level
    http: Layer = {} if flags.http is None else _address(flags.http, "--http")
    if flags.token_file is not None:
        http["token_file"] = flags.token_file
    return layer | ({"http": http} if http else {})


def _address(text: str, origin: str) -> Layer:
    if text == "off":
        return {"enabled": False}
    if text.isdecimal():
        host, port = "", text
    elif text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest else str(DEFAULT_PORT)
    elif text.count(":") > 1:
        # A bare IPv6 address: no port can follow it.
        host, port = text, str(DEFAULT_PORT)
    else:
        host, colon, port = text.partition(":")
        port = port if colon else str(DEFAULT_PORT)
    if not text or not port.isdecimal() or int(port) > 65535 or any(c in host for c in "/[] "):
        raise ConfigError(f"{origin} is {text!r}; write HOST:PORT (127.0.0.1:3000), :PORT, or off")
    return {"enabled": True, "port": int(port)} | ({"host": host} if host else {})


def _toml_value(text: str) -> object:
    """A number, a truth value or a list as TOML writes them; else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_file(path: Path) -> Layer:
    """The layer in a file.  Raises ConfigError."""
    try:
        if path.suffix in (".yaml", ".yml"):
            return aliases.translated(aliases.read_yaml(path))
        return aliases.translated(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except aliases.AliasError as error:
        raise ConfigError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def by_other_names(environment: Mapping[str, str]) -> Layer:
    """The layer of the variables that are `kernel.aliases`'.  Raises ConfigError."""
    try:
        return aliases.from_environment(environment)
    except aliases.AliasError as error:
        raise ConfigError(f"the environment: {error}") from None


def check(raw: Layer, origin: str) -> Settings:
    """A layer with its types.  Raises ConfigError, which names the setting and `origin`."""
    _check_names(raw, Settings, "", origin)
    tables: tuple[tuple[str, type[msgspec.Struct]], ...] = (
        ("http", HttpSettings),
        ("prompts", PromptSettings),
        ("fetch", FetchSettings),
    )
    for name, table in tables:
        if isinstance(raw.get(name), dict):
            _check_names(raw[name], table, f"{name}.", origin)
    try:
        return msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`") or "the settings"
        hint = "; it may be debug, info, warning or error" if name == "log_level" else ""
        raise ConfigError(f"{origin}: {name}: {what[0].lower()}{what[1:]}{hint}") from None


def _check_names(raw: Mapping[str, object], tp: type[msgspec.Struct], prefix: str, origin: str) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(tp)]
    for name in raw:
        if name not in known:
            raise ConfigError(f"{origin}: {prefix}{name} is no setting{nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: what may have been meant."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(known)}"
