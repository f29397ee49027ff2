"""Operations of `watch`: every change of a folder's content, in order, through any crash of the reader or the watcher.

A service subscribes under a name of its own choosing and reads what changed after the last sequence number that it has
dealt with. A subscription and its changes are on disk: both sides may die at any time, and nothing between two reads
is lost. Where the log does not reach back far enough (a new subscription, one that was not read for long), the answer
says `resync`: the reader rescans the folder, and goes on from the number that the answer names. Whatever changes after
that number is in the log.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from linckia.proto.operation import OPERATOR, Family, Params, Role

internal = Family("watch", role=Role.INTERNAL, callers=("documents", "files", "knowledge", "transcripts", OPERATOR))

MAX_WAIT_S = 60.0

_NAME = "Name of the subscription, unique among the caller's own: letters, digits and _.:-"
SubscriptionName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$", description=_NAME)]


class EntryKind(enum.StrEnum):
    """What an entry of a folder is."""

    FILE = "file"
    FOLDER = "directory"
    LINK = "symlink"
    OTHER = "other"


class ChangeKind(enum.StrEnum):
    """What happened to an entry.

    A directory that is deleted or renamed takes with it all that it held at that point of the log: there is one change
    for the whole. One that arrives (created, or moved here from elsewhere) is followed by one for each entry in it.
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
    size: Annotated[int, Meta(description="Bytes; 0 of directories and of what was deleted")] = 0
    mtime_ns: Annotated[int, Meta(description="Of files and links, in ns since 1970")] = 0
    inode: int = 0
    old_path: Annotated[str | None, Meta(description="Where it was before it was renamed or moved")] = None
    raw_path: Annotated[bytes | None, Meta(description="The path's bytes, where they are not UTF-8")] = None
    raw_old_path: Annotated[bytes | None, Meta(description="The same of `old_path`")] = None


class Subscribed(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription is on disk."""

    paths: Annotated[list[str], Meta(description="Real paths that are watched; one inside another is left out")]
    sequence: Annotated[int, Meta(description="Number of the latest change")]
    complete: Annotated[bool, Meta(description="Whether the first scan is through")]
    kept: Annotated[bool, Meta(description="Whether it was there before with the same paths and rules")]


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
    """Nothing is kept for the subscription any more."""

    removed: Annotated[bool, Meta(description="Whether there was one")]


@internal.destroy("watch_unsubscribe", idempotent=True, deadline_s=30)
class WatchUnsubscribe(Params[Unsubscribed], frozen=True, kw_only=True):
    """End a subscription of the caller's."""

    name: SubscriptionName


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What changed, in order; nothing with `resync`: rescan, then read on after `sequence`."""

    changes: list[Change]
    sequence: Annotated[int, Meta(description="What to give as `after` once these are dealt with")]
    more: Annotated[bool, Meta(description="Whether more are there already")]
    resync: Annotated[bool, Meta(description="Whether the log does not reach back to `after`")]
    complete: Annotated[bool, Meta(description="False while the first scan is under way: there are no changes yet")]


@internal.read("watch_changes", deadline_s=MAX_WAIT_S + 15)
class WatchChanges(Params[Changes], frozen=True, kw_only=True):
    """Read what changed, waiting for it if there is nothing yet; acknowledges everything up to `after`."""

    subscription: SubscriptionName
    after: Annotated[int, Meta(ge=0, description="The last number that the caller has dealt with; 0 at first")] = 0
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="How long to wait for a first change")] = 0.0
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Changes to answer at most")] = 1000


class SubscriptionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription."""

    caller: str
    name: str
    paths: list[str]
    entries: Annotated[int, Meta(description="Directories and entries that are tracked")]
    complete: bool
    acknowledged: Annotated[int, Meta(description="The last number that its reader has dealt with")]
    lag: Annotated[int, Meta(description="Changes that its reader has still to deal with")]
    missing: Annotated[list[str], Meta(description="Watched folders that are not there")]


class FolderProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that cannot be looked into; its state is kept as it was."""

    path: str
    reason: str


class WatchStatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the watching goes."""

    watches: Annotated[int, Meta(description="Folders from which the operating system tells of changes")]
    watch_limit: Annotated[int, Meta(description="How many that may be for this user, on all programs together")]
    polled: Annotated[int, Meta(description="Folders past that limit; they are looked at every few seconds")]
    overflows: Annotated[int, Meta(description="How often the system's queue overflowed, for a look at all folders")]
    queue_limit: Annotated[int, Meta(description="Events that fit into that queue")]
    events: Annotated[int, Meta(description="Events since the start")]
    dirty: Annotated[int, Meta(description="Folders that are still to be looked at")]
    scanning: Annotated[bool, Meta(description="Whether all folders are being looked at")]
    settled: Annotated[bool, Meta(description="Whether all that is known to have changed is in the log")]
    last_reconcile: Annotated[str | None, Meta(description="When all folders were last looked at, RFC 3339")]
    reconcile_ms: Annotated[float, Meta(description="How long that took")]
    reconcile_interval_s: float
    sequence: Annotated[int, Meta(description="Number of the latest change")]
    changes: Annotated[int, Meta(description="Changes that the log holds")]
    subscriptions: list[SubscriptionStatus]
    degraded: Annotated[list[str], Meta(description="In what way changes may show late")]
    problems: list[FolderProblem]
    problem_count: int
    size_bytes: int
    rebuilt: Annotated[bool, Meta(description="Whether the database was damaged and begun again, since the start")]


@internal.read("watch_status", deadline_s=30, callers=("files", OPERATOR))
class WatchStatus(Params[WatchStatusResult], frozen=True, kw_only=True):
    """How many folders are watched, what the limits are, and how far each reader is."""
