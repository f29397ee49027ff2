"""Reads the servers that MCP clients have in their own settings files, as tables like `[mcp.NAME]`.

JSON with `mcpServers` (Claude, Cursor) or `servers` (VS Code), with comments and trailing commas, and Codex's TOML. The
variables that clients expand are expanded here too, except that a value which is only a variable stays a reference.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from linckia.kernel.mount_settings import problem_of
from linckia.kernel.settings import ConfigError
from linckia.proto.json_types import JsonObject, Layer

IGNORED: Final = frozenset({"type", "transport", "source", "name", "description", "version", "gallery", "icon", "dev"})
"""Members that say nothing about how to start the server; `type` and `transport` are read with `url`."""

CLIENTS_OWN: Final = ("workspaceFolder", "workspaceFolderBasename", "CLAUDE_PROJECT_DIR", "userHome", "pathSeparator")
"""Variables that clients set themselves."""

TRANSPORTS: Final = {"sse": "sse", "http": "http", "streamable-http": "http", "streamableHttp": "http"}

TABLES: Final = ("mcpServers", "servers", "mcp_servers", "context_servers")
"""Names under which clients list their servers."""

_PLAIN: Final = ("command", "args", "cwd", "env", "url", "headers", "enabled")
"""Members with the same name and meaning in a table."""

_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_ONLY_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)\}")
_NAME = re.compile(r"([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server in a client's file."""

    name: str
    """As the client names it."""
    members: JsonObject


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a file, as tables by name of the mount."""

    folder: Path
    """The folder in which the client starts them."""
    tables: dict[str, Layer]
    warnings: list[str]


def read(path: Path, environment: Mapping[str, str], services: Collection[str]) -> Listed:
    """Read a file of servers to mount. Raises ConfigError, which names the file and the server.

    `services`: names that mounts may not have; such a server is renamed, with a warning.
    """
    folder = workspace_of(path)
    tables: dict[str, Layer] = {}
    warnings = []
    for server in servers_in(parsed(path), str(path)):
        where = f"{path}: {server.name}"
        name = mount_name(server.name, [*services, *map(service_name, tables)])
        table, unknown = table_of(server, Variables(environment, folder), where)
        if name != server.name:
            warnings.append(f"{where}: the server is mounted as {name!r}")
        warnings += [f"{where}.{member} is not known, and ignored" for member in unknown]
        tables[name] = table
    return Listed(folder=folder, tables=tables, warnings=warnings)


def service_name(mount: str) -> str:
    """Return the name in the form in which `mount_name` compares names."""
    return mount.replace("-", "_")


def workspace_of(path: Path) -> Path:
    """Return the folder in which clients start the servers of a file."""
    return path.parent.parent if path.parent.name in (".vscode", ".cursor", ".codex") else path.parent


def parsed(path: Path) -> JsonObject:
    """Return the content of a client's file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(plain_json(text) or "{}")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ConfigError(f"{path} is not valid {kind}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected an object with `mcpServers` or `servers`")
    return content


def plain_json(text: str) -> str:
    """Return JSON without comments and trailing commas; line numbers stay the same."""
    text = _COMMENT.sub(lambda found: found[1] or "\n" * found[0].count("\n"), text)
    return _COMMA.sub(lambda found: found[1] or "", text).strip()


def servers_in(content: JsonObject, where: str) -> list[Server]:
    """Return the servers in a client's settings. Raises ConfigError if there is no list of servers."""
    inner = content.get("mcp")
    for holder in (content, inner if isinstance(inner, dict) else {}):
        for key in TABLES:
            if key in holder:
                return list(_servers(holder[key], f"{where}: {key}"))
    raise ConfigError(f"{where}: it has neither `mcpServers` (Claude, Cursor) nor `servers` (VS Code)")


def _servers(found: object, where: str) -> Iterator[Server]:
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: expected an object with a member for each server")
    for name, members in found.items():
        if not isinstance(members, dict):
            raise ConfigError(f"{where}.{name}: expected an object with `command` or `url`")
        yield Server(name=name, members=members)


def mount_name(given: str, taken: Collection[str]) -> str:
    """Return a name that a mount may have, as similar as possible to the client's name, and not in `taken`."""
    base = re.sub(r"[^a-z0-9_-]+", "-", given.lower()).strip("-_")
    base = base if base[:1].isalpha() else f"mcp-{base}".rstrip("-")
    name, number = base[:32].rstrip("-_"), 1
    while name in taken or problem_of(name):
        ending = "-mcp" if number == 1 else f"-mcp-{number}"
        name, number = base[: 32 - len(ending)] + ending, number + 1
    return name


def names_variable(value: object) -> bool:
    """Return whether a text contains a variable that the client does not set itself."""
    return isinstance(value, str) and any(name not in CLIENTS_OWN for name in _REFERENCE.findall(value))


