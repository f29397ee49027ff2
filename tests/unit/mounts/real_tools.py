"""The tools of real servers as operations, and tasks in words for which they are the right ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from proto.mounts import Definitions, Mount, Offered
from services.front.mounted.tools import MountedTool, tools_of

DATA = Path(__file__).resolve().parents[2] / "data" / "mounts"


class Task(msgspec.Struct, frozen=True):
    """A task in a user's words, and the tools that are right for it. `held_out` ones did not serve to tune."""

    task: str
    tools: list[str]
    held_out: bool


def mounted(mount: str, *tools: dict[str, Any]) -> list[MountedTool]:
    """Return tools of a mount as the front shows them."""
    raws = [msgspec.Raw(json.dumps(tool).encode()) for tool in tools]
    return tools_of(Mount(name=mount), Offered(definitions=Definitions(tools=raws)))


def definitions() -> dict[str, Definitions]:
    """Return what the real servers offer, by name."""
    files = [path for path in sorted(DATA.glob("*.json")) if path.stem != "tasks"]
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Definitions) for path in files}


def real_tools() -> dict[str, MountedTool]:
    """Return all tools of the real servers, by name."""
    every = [
        tool
        for name, offered in definitions().items()
        for tool in tools_of(Mount(name=name), Offered(definitions=offered))
    ]
    return {tool.name: tool for tool in every}


def tasks() -> list[Task]:
    """Return the tasks."""
    return msgspec.json.decode((DATA / "tasks.json").read_bytes(), type=list[Task])
