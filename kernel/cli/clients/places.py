"""Where MCP clients keep the lists of their servers. Only reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kernel.cli.servers.client_files import TABLES, Server, parsed, servers_in
from kernel.configure.config import ConfigError
from proto.json_types import JsonObject

PROJECTS: Final = {
    "claude-code": ".mcp.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "zed": ".zed/settings.json",
}
"""Settings files of projects, relative to the project's folder."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A server in a client's settings."""

    client: str
    path: Path
    workspace: Path
    """Folder in which the client starts it; the home directory if it is the user's, for all projects."""
    server: Server
    is_project: bool = False
    """Whether the file is part of a project, which somebody else may have written."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A settings file that a client may have."""

    client: str
    path: Path
    workspace: Path
    has_projects: bool = False
    """Whether it also has servers of single projects, as that of Claude Code."""
    is_project: bool = False
    """Whether the file is part of a project."""


def places(home: Path, here: Path, environment: Mapping[str, str], platform: str = sys.platform) -> list[Place]:
    """Return the files that may list servers: the user's, and those of the project in the folder `here`."""
    if platform == "darwin":
        applications = home / "Library" / "Application Support"
    elif platform == "win32":
        applications = Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        applications = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    users = {
        "claude-code": [Path(environment.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"],
        "claude-desktop": [applications / "Claude" / "claude_desktop_config.json"],
        "cursor": [home / ".cursor" / "mcp.json"],
        "vscode": [applications / name / "User" / "mcp.json" for name in ("Code", "Code - Insiders")],
        "codex": [Path(environment.get("CODEX_HOME") or home / ".codex") / "config.toml"],
        "copilot-cli": [Path(environment.get("COPILOT_HOME") or home / ".copilot") / "mcp-config.json"],
        "gemini": [home / ".gemini" / "settings.json"],
        "zed": [(home / ".config" if platform == "darwin" else applications) / "zed" / "settings.json"],
    }
    found = [
        Place(client=client, path=path, workspace=home, has_projects=client == "claude-code")
        for client, paths in users.items()
        for path in paths
    ]
    known = {place.path for place in found}
    projects = ((client, here / path) for client, path in PROJECTS.items())
    return found + [
        Place(client=client, path=path, workspace=here, is_project=True)
        for client, path in projects
        if path not in known
    ]


def settings_file(client: str, home: Path, here: Path, environment: Mapping[str, str], *, project: bool) -> Path | None:
    """Return the file in which a client looks for servers: the user's, or with `project` that of the project in `here`;
    None if it has none for projects."""
    if project:
        return here / PROJECTS[client] if client in PROJECTS else None
    return next(place.path for place in places(home, here, environment) if place.client == client)


def servers(place: Place, problems: list[str]) -> Iterator[Found]:
    """Yield the servers in a file, if it exists; `problems` gets what cannot be read."""
    if not os.path.lexists(place.path):
        return
    try:
        content = parsed(place.path)
    except ConfigError as error:
        problems.append(str(error))
        return
    listed = [(place.workspace, content)]
    if place.has_projects and isinstance(projects := content.get("projects"), dict):
        listed += [(Path(path), project) for path, project in projects.items() if isinstance(project, dict)]
    for workspace, holder in listed:
        where = str(place.path) if holder is content else f"{place.path}: projects.{workspace}"
        for server in _listed(holder, where, problems):
            yield Found(
                client=place.client, path=place.path, workspace=workspace, server=server, is_project=place.is_project
            )


def _listed(holder: JsonObject, where: str, problems: list[str]) -> list[Server]:
    # Most of these files contain other settings too, so that having no servers is no mistake.
    if not any(key in holder for key in TABLES):
        return []
    try:
        return servers_in(holder, where)
    except ConfigError as error:
        problems.append(f"{error}; its servers are left out")
        return []
