"""Where agents usually keep their conversations, on each system, for an import without a path."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from services.transcripts.manifest import AGENTS
from services.transcripts.sources import is_source
from services.transcripts.sources.finding import main_file, sources

NAMES = {
    "claude": "Claude Code",
    "codex": "Codex CLI",
    "gemini": "Gemini CLI",
    "qwen": "Qwen Code",
    "copilot": "Copilot CLI",
    "copilot-chat": "Copilot Chat",
    "cursor": "Cursor",
    "cline": "Cline",
    "roo": "Roo Code",
    "kilo": "Kilo Code",
    "opencode": "OpenCode",
    "goose": "Goose",
    "amp": "Amp",
    "zed": "Zed",
}

_ELSEWHERE = {
    "darwin": {
        "XDG_CONFIG_HOME": "~/Library/Application Support",
        "zed": "~/Library/Application Support/Zed/threads",
    },
    "win32": {
        "XDG_CONFIG_HOME": "~/AppData/Roaming",
        "goose": "~/AppData/Roaming/Block/goose/sessions",
        "zed": "~/AppData/Local/Zed/threads",
    },
}
"""Folders on other systems: those that take the place of a variable, and those of single agents."""
_EDITORS = ("Code - Insiders", "VSCodium", "Cursor", "Windsurf")
"""Editors that keep extensions as VS Code does, each in a folder of its own."""
_MORE = {"cline": ("~/.cline/data/tasks",)}


class Found(NamedTuple):
    """What an agent has at a place: files to import, the number of sessions in them, and their size."""

    agent: str
    place: str
    files: list[str]
    sessions: int
    size: int


def folders(agent: str, environment: Mapping[str, str], system: str = sys.platform) -> list[str]:
    """Return the folders in which an agent may keep its conversations."""
    elsewhere, own = _ELSEWHERE.get(system, {}), AGENTS[agent]
    if agent == "goose" and (root := environment.get("GOOSE_PATH_ROOT")):
        return [os.path.join(os.path.expanduser(root), "data", "sessions")]
    if agent in elsewhere:
        return [os.path.expanduser(elsewhere[agent])]
    base = os.path.expanduser(environment.get(own.variable) or elsewhere.get(own.variable) or own.folder)
    editor, _, below = own.inside.partition("/")
    inside = [own.inside, *(f"{each}/{below}" for each in _EDITORS if editor == "Code")]
    return [*(os.path.join(base, each) for each in inside), *map(os.path.expanduser, _MORE.get(agent, ()))]


def find(environment: Mapping[str, str], system: str = sys.platform) -> Iterator[Found]:
    """Yield what is found at the usual places of each agent."""
    for place, name in ((each, name) for agent, name in NAMES.items() for each in folders(agent, environment, system)):
        files = files_in(Path(place))
        if not files:
            continue
        count = 0
        for path in files:
            try:
                count += sum(1 for _ in sources(path))
            except (OSError, ValueError):
                # The import says why it cannot be read.
                count += 1
        yield Found(name, place, files, count, sum(os.path.getsize(path) for path in files))


def files_in(place: Path) -> list[str]:
    """Return the files in a folder that may contain conversations, without those that are read with another."""
    paths = (str(path) for path in sorted(place.rglob("*")) if is_source(str(path)) and path.is_file())
    return list(dict.fromkeys(path for each in paths if (path := main_file(each)) and os.path.isfile(path)))
