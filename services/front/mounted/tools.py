"""Tools of mounted servers as operations: their names, schemas, and what may happen to a call after a death."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw

from proto.errors import OperationError
from proto.json_types import JsonObject
from proto.mounts import CHANGE, READ, REPEAT, Mount, MountReply, MountRequest, Offered, operations_of
from proto.operation import Operation, Params, Role
from proto.validation import JsonSchema
from services.front.mounted.schemas import accepted

MAX_NAME = 64
"""Longest name of a tool that all clients accept."""

_DIGEST = 6
_UNUSABLE = re.compile(r"[^a-zA-Z0-9_-]+")


class MountedTool(Operation[Any], frozen=True, kw_only=True):
    """A tool of a mounted server.

    Attributes:
        route: the mount's operation that carries its calls.
        tool: the server's own name for it.
        own: its name on the surface of its server.
        definition: as the server wrote it.
    """

    route: Operation[Any]
    tool: str
    own: str
    definition: JsonObject

    @property
    def routed(self) -> Operation[Any]:
        return self.route

    @property
    def is_foreign(self) -> bool:
        return True

    @property
    def is_content(self) -> bool:
        return True

    @cached_property
    def input_schema(self) -> JsonSchema:
        """The schema of the arguments, in the form that all clients accept."""
        return accepted(self.definition.get("inputSchema"))

    @cached_property
    def output_schema(self) -> JsonSchema | None:
        return None

    def parse(self, arguments: Mapping[str, object], *, strict: bool = True, reference: bool = False) -> Params[object]:
        """Return the call; its server checks the arguments."""
        params = msgspec.json.encode({"name": self.tool, "arguments": arguments})
        return MountRequest(method="tools/call", name=self.tool, params=params)

    def received(self, value: Any) -> Any:
        """Return the result in the server's reply. Raises OperationError: the reply is an error."""
        reply = msgspec.convert(value, dict[str, Any])
        if "error" in reply:
            error = reply["error"] if isinstance(reply["error"], dict) else {}
            code, data = error.get("code"), error.get("data")
            raise OperationError(
                str(error.get("message", "the server reported an error")),
                code=code if isinstance(code, int) else None,
                data=data if isinstance(data, dict) else {},
            )
        return reply.get("result", {})


def chosen(mount: Mount, names: Iterable[str]) -> list[str]:
    """Return the server's names of the tools that the settings allow."""
    choice = mount.tools

    def matches(name: str, patterns: Iterable[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return [
        name for name in names if (not choice.allow or matches(name, choice.allow)) and not matches(name, choice.deny)
    ]


def named(definitions: Iterable[Raw], key: str = "name") -> dict[str, JsonObject]:
    """Return decoded definitions by name; malformed ones are left out."""
    found: dict[str, JsonObject] = {}
    for each in definitions:
        definition = msgspec.json.decode(each)
        if isinstance(definition, dict) and isinstance(definition.get(key), str):
            found.setdefault(definition[key], definition)
    return found


def tools_of(mount: Mount, offered: Offered) -> list[MountedTool]:
    """Return the tools of a mount that clients may see, named for its own surface and, provisionally, for `all`."""
    routes = operations_of(mount.name)
    own_names = offered.own_names.get("tools", {})
    definitions = named(offered.definitions.tools)
    tools: dict[str, MountedTool] = {}
    for name in chosen(mount, definitions):
        own = mount.tools.rename.get(name, name)
        if own not in tools:
            tools[own] = _tool(mount, own, own_names.get(name, name), definitions[name], routes)
    return list(tools.values())


def _tool(
    mount: Mount, own: str, name: str, definition: JsonObject, routes: Mapping[str, Operation[Any]]
) -> MountedTool:
    annotations = definition.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    kind = READ if hints.get("readOnlyHint") is True else REPEAT if hints.get("idempotentHint") is True else CHANGE
    if mount.stateful and kind == REPEAT:
        kind = CHANGE
    route = routes[kind]
    title = definition.get("title") or hints.get("title")
    description = definition.get("description")
    whole = shortened(f"{mount.name}_{own}")
    return MountedTool(
        name=whole,
        step=whole,
        title=title if isinstance(title, str) else own,
        description=description if isinstance(description, str) and description else f"{own}, a tool of {mount.name}.",
        service=route.service,
        params=MountRequest,
        result=MountReply,
        access=route.access,
        idempotent=route.idempotent,
        deadline_ms=route.deadline_ms,
        role=Role.TOOL,
        surfaces=(mount.name,),
        open_world=hints.get("openWorldHint") is not False,
        route=route,
        tool=name,
        own=own,
        definition=definition,
    )


def shortened(name: str) -> str:
    """Return a name in the characters and length that all clients accept; a changed name ends in a digest of the
    original."""
    plain = _UNUSABLE.sub("_", name)
    if plain == name and len(name) <= MAX_NAME:
        return name
    return _marked(plain, name)


def _marked(plain: str, name: str) -> str:
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    return f"{plain[: MAX_NAME - _DIGEST - 1]}_{digest}"


def other_name(name: str, service: str, own: str) -> str:
    """Return a name with a digest of what it is for, which does not depend on what else there is."""
    return _marked(name, f"{service}\0{own}")
