"""Operations of `events` that the page calls."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import CLIENT, OPERATOR, Family, Params, Role
from proto.ops.events import SERVICE, Below, Cursor, Kinds

MAX_LINES = 500

shown = Family(SERVICE, role=Role.INTERNAL, callers=(CLIENT, OPERATOR), within_roots=True)

Instant = str | int | float


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event, or many of the same kind in one folder."""

    first: Annotated[int, Meta(description="Number of its first event")]
    last: Annotated[int, Meta(description="Number of its last event")]
    at: Annotated[str, Meta(description="When the first one happened, RFC 3339, UTC")]
    until: Annotated[str, Meta(description="When the last one happened, if there are several")] = ""
    kind: str
    what: str
    subject: Annotated[str, Meta(description="As of events_read, or the folder of many")]
    who: str = ""
    details: dict[str, Any] = {}
    count: Annotated[int, Meta(description="How many events it stands for")] = 1
    text: Annotated[str, Meta(description="What happened in the folder, in words")] = ""


class EventLines(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lines, the latest first."""

    lines: list[EventLine]
    before: Annotated[
        int | None, Meta(description="`before` of the next call; absent if there are no earlier ones")
    ] = None


@shown.read("events_folded", deadline_s=30)
class EventsFolded(Params[EventLines], frozen=True, kw_only=True):
    """Return what happened in a time, the latest first. Many changes of files of the same kind in one folder within a
    minute are one line."""

    since: Annotated[Instant | None, Meta(description="Then or later")] = None
    until: Annotated[Instant | None, Meta(description="Before then")] = None
    before: Cursor | None = None
    kinds: Kinds = []
    path: Below = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_LINES, description="About how many lines")] = 100
