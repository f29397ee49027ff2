"""Names of mounted tools, prompts and resources on the surfaces that show them beside Linckia's own."""

from __future__ import annotations

import urllib.parse
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from proto.json_types import JsonObject
from proto.mounts import Holder, Mount, MountNames, NameKind, Offered, Taken, Wanted, service_of
from services.front.mounted.tools import MountedTool, chosen, named, other_name, shortened, tools_of

RESOURCES = "linckia://mcp/"
"""Beginning of the URIs of mounted resources: `linckia://mcp/NAME/` and the server's own URI."""


class MountedNames:
    """What all mounts offer, under names that are unique. A name belongs to whoever had it first."""

    def __init__(self) -> None:
        self.tools: list[MountedTool] = []
        self.prompts: list[JsonObject] = []
        self.resources: list[JsonObject] = []
        self.templates: list[JsonObject] = []
        self._prompts: dict[str, tuple[str, str]] = {}
        self._mounts: Mapping[str, Mount] = {}
        self._offered: Mapping[str, Offered] = {}
        self._wanted_tools: list[tuple[Wanted, MountedTool]] = []
        self._wanted_prompts: list[tuple[Wanted, JsonObject]] = []

    def want(self, mounts: Mapping[str, Mount], offered: Mapping[str, Offered], taken: Collection[str]) -> list[Wanted]:
        """Return the names that everything wants to have; `taken` are names of Linckia's own."""
        self._mounts, self._offered = dict(mounts), offered
        self._wanted_tools, self._wanted_prompts = [], []
        for mount in mounts.values():
            for tool in tools_of(mount, offered[mount.name]):
                wanted = _wanted("tools", mount.name, tool.tool, tool.name, tool.own, taken)
                self._wanted_tools.append((wanted, tool))
            own_names = offered[mount.name].own_names.get("prompts", {})
            for shown, prompt in named(offered[mount.name].definitions.prompts).items():
                own = own_names.get(shown, shown)
                wanted = _wanted("prompts", mount.name, own, shortened(f"{mount.name}_{shown}"), shown, taken)
                self._wanted_prompts.append((wanted, prompt))
        return [wanted for wanted, _ in (*self._wanted_tools, *self._wanted_prompts)]

    def give(self, names: MountNames, *, is_current: bool) -> None:
        """Name everything again.

        Args:
            is_current: whether the registry knows what is wanted; otherwise what has no name yet only gets the one
                that it wants if nothing else may have that.
        """
        tools = _given([wanted for wanted, _ in self._wanted_tools], names.tools, is_current=is_current)
        prompts = _given([wanted for wanted, _ in self._wanted_prompts], names.prompts, is_current=is_current)
        by_mount = sorted(zip(self._wanted_tools, tools, strict=True), key=lambda each: each[0][0].mount)
        self.tools = [msgspec.structs.replace(tool, name=name, step=name) for (_, tool), name in by_mount if name]
        self.prompts, self.resources, self.templates, self._prompts = [], [], [], {}
        for (wanted, prompt), name in zip(self._wanted_prompts, prompts, strict=True):
            if name:
                self._prompts[name] = (wanted.mount, wanted.own)
                self.prompts.append({**prompt, "name": name})
        for mount in sorted(self._mounts):
            # The name of the mount is part of these, so that no two mounts share one.
            definitions = self._offered[mount].definitions
            for uri, resource in named(definitions.resources, "uri").items():
                self.resources.append({**resource, "uri": f"{RESOURCES}{mount}/{uri}"})
            for uri, template in named(definitions.templates, "uriTemplate").items():
                self.templates.append({**template, "uriTemplate": f"{RESOURCES}{mount}/{uri}"})

    def released(self, names: MountNames, known: Collection[str]) -> list[Taken]:
        """Return the names that another wants, of mounts that are not `known`, and of tools that the settings hide."""
        there = {(wanted.kind, wanted.mount, wanted.own) for wanted, _ in self._wanted_tools}
        found = []
        for wanted in [wanted for wanted, _ in (*self._wanted_tools, *self._wanted_prompts)]:
            holder = (names.tools if wanted.kind == "tools" else names.prompts).get(wanted.name)
            if holder is None or wanted.is_taken or (holder.mount, holder.own) == (wanted.mount, wanted.own):
                continue
            is_hidden = wanted.kind == "tools" and (wanted.kind, holder.mount, holder.own) not in there
            if holder.mount not in known or (is_hidden and self._hides(holder)):
                found.append(Taken(kind=wanted.kind, name=wanted.name, holder=holder))
        return found

    def _hides(self, holder: Holder) -> bool:
        mount = self._mounts.get(holder.mount)
        return mount is not None and not chosen(mount, [holder.own])

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


def _wanted(kind: NameKind, mount: str, own: str, name: str, shown: str, taken: Collection[str]) -> Wanted:
    other = other_name(name, service_of(mount), shown)
    return Wanted(kind=kind, mount=mount, own=own, name=name, other=other, is_taken=name in taken)


def _given(wanted: Sequence[Wanted], table: Mapping[str, Holder], *, is_current: bool) -> list[str]:
    """Return the name of each; empty if it has none."""
    by_holder = {(each.mount, each.own): name for name, each in table.items()}
    names = [by_holder.get((each.mount, each.own), "") for each in wanted]
    if is_current:
        return names
    # Nobody knows whose the others are.
    counts = Counter(each.name for each in wanted)
    for number, each in enumerate(wanted):
        is_free = not each.is_taken and counts[each.name] == 1 and each.name not in table
        names[number] = names[number] or (each.name if is_free else each.other)
    several = Counter(names)
    return [name if several[name] == 1 else "" for name in names]
