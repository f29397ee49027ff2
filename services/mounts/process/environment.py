"""What a server is started with: its environment, headers, and limits, from the settings of its mount.

Secrets are read here: from variables that the kernel passes on, and from files. They are removed from everything that
the server writes to the log.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

import msgspec

from proto.mounts import REFERENCE, SECRET_NAME, MountName, MountSettings, is_url
from services.mounts.process.processes import MARKER

SECRET_CHARS = 6
"""Shorter values are not removed from logs: they would match everywhere."""

_OWN = re.compile(r"LINCKIA_|MALLOC_ARENA_MAX$|SQLITE_TMPDIR$")
"""Variables that are for Linckia's processes only."""

CACHES = "caches"
"""Folder for downloads of a confined server's runner, in the server's own folder."""

_RUNNER_CACHES = {
    "npm_config_cache": "npm",
    "UV_CACHE_DIR": "uv",
    "UV_TOOL_DIR": "uv-tools",
    "BUN_INSTALL_CACHE_DIR": "bun",
    "PIPX_HOME": "pipx",
    "PIPX_BIN_DIR": "pipx-programs",
    "PIPX_MAN_DIR": "pipx-manuals",
    "PIPX_COMPLETION_DIR": "pipx-completions",
    "PIP_CACHE_DIR": "pip",
}

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class AdapterSettings(MountSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of an adapter: those of its mount, the mount's name, and the secret of the cluster's driver."""

    mount: MountName
    driver: str = ""


class SettingProblem(Exception):
    """A setting cannot be used; the message names it, and no value."""


def size_bytes(text: str) -> int:
    """Return the number of bytes in a size such as `4GiB` or `512M` (powers of 1024). Raises SettingProblem."""
    if (found := _SIZE.fullmatch(text)) is None:
        raise SettingProblem(f"memory_limit: {text!r} is not a size such as 512MiB or 4GiB")
    return int(float(found[1]) * 1024 ** _POWERS[found[2].upper()])


class Secrets:
    """Values that must not appear in logs."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def add(self, value: str) -> str:
        """Note a value, and return it."""
        if len(value) >= SECRET_CHARS:
            self._values.add(value)
        return value

    def redact(self, text: str) -> str:
        """Return a text without the values."""
        for value in self._values:
            if value in text:
                text = text.replace(value, "***")
        return text


def _is_path(source: str) -> bool:
    return "/" in source


def _read(setting: str, path: str) -> str:
    try:
        return Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text"
        raise SettingProblem(f"{setting}: {path}: {why}") from None


def _variable(setting: str, name: str, given: Mapping[str, str]) -> str:
    if name not in given:
        raise SettingProblem(f"{setting}: the environment of Linckia has no variable {name}")
    return given[name]


def secret_of(setting: str, source: str, given: Mapping[str, str], secrets: Secrets) -> str:
    """Return a secret from a variable or, if `source` is a path, from a file. Raises SettingProblem."""
    value = _read(setting, source).strip() if _is_path(source) else _variable(setting, source, given)
    return secrets.add(value)


def environment_of(settings: MountSettings, given: Mapping[str, str], mark: str, secrets: Secrets) -> dict[str, str]:
    """Return the environment of the server.

    Args:
        given: the adapter's own environment.
        mark: by which its processes are found again.

    Raises SettingProblem.
    """
    found = {name: value for name, value in given.items() if not _OWN.match(name)}
    for source in settings.env_from:
        if _is_path(source):
            found.update(_variables_of(source, secrets))
        else:
            found[source] = secrets.add(_variable("env_from", source, given))
    for name, value in settings.env.items():
        if SECRET_NAME.search(name):
            secrets.add(value)
    return {**found, **settings.env, MARKER: mark}


def own_caches(settings: MountSettings, given: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return variables that let a confined server's runner (such as npx) keep its downloads in the server's own
    folder, since it cannot write to the user's caches. The user's own choices in `env` and the environment hold."""
    if not settings.confine:
        return {}
    found = {variable: str(folder / CACHES / name) for variable, name in _RUNNER_CACHES.items()}
    return {name: path for name, path in found.items() if name not in given and name not in settings.env}


def _variables_of(path: str, secrets: Secrets) -> dict[str, str]:
    """Return the variables in a file: `NAME=value` lines, or a JSON object if it is named so. Raises SettingProblem."""
    text = _read("env_from", path)
    if not path.endswith(".json"):
        return _variables_in(text, secrets)
    try:
        found = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        raise SettingProblem(f"env_from: {path}: not a JSON object of texts") from None
    return {name: secrets.add(value) for name, value in found.items()}


def _variables_in(text: str, secrets: Secrets) -> dict[str, str]:
    """Return the variables in a file of `NAME=value` lines, as shells and Docker write them."""
    found = {}
    for line in text.splitlines():
        name, assigned, value = line.strip().removeprefix("export ").partition("=")
        if assigned and name.strip() and not name.startswith("#"):
            value = value.strip()
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            found[name.strip()] = secrets.add(value)
    return found


def command_of(settings: MountSettings, given: Mapping[str, str], secrets: Secrets) -> list[str]:
    """Return the command line of the server. Raises SettingProblem."""
    texts = {
        placeholder: secret_of(f"args_from.{placeholder}", source, given, secrets)
        for placeholder, source in settings.args_from.items()
    }
    if not texts:
        return [settings.command, *settings.args]
    # In one pass, since a secret may contain another placeholder.
    placeholders = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
    return [settings.command, *(placeholders.sub(lambda found: texts[found[0]], each) for each in settings.args)]


def _header_of(setting: str, source: str, given: Mapping[str, str], secrets: Secrets) -> str:
    if not REFERENCE.search(source):
        return secret_of(setting, source, given, secrets)
    return REFERENCE.sub(lambda found: secrets.add(_variable(setting, found[1], given).strip()), source)


def headers_of(settings: MountSettings, given: Mapping[str, str], secrets: Secrets) -> dict[str, str]:
    """Return the headers for an HTTP server. Raises SettingProblem."""
    from_elsewhere = {
        name: _header_of(f"headers_from.{name}", source, given, secrets)
        for name, source in settings.headers_from.items()
    }
    for name, value in from_elsewhere.items():
        if name.lower() == "authorization":
            # Its credentials alone are a secret, too.
            secrets.add(value.partition(" ")[2])
    return {**settings.headers, **from_elsewhere}


def url_of(settings: MountSettings, given: Mapping[str, str], secrets: Secrets) -> str:
    """Return the address of an HTTP server. Raises SettingProblem."""
    if not settings.url_from:
        return settings.url
    url = secret_of("url_from", settings.url_from, given, secrets)
    if not is_url(url):
        raise SettingProblem("url_from: expected an address that starts with http:// or https://")
    # Messages may have only a part of it.
    parts = urllib.parse.urlsplit(url)
    for part in (parts.query, parts.netloc.rpartition("@")[0], parts.path.strip("/")):
        secrets.add(part)
    return url


def settings_from(table: Mapping[str, object]) -> AdapterSettings:
    """Return the settings. Raises SettingProblem."""
    try:
        settings = msgspec.convert(table, AdapterSettings)
    except msgspec.ValidationError as error:
        raise SettingProblem(str(error)) from None
    if bool(settings.command) == settings.is_remote:
        raise SettingProblem("set either `command` or `url`")
    size_bytes(settings.memory_limit)
    return settings
