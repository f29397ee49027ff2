"""The settings in force: the files, then the environment, then flags (`kernel.settings`), each over the one before.

Everything is checked before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from kernel.control.address import find_data_dir
from kernel.settings import (
    REST_AFTER_S,
    ConfigError,
    Flags,
    Settings,
    check,
    from_environment,
    from_file,
    from_flags,
    from_other_names,
)
from proto.front import DEFAULT_HOST, MIN_TOKEN_CHARACTERS, Http
from proto.json_types import Layer

FILE_NAMES = ("config.yaml", "linckia.toml")
"""In the data directory, the stronger one last."""

PLAIN = ("log_level", "own_users", "standbys", "rest_after_s")
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


def load(flags: Flags, environment: Mapping[str, str]) -> Config:
    """The settings in force.  Raises ConfigError: names the setting and where it was made."""
    data_dir = find_data_dir(flags.data_dir, environment)
    roots: tuple[Path, ...] = ()
    prompts_dir: Path | None = None
    http: Layer = {}
    plain: Layer = {}
    services: dict[str, Layer] = {}
    for origin, folder, raw in _layers(data_dir, flags, environment):
        settings = check(raw, origin)
        if "roots" in raw:
            roots = tuple(_root(given, folder, origin) for given in settings.roots)
        if settings.prompts.dir is not None:
            prompts_dir = (folder / Path(settings.prompts.dir).expanduser()).resolve()
            if not prompts_dir.is_dir():
                missing = f"there is no folder {prompts_dir}; create it, or name another"
                raise ConfigError(f"{origin}: prompts.dir: {missing}")
        plain |= {name: getattr(settings, name) for name in PLAIN if name in raw}
        http |= _with_token(raw.get("http", {}), folder, origin)
        for name, table in _tables(settings, folder).items():
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
    files = [path for name in FILE_NAMES if (path := data_dir / name).exists()]
    if named := flags.config_file or environment.get("LINCKIA_CONFIG"):
        files.append(Path(named).expanduser().absolute())
    for path in files:
        yield str(path), path.parent, from_file(path)
    yield "the environment", Path.cwd(), from_other_names(environment)
    yield "the environment", Path.cwd(), from_environment(environment)
    yield "the command line", Path.cwd(), from_flags(flags)


def _tables(settings: Settings, folder: Path) -> dict[str, Layer]:
    """By service, what a layer says of it: in `[services.NAME]`, or in a table of the service's own."""
    tables = dict(settings.services)
    if settings.fetch.allow is not None:
        tables["fetch"] = {"allow": settings.fetch.allow} | tables.get("fetch", {})
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


def _with_token(http: Layer, folder: Path, origin: str) -> Layer:
    """A layer of `[http]` with the token that its file holds."""
    if (token_file := http.get("token_file")) is None:
        return http
    if "token" in http:
        raise ConfigError(f"{origin}: http.token and http.token_file are both set; leave one of them")
    path = folder / Path(token_file).expanduser()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{origin}: http.token_file: cannot read {path}: {error}") from error
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(f"{origin}: http.token_file: {path} holds fewer than {MIN_TOKEN_CHARACTERS} characters")
    return {**http, "token": token}


def _served(layer: Layer) -> Http | None:
    http = msgspec.convert(layer, Http)
    if not http.enabled:
        return None
    if not http.is_loopback and http.token is None:
        raise ConfigError(
            f"HTTP on {http.host} can be reached from other machines, and no token is set: set LINCKIA_TOKEN or "
            f"http.token_file, or listen on {DEFAULT_HOST}"
        )
    return http


__all__ = ["Config", "ConfigError", "Flags", "Http", "load"]
