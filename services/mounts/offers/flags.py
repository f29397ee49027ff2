"""Flags suspicious definitions: hidden characters, overlong texts, names that look like others.

A flag accuses nobody and changes nothing. It is a reason for a person to look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from proto import ops
from proto.mounts import Flag
from proto.operation import CLIENT
from services.mounts.offers import lookalikes
from services.mounts.offers.canonical import SINGULAR, Parsed
from services.mounts.offers.hidden import found_in, visible
from services.mounts.offers.shown import CUT, MAX_DESCRIPTION, cut_bytes, parts, shown

MAX_TEXT: Final = 8_000
"""Characters of a text beyond which it is overlong."""

MAX_NAME: Final = 128
"""Characters of a name: the limit of MCP's specification."""

MAX_FLAGS: Final = 200

_SHOWN: Final = 80
_DATA: Final = ("icons", "_meta")
"""Members that are not text for readers; icons may contain a whole picture."""


def flags_of(parsed: Parsed) -> list[Flag]:
    """Return the flags of a server's definitions by themselves."""
    found = [*parsed.flags, *shown(parsed).flags, *_of_names(parsed), *_of_texts(parsed)]
    return found[:MAX_FLAGS]


def flags_among(mount: str, tools: Mapping[str, object], others: Mapping[str, Mapping[str, object]]) -> Iterator[Flag]:
    """Yield flags of tools that can be mistaken for one of another mount, or for an operation of Linckia.

    Clients see tools as `MOUNT_tool`, so that is what is compared; `others` has the tools of the other mounts.
    """
    known = {name: f"Linckia's own {name}" for name in own_names()}
    for other, theirs in others.items():
        known |= {full_name(other, tool): f"{visible(tool)[:_SHOWN]} of {other}" for tool in theirs}
    ours = {full_name(mount, tool): tool for tool in tools}
    for name, like in lookalikes.among(ours, known).items():
        yield Flag(kind="look_alike", where=_where("tools", ours[name]), detail=f"can be mistaken for {like}")


def full_name(mount: str, tool: str) -> str:
    """Return the name by which clients see a tool beside those of others."""
    return f"{mount.replace('-', '_')}_{tool}"


@lru_cache(maxsize=1)
def own_names() -> frozenset[str]:
    """Return the names of Linckia's own operations."""
    return frozenset(name for op in ops.load().values() if op.admits(CLIENT) for name in (op.name, op.step, *op.former))


def _of_names(parsed: Parsed) -> Iterator[Flag]:
    for kind in ("tools", "prompts"):
        names = parsed.items[kind]
        alike = lookalikes.pairs(names)
        for name in names:
            where = _where(kind, name)
            if len(name) > MAX_NAME:
                yield Flag(kind="overlong", where=where, detail=f"a name of {len(name)} characters")
            if found := found_in(name) + [said for said in ("line break or tab",) if set(name) & set("\n\r\t")]:
                yield Flag(kind="hidden_characters", where=where, detail="; ".join(found)[:1000])
            if said := lookalikes.disguise_of(name):
                yield Flag(kind="look_alike", where=where, detail=visible(said)[:1000])
            elif name in alike:
                detail = f"can be mistaken for {visible(alike[name])[:_SHOWN]}"
                yield Flag(kind="look_alike", where=where, detail=detail)


def _of_texts(parsed: Parsed) -> Iterator[Flag]:
    yield from _in_text("instructions", parsed.definitions.instructions, is_cut=True)
    yield from _in_value("server info", parsed.server_info)
    for kind, items in parsed.items.items():
        for name, item in items.items():
            where = _where(kind, name)
            for member, value, named, given in parts(item):
                if not (member == "name" and kind in ("tools", "prompts")):
                    yield from _in_member(f"{where}: ", member, value, named=named, given=given)


def _in_value(where: str, value: object, *, named: bool = False, given: bool = False) -> Iterator[Flag]:
    if isinstance(value, str):
        yield from _in_text(where, value)
    elif isinstance(value, dict):
        for member, each, is_named, is_given in parts(value, named=named, given=given):
            yield from _in_member(f"{where}.", member, each, named=is_named, given=is_given)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _in_value(f"{where}[{number}]", each, given=given)


def _in_member(where: str, member: str, value: object, *, named: bool = False, given: bool = False) -> Iterator[Flag]:
    there = f"{where}{visible(member)[:_SHOWN]}"
    if found := found_in(member):
        yield Flag(kind="hidden_characters", where=there, detail="; ".join(found)[:1000])
    if isinstance(value, str) and member in CUT and not given:
        yield from _in_text(there, value, is_cut=True)
    elif member in _DATA:
        yield from (flag for flag in _in_value(there, value, given=True) if flag.kind != "overlong")
    else:
        yield from _in_value(there, value, named=named, given=given)


def _in_text(where: str, text: str, *, is_cut: bool = False) -> Iterator[Flag]:
    if is_cut and (size := cut_bytes(text)):
        yield Flag(kind="cut", where=where, detail=f"{MAX_DESCRIPTION} of {size} bytes are shown")
    elif len(text) > MAX_TEXT:
        yield Flag(kind="overlong", where=where, detail=f"{len(text)} characters")
    if found := found_in(text):
        yield Flag(kind="hidden_characters", where=where, detail="; ".join(found)[:1000])


def _where(kind: str, name: str) -> str:
    return f"{SINGULAR[kind]} {visible(name)[:_SHOWN]}"
