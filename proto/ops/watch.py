"""Operations of `watch`: every change of a folder's content, in order, through any crash of the reader or the watcher.

A service subscribes under a name of its choosing and reads the changes after the last sequence number it has processed.
A subscription and its changes are on disk: either side may die at any time, and nothing between two reads is lost. If
the log does not reach back far enough (a new subscription, or one not read for long), the result says `resync`: the
reader rescans the folder and continues from the returned number. Every change after that number is in the log.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role, SaidIfAny

internal = Family(
    "watch", role=Role.INTERNAL, callers=("documents", "events", "files", "knowledge", "transcripts", OPERATOR)
)

MAX_WAIT_S = 600.0

_NAME = "Name of the subscription, unique among the caller's own: letters, digits and _.:-"
SubscriptionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$", description=_NAME)]


class EntryKind(enum.StrEnum):
    """Kind of a folder's entry."""

    FILE = "file"
    FOLDER = "directory"
    LINK = "symlink"
    OTHER = "other"


class ChangeKind(enum.StrEnum):
    """Kind of change.

    Deleting or renaming a directory is one change for everything it contained at that point of the log. A directory
    that arrives (created, or moved from elsewhere) is followed by a change for each entry in it.
    """

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change. Applied in order of their sequence numbers, they lead from one state of the folders to the next."""

    sequence: int
    change: ChangeKind
    path: Annotated[str, Meta(description="Absolute path; bytes that are not UTF-8 show as U+FFFD")]
    kind: EntryKind
    size: Annotated[int, Meta(description="Bytes; 0 for directories and deletions")] = 0
    mtime_ns: Annotated[int, Meta(description="For files and links, in ns since 1970")] = 0
    inode: int = 0
    old_path: Annotated[str | None, Meta(description="Its path before it was renamed or moved")] = None
    raw_path: Annotated[bytes | None, Meta(description="The path's bytes, if not UTF-8")] = None
    raw_old_path: Annotated[bytes | None, Meta(description="The same for `old_path`")] = None


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription is on disk."""

    paths: Annotated[list[str], Meta(description="Real paths that are watched; one inside another is left out")]
    sequence: Annotated[int, Meta(description="Number of the latest change")]
    complete: Annotated[bool, Meta(description="Whether the first scan is complete")]
    kept: Annotated[bool, Meta(description="Whether it existed with the same paths and rules")]


@internal.write("watch_subscribe", idempotent=True, deadline_s=30)
class WatchSubscribe(Params[Subscribed], frozen=True, kw_only=True):
    """Record every change below some folders, under a name.

    To subscribe again with the same paths and rules changes nothing; with others, the next read says `resync`.
    """

    name: SubscriptionName
    paths: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=4096)]],
        Meta(min_length=1, max_length=256, description="Folders below the roots"),
    ]
    recursive: Annotated[bool, Meta(description="Whether folders below those are followed")] = True
    ignore: Annotated[
        list[Annotated[str, Meta(max_length=1024)]],
        Meta(max_length=1024, description="Patterns as in a .gitignore file, of entries to ignore"),
    ] = []
    include: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=1024)]],
        Meta(max_length=256, description="Only files of these names (`*.md`, either case); directories always"),
    ] = []


class Unsubscribed(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription's data is deleted."""

    removed: Annotated[bool, Meta(description="Whether it existed")]


@internal.destroy("watch_unsubscribe", idempotent=True, deadline_s=30)
class WatchUnsubscribe(Params[Unsubscribed], frozen=True, kw_only=True):
    """End one of the caller's subscriptions."""

    name: SubscriptionName


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes in order; none with `resync`: rescan, then continue after `sequence`."""

    changes: list[Change]
    sequence: Annotated[int, Meta(description="Value of `after` once these are processed")]
    more: Annotated[bool, Meta(description="Whether more are available")]
    resync: Annotated[bool, Meta(description="Whether the log starts after `after`")]
    complete: Annotated[bool, Meta(description="False during the first scan: there are no changes yet")]


@internal.read("watch_changes", deadline_s=MAX_WAIT_S + 15)
class WatchChanges(Params[Changes], frozen=True, kw_only=True):
    """Read changes, waiting if there are none yet; acknowledges everything up to `after`."""

    subscription: SubscriptionName
    after: Annotated[int, Meta(ge=0, description="The last number the caller has processed; 0 at first")] = 0
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="How long to wait for a first change")] = 0.0
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Changes at most")] = 1000


class SubscriptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription."""

    caller: str
    name: str
    paths: list[str]
    entries: Annotated[int, Meta(description="Tracked directories and entries")]
    complete: bool
    acknowledged: Annotated[int, Meta(description="The last number its reader has processed")]
    lag: Annotated[int, Meta(description="Changes its reader has not processed yet")]
    missing: Annotated[list[str], Meta(description="Watched folders that do not exist")]


class FolderProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that cannot be read; its last known state is kept."""

    path: str
    reason: str


class WatchStatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """State of the watcher."""

    watches: Annotated[int, Meta(description="Folders watched by the operating system")]
    watch_limit: Annotated[int, Meta(description="Limit for this user, over all programs")]
    polled: Annotated[int, Meta(description="Folders past that limit, polled every few seconds")]
    overflows: Annotated[int, Meta(description="Overflows of the system's queue, each causing a full rescan")]
    queue_limit: Annotated[int, Meta(description="Capacity of that queue in events")]
    events: Annotated[int, Meta(description="Events since the start")]
    dirty: Annotated[int, Meta(description="Folders not checked yet")]
    scanning: Annotated[bool, Meta(description="Whether a full scan is running")]
    settled: Annotated[bool, Meta(description="Whether all known changes are in the log")]
    last_reconcile: Annotated[str | None, Meta(description="Last full scan, RFC 3339")]
    reconcile_ms: Annotated[float, Meta(description="Its duration")]
    reconcile_interval_s: float
    sequence: Annotated[int, Meta(description="Number of the latest change")]
    changes: Annotated[int, Meta(description="Changes in the log")]
    subscriptions: list[SubscriptionStatus]
    degraded: Annotated[list[str], Meta(description="Why changes may be reported late"), SaidIfAny]
    problems: list[FolderProblem]
    problem_count: int
    size_bytes: int
    rebuilt: Annotated[bool, Meta(description="Whether the database was damaged and recreated since the start")]


@internal.read("watch_status", deadline_s=30, callers=("files", OPERATOR))
class WatchStatus(Params[WatchStatusResult], frozen=True, kw_only=True):
    """Report the watched folders, the limits, and each reader's progress."""
