"""Where the three agents keep their session files, and how they resume one."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from pathlib import Path

_MAX_FOLDER = 200
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SLUG = re.compile(r"[a-z0-9-]+")
_MAX_OWNER_BYTES = 16 * 1024

COMMANDS = {"claude": "claude --resume", "codex": "codex resume", "gemini": "gemini --resume"}
"""The commands that resume a session, followed by its id."""


def place(agent: str, home: Path, id_: str, project: str, at: datetime.datetime) -> Path:
    """Return the path of a session's file below the folder of the agent."""
    match agent:
        case "claude":
            return home / "projects" / claude_folder(home, project) / f"{id_}.jsonl"
        case "codex":
            day, moment = at.strftime("%Y/%m/%d"), at.strftime("%Y-%m-%dT%H-%M-%S")
            return home / "sessions" / day / f"rollout-{moment}-{id_}.jsonl"
        case _:
            name = f"session-{at.strftime('%Y-%m-%dT%H-%M')}-{id_[:8]}.jsonl"
            return home / "tmp" / gemini_folder(home, project) / "chats" / name


def claude_folder(home: Path, project: str) -> str:
    """Return the name of a project's folder: its path with `-` for all but letters and digits, cut if it is long."""
    name = re.sub(r"[^a-zA-Z0-9]", "-", project)
    if len(name) <= _MAX_FOLDER:
        return name
    cut = name[:_MAX_FOLDER]
    # The agent's own hash of a long path depends on how it was built.
    there = sorted(each.name for each in (home / "projects").glob(f"{cut}-*") if each.is_dir())
    return there[0] if len(there) == 1 else f"{cut}-{hashed(project)}"


def hashed(text: str) -> str:
    """Return the hash of a path: h = 31 h + unit of UTF-16, in 32 bits with a sign; its absolute value in base 36."""
    value = 0
    encoded = text.encode("utf-16-le", "surrogatepass")
    for index in range(0, len(encoded), 2):
        value = (value * 31 + int.from_bytes(encoded[index : index + 2], "little")) & 0xFFFFFFFF
    value = abs(value - (1 << 32) if value >> 31 else value)
    digits = ""
    while True:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
        if not value:
            return digits


def gemini_folder(home: Path, project: str) -> str:
    """Return the name that the agent gave to a project, or else a hash of its path, which it replaces by a name."""
    try:
        registry = json.loads((home / "projects.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        registry = None
    projects = registry.get("projects") if isinstance(registry, dict) else None
    known = projects.get(project) if isinstance(projects, dict) else None
    if isinstance(known, str) and _SLUG.fullmatch(known) and _owner(home / "tmp" / known) in ("", project):
        return known
    owned = (each.parent for each in sorted((home / "tmp").glob("*/.project_root")))
    by_hash = hashlib.sha256(project.encode("utf-8", "surrogateescape")).hexdigest()
    return next((each.name for each in owned if _owner(each) == project), by_hash)


def _owner(folder: Path) -> str:
    try:
        with (folder / ".project_root").open("rb") as file:
            return file.read(_MAX_OWNER_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
