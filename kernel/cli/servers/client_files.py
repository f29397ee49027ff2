"""Reads the servers that MCP clients have in their own settings files, as tables like `[mcp.NAME]`.

JSON with `mcpServers` (Claude, Cursor) or `servers` (VS Code), with comments and trailing commas, and Codex's TOML. The
variables that clients expand are expanded here too, except that a value which is only a variable, and a header with
variables, stay references. An entry with a mistake is named, and the others are read.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from kernel.cli.settings.mount_settings import Mounts, is_variable, problem_of
from kernel.configure.config import ConfigError
from proto.json_types import JsonObject, Layer
from proto.mounts import TABLE

IGNORED: Final = frozenset({"type", "transport", "source", "name", "description", "version", "gallery", "icon", "dev"})
"""Members that say nothing about how to start the server; `type` and `transport` are read with `url`."""

CLIENTS_OWN: Final = ("workspaceFolder", "workspaceFolderBasename", "CLAUDE_PROJECT_DIR", "userHome", "pathSeparator")
"""Variables that clients set themselves."""

TRANSPORTS: Final = {"sse": "sse", "http": "http", "streamable-http": "http", "streamableHttp": "http", "remote": None}
_COMMAND_TYPES: Final = ("stdio", "local")

TABLES: Final = ("mcpServers", "servers", "mcp_servers", "context_servers")
"""Names under which clients list their servers."""

_PLAIN: Final = ("command", "args", "cwd", "env", "url", "headers", "enabled")
"""Members with the same name and meaning in a table."""

_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_PLAIN_VARIABLE = re.compile(r"(?:env:)?([A-Za-z_]\w*)")
_ONLY_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)\}")
_NAME = re.compile(r"([A-Za-z_]\w*)(?::-(.*))?", re.DOTALL)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server in a client's file."""

    name: str
    """As the client names it."""
    members: JsonObject
    problem: str = ""
    """Why the entry cannot be read at all."""
    notes: tuple[str, ...] = ()
    """What the user should know about the entry."""


_Text: TypeAlias = str | bool | int | float | None


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The types of an entry's members. A member that is null counts as absent."""

    command: str | None = None
    args: list[str | int | float] | None = None
    cwd: str | None = None
    env: dict[str, _Text] | None = None
    env_file: str | None = msgspec.field(default=None, name="envFile")
    env_vars: list[str | _Variable] | None = None
    url: str | None = None
    server_url: str | None = msgspec.field(default=None, name="serverUrl")
    http_url: str | None = msgspec.field(default=None, name="httpUrl")
    type: str | None = None
    transport: str | None = None
    headers: dict[str, _Text] | None = None
    http_headers: dict[str, _Text] | None = None
    env_http_headers: dict[str, str] | None = None
    bearer_token_env_var: str | None = None
    enabled: bool | None = None
    disabled: bool | None = None
    enabled_tools: list[str] | None = None
    disabled_tools: list[str] | None = None
    include_tools: list[str] | None = msgspec.field(default=None, name="includeTools")
    exclude_tools: list[str] | None = msgspec.field(default=None, name="excludeTools")


class _Variable(msgspec.Struct, frozen=True):
    """An item of Codex's `env_vars`."""

    name: str


class _Object(dict[str, Any]):
    """A JSON object, and the names that it has more than once; the last member of a name counts, as for clients."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = {name for name, count in Counter(name for name, _ in pairs).items() if count > 1}


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of a file, as tables by name of the mount."""

    folder: Path
    """The folder in which the client starts them."""
    tables: dict[str, Layer]
    warnings: list[str]


