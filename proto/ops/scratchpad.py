"""Operations on the scratchpad: long answers that the gateway kept for the session that asked for them.

They are answered by the kernel's gateway, from memory; another session's entries are not to be seen.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Family, Params

SERVICE = "kernel"
SURFACES = ("knowledge",)

tool = Family(SERVICE, surfaces=SURFACES)


EntryId = Annotated[str, Meta(min_length=1, max_length=1024, description="Id of an entry: 12 hexadecimal digits")]


class ScratchpadContent(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer as it was."""

    text: str


@tool.read("scratchpad_read", deadline_s=5, text="text")
class ScratchpadRead(Params[ScratchpadContent], frozen=True, kw_only=True):
    """Read the whole of a long answer that was cached in this session."""

    id: EntryId


class ScratchpadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A cached answer."""

    id: Annotated[str, Meta(description="For scratchpad_read")]
    tool: Annotated[str, Meta(description="The tool that answered it")]
    size_bytes: int
    timestamp: Annotated[str, Meta(description="When it was answered, RFC 3339, UTC")]


class ScratchpadStats(msgspec.Struct, frozen=True, kw_only=True):
    """How full the scratchpad is; what was used least recently goes first."""

    total_entries: int
    total_size_bytes: int
    max_size_bytes: int


class ScratchpadListing(msgspec.Struct, frozen=True, kw_only=True):
    """What is cached, newest first."""

    entries: list[ScratchpadEntry]
    stats: ScratchpadStats


@tool.read("scratchpad_list", deadline_s=5)
class ScratchpadList(Params[ScratchpadListing], frozen=True, kw_only=True):
    """List the long answers that are cached in this session."""
