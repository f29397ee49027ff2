"""What clients see of a server's definitions: no hidden characters, and descriptions of bounded length.

The registry keeps what the server said, and compares and approves that. Definitions with nothing to change are shown
byte for byte. A tool or prompt whose name has hidden characters has a name without them here, and `Offered.own_names`
has the server's own, so that it can be called. A URI with them is not shown, since nobody could ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from proto.mounts import Definitions, Flag
from services.mounts.offers.canonical import LISTS, SINGULAR, Parsed
from services.mounts.offers.hidden import visible, without

MAX_DESCRIPTION: Final = 4096
"""Bytes (UTF-8) of a description, title or the instructions that are shown."""

CUT: Final = ("description", "title")
"""Members that describe something, and are cut."""

_VALUES: Final = ("enum", "const", "default", "examples", "pattern", "icons", "_meta")
"""Members whose values are no text for readers: they lose hidden characters, and nothing else."""
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords of schemas whose members have names that the server has chosen."""

_ESCAPES = re.compile(rb"\\[ubfr]|\x7f")
_SPACES = re.compile(r"[\t\n\r]")
_BREAKS = re.compile(r"\r\n?")


class Shown(NamedTuple):
    """Definitions as clients see them. `own_names`: see `Offered`."""

    definitions: Definitions
    own_names: dict[str, dict[str, str]]
    flags: list[Flag]


def shown(parsed: Parsed) -> Shown:
    """Return what clients see of definitions."""
    flags: list[Flag] = []
    names: dict[str, dict[str, str]] = {}
    given = parsed.definitions
    lists: dict[str, list[Raw]] = {}
    for kind, key in LISTS.items():
        raws: list[Raw] = getattr(given, kind)
        known = _names(kind, parsed.items[kind], flags)
        lists[kind] = [
            _shown(raw, item, key, known[own])
            for raw, (own, item) in zip(raws, parsed.items[kind].items(), strict=True)
            if own in known
        ]
        if changed := {name: own for own, name in known.items() if name != own}:
            names[kind] = changed
    objects = {"server_info": _cleaned(given.server_info), "capabilities": _cleaned(given.capabilities)}
    text = cut(_prose(given.instructions))
    return Shown(msgspec.structs.replace(given, instructions=text, **objects, **lists), names, flags)


def cut(text: str) -> str:
    """Return a text of bounded length that says if it was cut."""
    if cut_bytes(text):
        kept = without(text.encode()[:MAX_DESCRIPTION].decode(errors="ignore"))
        return f"{kept}… [cut: {len(text.encode()) - len(kept.encode())} more bytes]"
    return text


def cut_bytes(text: str) -> int:
    """Return the size of a text that is too long; 0 for all others."""
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return size if size > MAX_DESCRIPTION else 0


def parts(
    value: Mapping[str, Any], *, named: bool = False, given: bool = False
) -> Iterator[tuple[str, Any, bool, bool]]:
    """Yield the members of an object: each with whether its own members are `named` by the server, and whether it is
    `given`, which means a value that is no text for readers."""
    for key, each in value.items():
        yield key, each, not named and key in _NAMED, given or (not named and key in _VALUES)


def _names(kind: str, items: Mapping[str, Any], flags: list[Flag]) -> dict[str, str]:
    """Return the names that clients see, by the server's own."""
    found: dict[str, str] = {}
    suspects = [name for name in items if _SPACES.sub("", without(name)) != name]
    taken = items.keys() - set(suspects)
    for name in items:
        if name in taken:
            found[name] = name
            continue
        cleaned = _SPACES.sub("", without(name))
        where = f"{SINGULAR[kind]} {visible(name)[:80]}"
        if kind in ("resources", "templates"):
            flags.append(Flag(kind="dropped", where=where, detail="its URI has characters that nobody sees"))
        elif not cleaned:
            flags.append(Flag(kind="dropped", where=where, detail="its name has only characters that nobody sees"))
        elif cleaned in taken:
            detail = f"without the characters that nobody sees, its name is that of {cleaned[:80]}"
            flags.append(Flag(kind="dropped", where=where, detail=detail))
        else:
            found[name] = cleaned
            taken.add(cleaned)
    return found


def _shown(raw: Raw, item: dict[str, Any], key: str, name: str) -> Raw:
    written = bytes(raw)
    if len(written) <= MAX_DESCRIPTION and written.isascii() and not _ESCAPES.search(written):
        return raw
    found = {**_cleaned(item), key: name}
    return raw if found == item else Raw(msgspec.json.encode(found))


def _cleaned(value: Any, *, named: bool = False, given: bool = False) -> Any:
    if isinstance(value, str):
        return without(value) if given else _prose(value)
    if isinstance(value, list):
        return [_cleaned(each, given=given) for each in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, each, is_named, is_given in parts(value, named=named, given=given):
        cleaned = _cleaned(each, named=is_named, given=is_given)
        is_text = isinstance(cleaned, str) and key in CUT and not is_given
        # Names that differ only in what nobody sees are one name.
        found.setdefault(without(key), cut(cleaned) if is_text else cleaned)
    return found


def _prose(text: str) -> str:
    """Return a text for readers: a carriage return alone would hide what is before it on a terminal."""
    return _BREAKS.sub("\n", without(text))
