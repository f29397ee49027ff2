"""Compares the definitions of a server: checked, as sets by name, and in a canonical form.

The texts themselves are kept as the server wrote them. Only entries that are not
definitions (no object, no name, the same name again) are left out, with a flag.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from proto.errors import InvalidParams
from proto.mounts import Definitions, Flag
from proto.ops.mounts import MountDifference
from proto.validation import exceeded
from services.mounts.offers.hidden import visible

MAX_BYTES: Final = 8 * 1024 * 1024

LISTS: Final = {"tools": "name", "resources": "uri", "templates": "uriTemplate", "prompts": "name"}
"""The lists of definitions, each with the member that tells its items apart."""

SINGULAR: Final = {"tools": "tool", "resources": "resource", "templates": "template", "prompts": "prompt"}
_MEMBER_OF: Final = {"templates": "resources"}
"""MCP announces changes of templates as changes of resources."""

_VOLATILE: Final = {"resources": ("size", "annotations")}
"""Members that change as the data does, so that no approval is asked for them."""


class Parsed(NamedTuple):
    """Checked definitions, and each item by its list and name as JSON values."""

    definitions: Definitions
    items: dict[str, dict[str, Any]]
    server_info: dict[str, Any]
    flags: list[Flag]


def parse(data: bytes) -> Parsed:
    """Check definitions as an adapter sends them. Raises InvalidParams if they are too large or not in the format."""
    if len(data) > MAX_BYTES:
        raise InvalidParams(f"`definitions`: {len(data)} bytes, and the limit is {MAX_BYTES}", field="definitions")
    try:
        given = msgspec.json.decode(data, type=Definitions)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidParams(f"`definitions`: {error}", field="definitions") from None
    return checked(given)


def checked(given: Definitions) -> Parsed:
    """Leave out entries that are not definitions, with a flag for each."""
    flags = [Flag(kind="dropped", where=where, detail=visible(said)[:1000]) for where, said in _problems(given)]
    kept: dict[str, list[Raw]] = {}
    items: dict[str, dict[str, Any]] = {}
    for name, key in LISTS.items():
        kept[name], items[name] = [], {}
        for number, raw in enumerate(getattr(given, name), 1):
            value, fault = _item(raw, key)
            if not fault and value[key] in items[name]:
                fault = f"the name `{visible(value[key][:100])}` is already taken"
            if fault:
                flags.append(Flag(kind="dropped", where=f"{SINGULAR[name]} number {number}", detail=fault))
                continue
            items[name][value[key]] = value
            kept[name].append(raw)
    objects = {"server_info": given.server_info, "capabilities": given.capabilities}
    for name, value in objects.items():
        if beyond := exceeded(canonical(value)):
            flags.append(Flag(kind="dropped", where=name.replace("_", " "), detail=f"it has {beyond}"))
            objects[name] = {}
    clean = msgspec.structs.replace(given, problems=[], **kept, **objects)
    return Parsed(clean, items, clean.server_info, flags)


def _problems(given: Definitions) -> Iterator[tuple[str, str]]:
    for problem in given.problems:
        method, _, said = problem.partition(": ")
        yield method, said


def _item(raw: Raw, key: str) -> tuple[dict[str, Any], str]:
    value, fault = _object(raw)
    if fault:
        return {}, fault
    name = value.get(key)
    return (value, "") if isinstance(name, str) and name else ({}, f"it has no `{key}`")


def _object(raw: Raw) -> tuple[dict[str, Any], str]:
    if beyond := exceeded(bytes(raw)):
        return {}, f"it has {beyond}"
    try:
        value = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        return {}, f"it is not valid JSON: {error}"
    return (value, "") if isinstance(value, dict) else ({}, "it is not an object")


def canonical(value: object) -> bytes:
    """Return JSON that does not depend on the order of members or on whitespace."""
    return msgspec.json.encode(value, order="sorted")


def version_of(parsed: Parsed) -> str:
    """Return a hash of definitions; their order does not count."""
    rest = parsed.definitions
    content = [parsed.items, parsed.server_info, rest.instructions, rest.protocol_version, rest.capabilities]
    return hashlib.sha256(canonical(content)).hexdigest()[:32]


def changed_lists(before: Parsed, after: Parsed) -> list[str]:
    """Return the lists of MCP that differ: `tools`, `resources`, `prompts`."""
    changed = (name for name in LISTS if canonical(before.items[name]) != canonical(after.items[name]))
    return list(dict.fromkeys(_MEMBER_OF.get(name, name) for name in changed))


def needs_approval(before: Parsed, after: Parsed) -> bool:
    """Return whether anything differs that a model reads. The server's version, and sizes and times of resources, do
    not count."""
    return canonical(_read_by_models(before)) != canonical(_read_by_models(after))


def _read_by_models(parsed: Parsed) -> list[object]:
    lists = {
        name: {
            key: {member: each for member, each in value.items() if member not in _VOLATILE.get(name, ())}
            for key, value in items.items()
        }
        for name, items in parsed.items.items()
    }
    info = {member: value for member, value in parsed.server_info.items() if member != "version"}
    return [lists, info, parsed.definitions.instructions]


def differences(before: Parsed, after: Parsed) -> Iterator[MountDifference]:
    """Yield the changes, in the order of the server's lists."""
    for name in LISTS:
        old, new = before.items[name], after.items[name]
        for key in (*new, *(key for key in old if key not in new)):
            if canonical(old.get(key)) != canonical(new.get(key)):
                what = f"{SINGULAR[name]} {visible(key)}"
                yield MountDifference(what=what, before=_shown(old.get(key)), after=_shown(new.get(key)))
    if canonical(before.server_info) != canonical(after.server_info):
        yield MountDifference(what="server info", before=_shown(before.server_info), after=_shown(after.server_info))
    old_text, new_text = before.definitions.instructions, after.definitions.instructions
    if old_text != new_text:
        yield MountDifference(what="instructions", before=_shown(old_text or None), after=_shown(new_text or None))


def _shown(value: object) -> str:
    """Return indented JSON in which hidden characters are escapes, so that a reader sees them."""
    return "" if value is None else visible(json.dumps(value, ensure_ascii=False, indent=2))
