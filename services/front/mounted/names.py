"""Names of mounted tools, prompts and resources on the surfaces that show them beside Linckia's own."""

from __future__ import annotations

import urllib.parse
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from linckia.proto.json_types import JsonObject
from linckia.proto.mounts import Mount, Offered
from linckia.services.front.mounted.tools import MountedTool, named, shortened, tools_of, unique

RESOURCES = "linckia://mcp/"
"""Beginning of the URIs of mounted resources: `linckia://mcp/NAME/` and the server's own URI."""


class MountedNames:
    """What all mounts offer, under names that are unique."""

    def __init__(self) -> None:
        self.tools: list[MountedTool] = []
        self.prompts: list[JsonObject] = []
        self.resources: list[JsonObject] = []
        self.templates: list[JsonObject] = []
        self._prompts: dict[str, tuple[str, str]] = {}
        self._mounts: Collection[str] = ()

    def update(self, mounts: Mapping[str, Mount], offered: Mapping[str, Offered], taken: Collection[str]) -> None:
        """Name everything again; `taken` are names of Linckia's own."""
        self._mounts = set(mounts)
        every = [tool for name in sorted(mounts) for tool in tools_of(mounts[name], offered[name])]
        self.tools = unique(every, taken)
        self.prompts, self.resources, self.templates, self._prompts = [], [], [], {}
        for name in sorted(mounts):
            definitions = offered[name].definitions
            for own, prompt in named(definitions.prompts).items():
                shown = shortened(f"{name}_{own}")
                if shown not in self._prompts and shown not in taken:
                    self._prompts[shown] = (name, own)
                    self.prompts.append({**prompt, "name": shown})
            for uri, resource in named(definitions.resources, "uri").items():
                self.resources.append({**resource, "uri": f"{RESOURCES}{name}/{uri}"})
            for uri, template in named(definitions.templates, "uriTemplate").items():
                self.templates.append({**template, "uriTemplate": f"{RESOURCES}{name}/{uri}"})

    def __bool__(self) -> bool:
        return bool(self._mounts)

    def prompt(self, name: str) -> tuple[str, str] | None:
        """Return the mount and its own name for a prompt."""
        return self._prompts.get(name)

    def resource(self, uri: str) -> tuple[str, str] | None:
        """Return the mount and its own URI for a resource."""
        if not uri.startswith(RESOURCES):
            return None
        mount, slash, own = uri.removeprefix(RESOURCES).partition("/")
        mount = urllib.parse.unquote(mount)
        return (mount, own) if slash and mount in self._mounts else None

    def reference(self, ref: Raw | None) -> tuple[str, JsonObject] | None:
        """Return the mount and its own reference for what `completion/complete` refers to."""
        if ref is None:
            return None
        try:
            given: dict[str, Any] = msgspec.json.decode(ref, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if isinstance(given.get("name"), str) and given.get("type") == "ref/prompt":
            found, key = self.prompt(given["name"]), "name"
        elif isinstance(given.get("uri"), str):
            found, key = self.resource(given["uri"]), "uri"
        else:
            return None
        return None if found is None else (found[0], {**given, key: found[1]})
