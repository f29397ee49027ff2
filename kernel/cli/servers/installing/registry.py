"""The API of MCP registries (v0.1): search, and one version of a server."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel.cli.servers.installing.download import NotThere, check_address, downloaded
from kernel.cli.servers.installing.server_json import NAME, Listed, entry_from, page_from
from kernel.cli.servers.tables import flags_for
from kernel.cli.settings.loading import load
from kernel.configure.config import ConfigError
from proto.control.commands import Failed, Usage

PAGES: Final = 5
"""Pages of a search that are read at most: a registry that always has one more must not be read for ever."""

PAGE: Final = 100

_ACCEPTS: Final = {"Accept": "application/json"}


def address_of(data_dir: Path, option: str | None) -> str:
    """Return the address of the registry: the option's, or that of the settings. Raises Usage."""
    if option is not None:
        return check_address(option, "--registry")
    try:
        return check_address(load(flags_for(data_dir), os.environ).mcp_registry, "mcp_registry")
    except ConfigError as error:
        raise Usage(str(error)) from None


def search(registry: str, words: Sequence[str], limit: int, problems: list[str]) -> tuple[list[Listed], bool]:
    """Return the latest versions of servers that have all words, and whether there may be more. Raises Failed."""
    found: list[Listed] = []
    # The registry looks for one text in names; the longest word leaves the fewest to read.
    asked = max(words, key=len)
    rest = [word.lower() for word in words if word is not asked]
    seen: set[str] = set()
    for entries, problem in _pages(registry, asked):
        problems += problem
        for each in entries:
            server = each.server
            text = f"{server.name} {server.title} {server.description}".lower()
            if each.status.status != "deleted" and server.name not in seen and all(word in text for word in rest):
                seen.add(server.name)
                found.append(each)
        if len(found) > limit:
            return found[:limit], True
    return found, False


def _pages(registry: str, text: str) -> Iterator[tuple[list[Listed], list[str]]]:
    cursor = ""
    for _ in range(PAGES):
        query = {"search": text, "version": "latest", "limit": str(PAGE)} | ({"cursor": cursor} if cursor else {})
        page = page_from(_answer(registry, f"servers?{urllib.parse.urlencode(query)}"), registry)
        yield page.entries, page.problems
        if not page.next_cursor or page.next_cursor == cursor:
            return
        cursor = page.next_cursor


def one(registry: str, name: str, version: str) -> Listed:
    """Return one version of a server. Raises Failed, Usage."""
    if not re.fullmatch(NAME, name):
        raise Usage(
            f"{json.dumps(name)} is no server of a registry; their names look like io.github.user/weather, and "
            "`linckia mcp search WORDS` finds them"
        )
    path = f"servers/{urllib.parse.quote(name, safe='')}/versions/{urllib.parse.quote(version, safe='')}"
    try:
        found = entry_from(_answer(registry, path), registry)
    except NotThere:
        which = name if version == "latest" else f"{name} in version {json.dumps(version)}"
        word = name.rpartition("/")[2]
        raise Failed(f"{registry} has no server {which}; try `linckia mcp search {word}`") from None
    if found.server.name.lower() != name.lower() or version not in ("latest", found.server.version):
        raise Failed(f"{registry} answered with another server, {found.server.name} {found.server.version}")
    if found.status.status == "deleted":
        why = f": {found.status.status_message}" if found.status.status_message else ""
        raise Failed(f"{name} was deleted from the registry, so it is not installed{why}")
    return found


def _answer(registry: str, path: str) -> bytes:
    try:
        return downloaded(f"{registry}/v0.1/{path}", headers=_ACCEPTS)
    except NotThere:
        if path.startswith("servers?"):
            raise Failed(f"{registry} is not a registry: it has no /v0.1/servers") from None
        raise
