"""Operations of `events`: the log of what happened, which clients read by cursor.

Its sources are the watcher's log of changed files, the kernel's audit log and its timeline of deaths, and reports of
other services by `event_add`. An event is stored in the same transaction as the position in its source that it came
from, so no death of a process loses or repeats one.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Resource, Role, detail

SERVICE = "events"
KERNEL = "kernel"

tool = Family(SERVICE, within_roots=True)
resource = Family(SERVICE, role=Role.RESOURCE, within_roots=True)
internal = Family(SERVICE, role=Role.INTERNAL, callers=(KERNEL, OPERATOR))

URI = "linckia://events"
"""The resource: clients that subscribed to it are notified of new events."""

STREAM = "/v1/events"
"""Path of the same events as a stream of server-sent events."""

MAX_WAIT_S = 60.0
MAX_LIMIT = 1_000
MAX_DETAILS_BYTES = 8_192


class EventKind(enum.StrEnum):
    """Kind."""

    FILE = "file"
    CHANGE = "change"
    TASK = "task"
    SERVICE = "service"
    APPROVAL = "approval"
    GAP = "gap"
    """Something happened that a source could not report."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened."""

    number: Annotated[int, Meta(description="Its position in the log; later events have greater numbers")]
    at: Annotated[str, Meta(description="When it happened, RFC 3339, UTC")]
    kind: str
    subject: Annotated[str, Meta(description="The path, the target of the change, the service, or an id")]
    what: Annotated[
        str, Meta(description="created, modified, deleted, renamed, the operation, died, recovered, or a state")
    ]
    who: Annotated[str, Meta(description="Who did it, if known: a token, stdio, http, operator, or a service")] = ""
    details: Annotated[dict[str, Any], Meta(description="More, depending on the kind")] = {}


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in order."""

    events: list[Event]
    next: Annotated[int, Meta(description="Value of `after` for the next call; store it once these are processed")]
    oldest: Annotated[int, Meta(description="The oldest event that is kept; 0 if there is none")]
    more: Annotated[bool, Meta(description="Whether more are available now")]


_AFTER = "`next` of an earlier call; 0: the oldest; null: the newest, or with `wait_s` what happens from now on"
Kinds = Annotated[list[EventKind], Meta(max_length=16), detail("Only these kinds; empty: all")]
Below = Annotated[str, Meta(max_length=4096, description="Only files below it")]
Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT, description="At most this many")]
Cursor = Annotated[int, Meta(ge=0, le=2**53 - 1, description=_AFTER)]


@tool.read("events_read", deadline_s=MAX_WAIT_S + 15, title="Read events")
class EventsRead(Params[EventPage], frozen=True, kw_only=True):
    """Catch up: files and data changed and by whom, tasks ended, approvals, crashes. Keep `next`, also across sessions,
    for `after`: nothing in between is left out."""

    after: Cursor | None = None
    since: Annotated[
        str | int | float | None,
        Meta(description="Instead of `after`: `2 hours ago`, date"),
    ] = None
    kinds: Kinds = []
    path: Below = ""
    limit: Limit = 100
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="Wait for a first event")] = 0.0


@resource.read(
    "events_resource",
    deadline_s=30,
    resource=Resource(uri=URI, name="Events", mime_type="application/json", query=("after",)),
)
class EventsResource(Params[EventPage], frozen=True, kw_only=True):
    """What happened lately, or after the event given as `?after=N`. Subscribe to be notified of new events."""

    after: Cursor | None = None


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """The event is on disk."""

    number: int
    repeated: Annotated[bool, Meta(description="Whether it had been added before")] = False


@internal.write("event_add", idempotent=True, deadline_s=30, callers=(KERNEL, OPERATOR, "tasks"))
class EventAdd(Params[Added], frozen=True, kw_only=True):
    """Add an event. The caller chooses its `id`; adding it again changes nothing, so it may be repeated until it is
    answered."""

    id: Annotated[str, Meta(min_length=1, max_length=200, description="Unique among the caller's own events")]
    kind: EventKind
    subject: Annotated[str, Meta(max_length=4096)]
    what: Annotated[str, Meta(min_length=1, max_length=200)]
    at: Annotated[float, Meta(ge=0, description="Unix time, seconds; null: now")] | None = None
    who: Annotated[str, Meta(max_length=256)] = ""
    details: Annotated[dict[str, Any], Meta(description="At most 8 KiB as JSON")] = {}