class Variables:
    """Expands `${…}` as clients do."""

    def __init__(self, environment: Mapping[str, str], workspace: Path) -> None:
        self._environment = environment
        self._own = {
            "workspaceFolder": str(workspace),
            "workspaceFolderBasename": workspace.name,
            "CLAUDE_PROJECT_DIR": str(workspace),
            "userHome": str(Path.home()),
            "pathSeparator": "/",
            "/": "/",
        }

    def expanded(self, value: object, where: str) -> object:
        """Return the value with the variables in all its strings replaced. Raises ConfigError."""
        if isinstance(value, str):
            return _REFERENCE.sub(lambda found: self._value(found[1], where), value)
        if isinstance(value, list):
            return [self.expanded(each, where) for each in value]
        if isinstance(value, dict):
            return {name: self.expanded(each, f"{where}.{name}") for name, each in value.items()}
        return value

    def _value(self, reference: str, where: str) -> str:
        kind, colon, rest = reference.partition(":")
        if kind == "input" and colon:
            asked = "only VS Code can ask for it; write ${env:NAME} instead, and set that variable"
            raise ConfigError(f"{where}: ${{{reference}}} is an input, and {asked}")
        if reference in self._own:
            return self._environment.get(reference, self._own[reference])
        found = _NAME.fullmatch(rest if kind == "env" and colon else reference)
        if found is None:
            raise ConfigError(f"{where}: ${{{reference}}} is not known; write the value itself, or ${{env:NAME}}")
        value = self._environment.get(found[1])
        value = value or found[2] if found[2] is not None else value
        if value is None:
            raise ConfigError(f"{where}: the environment variable {found[1]} is not set")
        return value


def table_of(server: Server, variables: Variables, where: str) -> tuple[Layer, list[str]]:
    """Return a server's table, and the members that are not known. Raises ConfigError."""
    given = {name: value for name, value in server.members.items() if value is not None}
    table: Layer = {name: given.pop(name) for name in _PLAIN if name in given}
    if "cwd" not in table and "command" in table:
        table["cwd"] = "${workspaceFolder}"
    if (url := given.pop("serverUrl", None)) is not None:
        table.setdefault("url", url)
    transport = TRANSPORTS.get(str(given.get("type", given.get("transport"))))
    if "url" in table and transport is not None:
        table["transport"] = transport
    if given.pop("disabled", False) is True:
        table["enabled"] = False
    if "envFile" in given:
        table["env_from"] = [given.pop("envFile")]
    _take_codex(given, table)
    _keep_references(table)
    if isinstance(table.get("env"), dict):
        # Clients accept numbers here, and pass them on as text.
        table["env"] = {name: _text(value) for name, value in table["env"].items()}
    expanded = {name: variables.expanded(value, f"{where}.{name}") for name, value in table.items()}
    return expanded, [name for name in given if name not in IGNORED]


def _text(value: object) -> object:
    return json.dumps(value) if isinstance(value, int | float) else value


def _take_codex(given: JsonObject, table: Layer) -> None:
    """Move Codex's members to the table."""
    for theirs, ours in (("http_headers", "headers"), ("env_http_headers", "headers_from")):
        if theirs in given:
            table[ours] = given.pop(theirs)
    for theirs, ours in (("tool_timeout_sec", "timeout"), ("startup_timeout_sec", "start_timeout")):
        if theirs in given:
            table[ours] = given.pop(theirs)
    chosen = {ours: given.pop(theirs) for theirs, ours in _CODEX_TOOLS.items() if theirs in given}
    if chosen:
        table["tools"] = chosen
    if "env_vars" in given:
        names = [each.get("name") if isinstance(each, dict) else each for each in given.pop("env_vars")]
        table["env_from"] = [*table.get("env_from", []), *names]
    if "bearer_token_env_var" in given:
        token = f"Bearer ${{{given.pop('bearer_token_env_var')}}}"
        table["headers"] = {**table.get("headers", {}), "Authorization": token}


_CODEX_TOOLS: Final = {"enabled_tools": "allow", "disabled_tools": "deny"}


def _keep_references(table: Layer) -> None:
    """Name variables in `env_from` and `headers_from` whose values are passed on unchanged."""
    for literal, source in (("env", "env_from"), ("headers", "headers_from")):
        values = table.get(literal)
        if not isinstance(values, dict):
            continue
        only = {
            name: found[1]
            for name, value in values.items()
            if isinstance(value, str) and (found := _ONLY_VARIABLE.fullmatch(value)) and found[1] not in CLIENTS_OWN
        }
        if literal == "env":
            only = {name: variable for name, variable in only.items() if name == variable}
            if only:
                table[source] = [*table.get(source, []), *only]
        elif only:
            table[source] = {**table.get(source, {}), **only}
        rest = {name: value for name, value in values.items() if name not in only}
        if rest:
            table[literal] = rest
        else:
            del table[literal]
