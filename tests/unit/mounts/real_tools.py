"""The tools of real servers as operations, and tasks in words for which they are the right ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from linckia.proto.mounts import MountReply, MountRequest, service_of
from linckia.proto.operation import Access, Operation

DATA = Path(__file__).resolve().parents[2] / "data" / "mounts"


class MountedTool(Operation[MountReply], frozen=True, kw_only=True, dict=True):
    """A tool of a mounted server; its schema is the server's."""

    schema: dict[str, Any]

    @property
    def input_schema(self) -> dict[str, Any]:
        return self.schema


class Task(msgspec.Struct, frozen=True):
    """A task in a user's words, and the tools that are right for it. `held_out` ones did not serve to tune."""

    task: str
    tools: list[str]
    held_out: bool


def mounted(mount: str, tool: dict[str, Any]) -> MountedTool:
    """Return a tool as an operation."""
    return MountedTool(
        name=f"{mount.replace('-', '_')}_{tool['name']}", title=tool.get("title", ""),
        description=tool.get("description", ""), schema=tool.get("inputSchema", {}), service=service_of(mount),
        params=MountRequest, result=MountReply, access=Access.DESTRUCTIVE, idempotent=False, deadline_ms=1000,
    )  # fmt: skip


def real_tools() -> dict[str, MountedTool]:
    """Return all tools of the real servers, by name."""
    servers = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("*.json")) if path.stem != "tasks"}
    tools = [mounted(name, tool) for name, server in servers.items() for tool in server["tools"]]
    return {tool.name: tool for tool in tools}


def tasks() -> list[Task]:
    """Return the tasks."""
    return msgspec.json.decode((DATA / "tasks.json").read_bytes(), type=list[Task])
