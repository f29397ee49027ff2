"""The surface of one mounted server: its own lists, names and instructions, unchanged."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from proto.json_types import JsonObject
from proto.mounts import Mount, Offered
from proto.ops import Table
from services.front.mounted.tools import MountedTool, named, tools_of
from services.front.surfaces.steps import Steps
from services.front.surfaces.surface import Surface

_CHANGING = ("tools", "resources", "prompts")
_SIMPLE = ("completions", "logging", "experimental", "extensions")

_UNKNOWN: JsonObject = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
"""What clients are offered before the server has started for the first time."""


class MountSurface(Surface):
    """The surface of a mounted server; `offered` is what its server offers."""

    def __init__(self, mount: Mount, offered: Offered) -> None:
        self.name = mount.name
        self.is_whole = False
        self.steps = Steps(mount.name, Table(()))
        self.prompts = {}
        self.show(mount, offered)

    def show(self, mount: Mount, offered: Offered) -> None:
        """Show these definitions from now on."""
        definitions = offered.definitions
        self.mount, self.offered = mount, offered
        self.is_known = bool(offered.version)
        self.instructions = definitions.instructions
        tools = tools_of(mount, offered)
        self.mounted: Mapping[str, MountedTool] = {tool.own: tool for tool in tools}
        self.tools = dict(self.mounted)
        self.called = dict(self.mounted)
        self.lists: Mapping[str, list[Raw] | list[JsonObject]] = {
            "tools": _listed(definitions.tools, tools),
            "resources": definitions.resources,
            "resourceTemplates": definitions.templates,
            "prompts": definitions.prompts,
        }
        self.capabilities = _offered(definitions.capabilities) if offered.version else _UNKNOWN
        info = definitions.server_info
        self.server_info = info if "name" in info and "version" in info else None

    def update(self, table: Table) -> None:
        """Do nothing: it has no operations of the table."""

    # Overridden as properties: the lists change when the server's do.
    @property
    def listed_tools(self) -> list[JsonObject]:
        return list(self.lists["tools"])  # type: ignore[arg-type]

    @property
    def listed_prompts(self) -> list[JsonObject]:
        return list(self.lists["prompts"])  # type: ignore[arg-type]

    @property
    def listed_resources(self) -> list[JsonObject]:
        return list(self.lists["resources"])  # type: ignore[arg-type]

    @property
    def listed_templates(self) -> list[JsonObject]:
        return list(self.lists["resourceTemplates"])  # type: ignore[arg-type]


def _listed(definitions: list[Raw], tools: list[MountedTool]) -> list[Raw]:
    """Return the definitions of the tools that clients may see, renamed if the settings say so."""
    if all(tool.own == tool.tool for tool in tools) and len(tools) == len(named(definitions)) == len(definitions):
        return definitions
    return [
        Raw(msgspec.json.encode(tool.definition if tool.own == tool.tool else {**tool.definition, "name": tool.own}))
        for tool in tools
    ]


def _offered(given: JsonObject) -> JsonObject:
    """Return the capabilities that clients are offered: those of the server that pass through Linckia.

    Lists can change whatever the server says, since settings and approvals change them too.
    """
    offered: JsonObject = {}
    for name in _CHANGING:
        if isinstance(given.get(name), dict):
            offered[name] = {**given[name], "listChanged": True}
    return offered | {name: given[name] for name in _SIMPLE if isinstance(given.get(name), dict)}