def read(path: Path, environment: Mapping[str, str], services: Collection[str]) -> Listed:
    """Read a file of servers to mount; one with a mistake is left out, with a warning. Raises ConfigError if the file
    cannot be read.

    `services`: names that mounts may not have; such a server is renamed, with a warning.
    """
    folder = workspace_of(path)
    tables: dict[str, Layer] = {}
    warnings: list[str] = []
    for server in servers_in(parsed(path), str(path)):
        where = f"{path}: {server.name}"
        name = mount_name(server.name, [*services, *map(service_name, tables)])
        try:
            table, notes = table_of(server, Variables(environment, folder), where)
        except ConfigError as error:
            warnings.append(f"{error}; the server is left out")
            continue
        if name != server.name:
            warnings.append(f"{where}: the server is mounted as {name!r}")
        warnings += notes
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
        content = tomllib.loads(text) if path.suffix == ".toml" else _json(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ConfigError(f"{path} is not valid {kind}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected an object with `mcpServers` or `servers`")
    return content


def _json(text: str) -> object:
    return json.loads(plain_json(text) or "{}", object_pairs_hook=_Object)


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
    repeated = found.repeated if isinstance(found, _Object) else ()
    for name, members in found.items():
        if not isinstance(members, dict):
            yield Server(name=name, members={}, problem=f"{where}.{name}: expected an object with `command` or `url`")
            continue
        again = (f"{where}.{name} is there more than once; the last one counts",) if name in repeated else ()
        yield Server(name=name, members=members, notes=again)


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
    """Return a server's table, and what the user should know about it. Raises ConfigError."""
    if server.problem:
        raise ConfigError(server.problem)
    given = {name: value for name, value in server.members.items() if value is not None}
    if isinstance(command := given.get("command"), dict):
        # As Zed wrote it in earlier versions.
        given |= {"command": command.get("path"), "args": command.get("args"), "env": command.get("env")}
        given = {name: value for name, value in given.items() if value is not None}
    _check_types(given, where)
    _check_variables(given, where)
    notes = list(server.notes)
    for theirs, transport in (("serverUrl", None), ("httpUrl", "http")):
        if (url := given.pop(theirs, None)) is not None and "url" not in given:
            given["url"] = url
            given.setdefault("type", transport)
    _check_kind(given, where)
    table: Layer = {name: given.pop(name) for name in _PLAIN if name in given}
    if "cwd" not in table and "command" in table:
        table["cwd"] = "${workspaceFolder}"
    if "url" in table and (kind := TRANSPORTS.get(str(given.get("type") or given.get("transport")))) is not None:
        table["transport"] = kind
    if given.pop("disabled", False) is True:
        table["enabled"] = False
    if "envFile" in given:
        path = given.pop("envFile")
        # A name without a slash could be that of a variable.
        table["env_from"] = [path if "/" in path or path.startswith("${") else f"./{path}"]
    if "args" in table:
        table["args"] = list(map(_text, table["args"]))
    _take_codex(given, table)
    for name in ("env", "headers"):
        # Clients accept numbers here, and pass them on as text.
        if name in table:
            table[name] = {key: _text(value) for key, value in table[name].items() if value is not None}
    _keep_references(table)
    if _is_shell_of_windows(table):
        table["command"], *table["args"] = table["args"][1:]
        notes.append(f"{where}: `cmd /c` is left out: it belongs to Windows")
    kept = {"headers_from": table.pop("headers_from")} if "headers_from" in table else {}
    expanded = {name: variables.expanded(value, f"{where}.{name}") for name, value in table.items()} | kept
    notes += [f"{where}.{member} is not known, and ignored" for member in given if member not in IGNORED]
    _check_table(expanded, where)
    return expanded, notes


def _check_types(given: JsonObject, where: str) -> None:
    try:
        msgspec.convert(given, _Known)
    except msgspec.ValidationError as error:
        # The value itself is not quoted: it may be a secret.
        problem, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`")
        raise ConfigError(f"{where}{path}: {problem[0].lower()}{problem[1:]}") from None


def _check_variables(given: JsonObject, where: str) -> None:
    """Require names of variables where Codex has them. Raises ConfigError."""
    named = [("bearer_token_env_var", given.get("bearer_token_env_var", "X"))]
    named += [("env_vars", each["name"] if isinstance(each, dict) else each) for each in given.get("env_vars", ())]
    named += [(f"env_http_headers.{header}", each) for header, each in given.get("env_http_headers", {}).items()]
    for member, name in named:
        if not is_variable(name):
            raise ConfigError(f"{where}.{member}: expected the name of a variable: letters, digits and _")


def _check_kind(given: JsonObject, where: str) -> None:
    """Require a command or an address, and a type that fits. Raises ConfigError."""
    has_command, has_url = bool(given.get("command")), bool(given.get("url"))
    if has_command == has_url:
        problem = "both `command` and `url`; only one can count" if has_url else "neither `command` nor `url`"
        raise ConfigError(f"{where}: it has {problem}")
    for member in ("type", "transport"):
        kind = given.get(member)
        if kind is None:
            continue
        if kind not in (*TRANSPORTS, *_COMMAND_TYPES):
            raise ConfigError(f"{where}.{member}: {kind!r} is not known; it must be stdio, http or sse")
        if has_command and kind in TRANSPORTS:
            raise ConfigError(f"{where}.{member}: it is {kind!r}, which needs `url` instead of `command`")
        if has_url and kind in _COMMAND_TYPES:
            raise ConfigError(f"{where}.{member}: it is {kind!r}, which needs `command` instead of `url`")


def _check_table(table: Layer, where: str) -> None:
    """Check the table as those of settings files are. Raises ConfigError."""
    mounts = Mounts()
    try:
        mounts.add({_ANY_NAME: {**table, "enabled": True}}, Path("/"), where)
        mounts.merged()
    except ConfigError as error:
        raise ConfigError(str(error).replace(f": {TABLE}.{_ANY_NAME}", "", 1)) from None


def _is_shell_of_windows(table: Layer) -> bool:
    """Return whether the command is the shell that starts `npx` on Windows, in a file that several systems share."""
    args = table.get("args", [])
    is_shell = table.get("command", "").lower() in ("cmd", "cmd.exe") and len(args) > 1 and args[0].lower() == "/c"
    return is_shell and sys.platform != "win32"


_ANY_NAME: Final = "server"


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


_CODEX_TOOLS: Final = {
    "enabled_tools": "allow",
    "disabled_tools": "deny",
    # Those of Gemini.
    "includeTools": "allow",
    "excludeTools": "deny",
}


def _keep_references(table: Layer) -> None:
    """Name variables in `env_from` and `headers_from` whose values are passed on unchanged, or within a header."""
    if env := table.pop("env", {}):
        only = [name for name, value in env.items() if (found := _ONLY_VARIABLE.fullmatch(value)) and found[1] == name]
        only = [name for name in only if name not in CLIENTS_OWN]
        if only:
            table["env_from"] = [*table.get("env_from", []), *only]
        if rest := {name: value for name, value in env.items() if name not in only}:
            table["env"] = rest
    if headers := table.pop("headers", {}):
        kept = {name: source for name, value in headers.items() if (source := _source_of(value))}
        if kept:
            table["headers_from"] = {**table.get("headers_from", {}), **kept}
        if rest := {name: value for name, value in headers.items() if name not in kept}:
            table["headers"] = rest


def _source_of(value: str) -> str:
    """Return a header's value for `headers_from`, if it has variables and nothing that only the client knows."""
    references = _REFERENCE.findall(value)
    found = [_PLAIN_VARIABLE.fullmatch(each) for each in references]
    if not found or any(each is None or each[1] in CLIENTS_OWN for each in found):
        return ""
    if only := _ONLY_VARIABLE.fullmatch(value):
        return only[1]
    return _REFERENCE.sub(lambda each: f"${{{each[1].removeprefix('env:')}}}", value)
