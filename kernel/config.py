"""The settings in force: the files, then the environment, then flags (`kernel.settings`), each over the one before.

Everything is checked before anything starts.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kernel import aliases
from kernel.control.address import find_data_dir
from kernel.json_types import Layer
from kernel.settings import (
    DEFAULT_PORT,
    MIN_TOKEN_CHARACTERS,
    ConfigError,
    Flags,
    HttpSettings,
    Settings,
    by_other_names,
    check,
    from_environment,
    from_flags,
    nearest,
    read_file,
)

FILE_NAME = "linckia.toml"

DEFAULT_HOST = "127.0.0.1"


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """How MCP is served over HTTP."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 64 * 1024 * 1024

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


REST_AFTER_S: Final = 300.0
"""Time without a call after which a service that only answers calls has no process; 0: it always has one."""


PLAIN: Final = ("log_level", "own_users", "standbys", "rest_after_s")
"""Settings that are taken as they are written."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `roots` and `data_dir` are real paths; `http` is None where HTTP is switched off.

    `services` holds each service's own table, which that service checks itself. `prompts_dir` is None where the
    folders of prompts are those in the data directory and in the roots.
    """

    data_dir: Path
    roots: tuple[Path, ...] = ()
    http: Http | None = Http()
    services: dict[str, Layer] = {}
    log_level: str = "info"
    prompts_dir: Path | None = None
    own_users: bool = True
    standbys: bool = True
    rest_after_s: float = REST_AFTER_S


def load(
    flags: Flags,
    environment: Mapping[str, str],
    *,
    known_services: Collection[str] | None = None,
) -> Config:
    """The settings in force.

    Args:
        known_services: names that `[services.NAME]` may have; None lets any pass.

    Raises:
        ConfigError: names the setting and where it was made.
    """
    data_dir = find_data_dir(flags.data_dir, environment)
    roots: tuple[Path, ...] = ()
    http: Layer = {}
    services: dict[str, Layer] = {}
    prompts_dir: Path | None = None
    plain: Layer = {}
    for origin, folder, raw in _layers(data_dir, flags, environment):
        settings = check(raw, origin)
        if settings.roots is not None:
            roots = tuple(_root(given, folder, origin) for given in settings.roots)
        if settings.prompts.dir is not None:
            prompts_dir = _prompts_dir(folder / Path(settings.prompts.dir).expanduser(), origin)
        plain |= {name: value for name in PLAIN if (value := getattr(settings, name)) is not None}
        http |= _http(settings.http, folder, origin)
        if settings.fetch.allow is not None:
            services["fetch"] = services.get("fetch", {}) | {"allow": settings.fetch.allow}
        for name, table in _tables(settings, folder).items():
            if known_services is not None and name not in known_services:
                raise ConfigError(f"{origin}: there is no service {name!r}{nearest(name, known_services)}")
            services[name] = services.get(name, {}) | table
    return Config(
        data_dir=data_dir,
        roots=tuple(dict.fromkeys(roots)),
        http=_served(http),
        services=services,
        prompts_dir=prompts_dir,
        **plain,
    )


def _layers(data_dir: Path, flags: Flags, environment: Mapping[str, str]) -> Iterator[tuple[str, Path, Layer]]:
    """Where each layer is from, the folder that its relative paths start from, and the layer; the strongest last."""
    for standing in (data_dir / aliases.YAML_NAME, data_dir / FILE_NAME):
        if standing.exists():
            yield str(standing), standing.parent, read_file(standing)
    if named := flags.config_file or environment.get("LINCKIA_CONFIG"):
        path = Path(named).expanduser().absolute()
        yield str(path), path.parent, read_file(path)
    yield "the environment", Path.cwd(), by_other_names(environment)
    yield "the environment", Path.cwd(), from_environment(environment)
    yield "the command line", Path.cwd(), from_flags(flags)


def _tables(settings: Settings, folder: Path) -> dict[str, Layer]:
    """By service, what a layer says of it: in `[services.NAME]`, or in a table of the service's own."""
    tables = dict(settings.services)
    if settings.transcripts:
        tables["transcripts"] = tables.get("transcripts", {}) | settings.transcripts
    if settings.llm:
        tables["llm"] = settings.llm | tables.get("llm", {})
    if isinstance(key_file := tables.get("llm", {}).get("key_file"), str) and key_file:
        tables["llm"] = tables["llm"] | {"key_file": str(folder / Path(key_file).expanduser())}
    return tables


def _root(given: str, folder: Path, origin: str) -> Path:
    path = folder / Path(given).expanduser()
    try:
        real = path.resolve(strict=True)
    except OSError as error:
        raise ConfigError(
            f"{origin}: the root {given!r} does not exist ({error.strerror}); create it, or name another folder"
        ) from None
    if not real.is_dir():
        raise ConfigError(f"{origin}: the root {given!r} is a file; name the folder that holds it")
    if not os.access(real, os.R_OK | os.X_OK):
        raise ConfigError(f"{origin}: the root {given!r} may not be read by this user")
    return real


def _prompts_dir(path: Path, origin: str) -> Path:
    if not path.is_dir():
        raise ConfigError(f"{origin}: prompts.dir: there is no folder {path}; create it, or name another")
    return path.resolve()


def _http(settings: HttpSettings, folder: Path, origin: str) -> Layer:
    layer: Layer = {
        field.name: value
        for field in msgspec.structs.fields(HttpSettings)
        if (value := getattr(settings, field.name)) is not None
    }
    token_file = layer.pop("token_file", None)
    if token_file is not None:
        if "token" in layer:
            raise ConfigError(f"{origin}: http.token and http.token_file are both set; leave one of them")
        layer["token"] = _token(folder / Path(token_file).expanduser(), origin)
    return layer


def _token(path: Path, origin: str) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{origin}: http.token_file: cannot read {path}: {error}") from error
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(f"{origin}: http.token_file: {path} holds fewer than {MIN_TOKEN_CHARACTERS} characters")
    return token


def _served(layer: Mapping[str, object]) -> Http | None:
    layer = dict(layer)
    if not layer.pop("enabled", True):
        return None
    http = msgspec.convert(layer, Http)
    if not http.is_loopback and http.token is None:
        raise ConfigError(
            f"HTTP on {http.host} can be reached from other machines, and no token is set: set LINCKIA_TOKEN or "
            f"http.token_file, or listen on {DEFAULT_HOST}"
        )
    return http


__all__ = ["Config", "ConfigError", "Flags", "Http", "load"]
