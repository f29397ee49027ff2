"""Where MCP clients keep the lists of their servers, for `linckia mcp import`. Only reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from linckia.kernel.client_files import Server, parsed, servers_in
from linckia.kernel.settings import ConfigError
from linckia.proto.json_types import JsonObject


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A server in a client's settings."""

    client: str
    path: Path
    workspace: Path
    """Folder in which the client starts it; the home directory if it is the user's, for all projects."""
    server: Server


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A settings file that a client may have."""

    client: str
    path: Path
    workspace: Path
    has_projects: bool = False
    """Whether it also has servers of single projects, as that of Claude Code."""


def places(home: Path, here: Path, environment: Mapping[str, str], platform: str = sys.platform) -> list[Place]:
    """Return the files that may list servers: the user's, and those of the project in the folder `here`."""
    if platform == "darwin":
        applications = home / "Library" / "Application Support"
    elif platform == "win32":
        applications = Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        applications = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    claude = Path(environment.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
    codex = Path(environment.get("CODEX_HOME") or home / ".codex") / "config.toml"
    users = [
        ("claude-desktop", applications / "Claude" / "claude_desktop_config.json"),
        ("cursor", home / ".cursor" / "mcp.json"),
        ("vscode", applications / "Code" / "User" / "mcp.json"),
        ("vscode", applications / "Code - Insiders" / "User" / "mcp.json"),
        ("codex", codex),
    ]
    projects = [
        ("claude-code", here / ".mcp.json"),
        ("cursor", here / ".cursor" / "mcp.json"),
        ("vscode", here / ".vscode" / "mcp.json"),
        ("codex", here / ".codex" / "config.toml"),
    ]
    found = [Place(client="claude-code", path=claude, workspace=home, has_projects=True)]
    found += [Place(client=client, path=path, workspace=home) for client, path in users]
    known = {place.path for place in found}
    return found + [Place(client=client, path=path, workspace=here) for client, path in projects if path not in known]


def servers(place: Place) -> Iterator[Found]:
    """Yield the servers in a file, if it exists. Raises ConfigError."""
    if not os.path.lexists(place.path):
        return
    content = parsed(place.path)
    listed = [(place.workspace, content)]
    if place.has_projects and isinstance(projects := content.get("projects"), dict):
        listed += [(Path(path), project) for path, project in projects.items() if isinstance(project, dict)]
    for workspace, holder in listed:
        for server in _listed(holder, str(place.path)):
            yield Found(client=place.client, path=place.path, workspace=workspace, server=server)


def _listed(holder: JsonObject, where: str) -> list[Server]:
    # Most of these files contain other settings too, so that having no servers is no mistake.
    if not any(key in holder for key in ("mcpServers", "servers", "mcp_servers")):
        return []
    try:
        return servers_in(holder, where)
    except ConfigError as error:
        raise ConfigError(f"{error}; this file was left out") from None
