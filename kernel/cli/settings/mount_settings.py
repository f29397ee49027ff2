"""The tables `[mcp.NAME]` of the settings, one for each mounted MCP server (`proto.mounts.MountSettings`).

Each layer's tables are checked on their own, so that a message names the file; what depends on several keys is checked
once all layers are merged, by the template that makes the service.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import structs

from kernel.cli.settings.layers import check_names
from kernel.configure import manifests
from kernel.configure.config import ConfigError
from proto.json_types import Layer
from proto.mounts import NAME_PATTERN, REFERENCE, TABLE, MountSettings, is_name, service_of
from proto.operation import SURFACES

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

TAKEN: Final = ("kernel", "session", *SURFACES)
"""Names that no mount may have: URLs are named after them."""


class Mounts:
    """Merges the tables of all layers, key by key."""

    def __init__(self) -> None:
        self._tables: dict[str, Layer] = {}
        self._names: dict[str, str] = {}
        """Names of the mounts, by that of the service."""
        self._origins: dict[str, str] = {}
        self.files: list[str] = []
        """Files with secrets that the tables name."""

    def add(self, tables: Mapping[str, object], folder: Path, origin: str, *, is_file: bool = True) -> None:
        """Merge a layer's tables over those before. Raises ConfigError.

        The environment writes `-` in names as `_`, so names that are not from a file match in either form.
        """
        for given, written in tables.items():
            name = given if is_file else self._names.get(service_of(given), given)
            self._check_name(name, origin)
            table = with_real_paths(_checked(f"{TABLE}.{name}", written, origin), folder)
            self.files += files_of(table)
            self._tables[name] = self._tables.get(name, {}) | table
            self._names[service_of(name)] = name
            self._origins[name] = origin

    def merged(self, packages: Collection[str] = (), client_id: str = "") -> dict[str, Layer]:
        """Return the tables of the enabled mounts; `client_id` is for those without one. Raises ConfigError."""
        if client_id and not re.match(r"https://[^/\s]+/\S", client_id):
            raise ConfigError(
                "mcp_client_id: expected the address of a document, such as https://example.org/linckia.json"
            )
        by_table = {each.template.table: each for each in manifests.templates(packages)}
        enabled = {name: table for name, table in self._tables.items() if table.get("enabled", True)}
        for name, table in enabled.items():
            if client_id and "oauth" in table and _is_for_persons(table["oauth"]):
                table["oauth"] = {"client_id": client_id, **table["oauth"]}
            try:
                by_table[TABLE].made(name, table)
            except ValueError as error:
                raise ConfigError(f"{self._origins[name]}: {error}") from None
        return enabled

    def disabled(self) -> list[str]:
        """Return the names of the mounts that are not enabled."""
        return [name for name, table in self._tables.items() if not table.get("enabled", True)]

    def _check_name(self, name: str, origin: str) -> None:
        problem = problem_of(name)
        other = self._names.get(service_of(name), name)
        if not problem and other != name:
            problem = f"there already is a server {other!r}, and names must differ in more than - and _"
        if problem:
            raise ConfigError(f"{origin}: {TABLE}.{name}: {problem}")


def _is_for_persons(oauth: Layer) -> bool:
    """Return whether a person logs in, so that the client may be one that describes itself."""
    return bool(oauth.get("flow", "authorization_code") == "authorization_code")


def problem_of(name: str) -> str:
    """Return why no mount may have this name, with a remedy; empty if one may."""
    if not is_name(name):
        return f"names of servers are lower case, at most 32 letters, digits, - and _ ({NAME_PATTERN})"
    if name in TAKEN:
        return f"Linckia has its own {name!r}; name the server otherwise, such as {name}-mcp"
    return ""


def _checked(what: str, table: object, origin: str) -> Layer:
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: {what}: expected a table, such as [{what}], got {table!r}")
    check_names(table, MountSettings, f"{what}.", origin)
    for field in structs.fields(MountSettings):
        if field.name in table:
            try:
                msgspec.convert(table[field.name], field.type)
            except msgspec.ValidationError as error:
                # The value itself is not quoted: it may be a secret.
                problem, _, where = str(error).partition(" - at `$")
                where = where.rstrip("`")
                raise ConfigError(f"{origin}: {what}.{field.name}{where}: {problem[0].lower()}{problem[1:]}") from None
    return table


def is_variable(source: str) -> bool:
    """Return whether an item of `env_from` and the like is the name of a variable, not the path of a file."""
    return _VARIABLE.fullmatch(source) is not None


def has_variables(source: str) -> bool:
    """Return whether an item of `headers_from` is the name of a variable, or a text with variables."""
    return is_variable(source) or REFERENCE.search(source) is not None


def with_real_paths(table: Layer, folder: Path) -> Layer:
    """Return the table with relative paths resolved against `folder`, that of the settings file."""

    def path(text: str) -> str:
        return str(folder / Path(text).expanduser())

    def source(text: str) -> str:
        return text if is_variable(text) else path(text)

    found = dict(table)
    if found.get("cwd"):
        found["cwd"] = path(found["cwd"])
    if "/" in found.get("command", ""):
        found["command"] = path(found["command"])
    if "roots" in found:
        found["roots"] = [path(each) for each in found["roots"]]
    if "env_from" in found:
        found["env_from"] = [source(each) for each in found["env_from"]]
    if "args_from" in found:
        found["args_from"] = {name: source(each) for name, each in found["args_from"].items()}
    if "headers_from" in found:
        found["headers_from"] = {
            header: each if has_variables(each) else path(each) for header, each in found["headers_from"].items()
        }
    if found.get("url_from"):
        found["url_from"] = source(found["url_from"])
    if secret := found.get("oauth", {}).get("client_secret_from"):
        found["oauth"] = {**found["oauth"], "client_secret_from": source(secret)}
    return found


def files_of(table: Layer) -> list[str]:
    """Return the files with secrets that a table with resolved paths names."""
    headers = (each for each in table.get("headers_from", {}).values() if not has_variables(each))
    sources = [*table.get("env_from", []), *table.get("args_from", {}).values(), *headers]
    sources.append(table.get("url_from", ""))
    sources.append(table.get("oauth", {}).get("client_secret_from", ""))
    return [each for each in sources if each.startswith("/")]
