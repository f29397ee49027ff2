"""The sources of events that the service follows: the watcher's changes of files, and what the kernel records.

Each stores its events together with its new position, so that a death at any point neither loses nor repeats one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import trio

from proto.errors import LinckiaError
from proto.ops.events import EventKind
from proto.ops.observation import AuditedChange, Happened, KernelHappened, TimelineEvent
from proto.ops.watch import Change, ChangeKind, EntryKind
from services.events.event_database import Bounds, NewEvent
from services.events.log import Log
from services.runtime.handlers import Environment
from services.runtime.storage import FULL_PAUSE_S, DiskFull
from services.shared.backoff import Backoff
from services.shared.follower import Follower
from services.shared.ignore_files import GENERATED, VERSION_CONTROL
from services.shared.times import NS

FILES, AUDIT, TIMELINE = "files", "audit", "timeline"
"""Names of the sources in the table of positions."""

GATHER_S = 0.2
"""Pause after a batch: what happens meanwhile is stored in one transaction."""

WAIT_S = 600.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0

MISSING = "missing"
"""What happened in a gap: events that the source no longer has."""


class Files:
    """Follows the files below the roots; a listener for the runtime's follower."""

    def __init__(self, env: Environment, log: Log, position: str, ignore: Sequence[str]) -> None:
        self._env = env
        self._log = log
        self._is_new = not position
        self._follower = Follower(env, "events", self, after=int(position or 0))
        left_out = [f"{name}/" for name in sorted(VERSION_CONTROL | GENERATED)]
        self._follower.follow(env.roots, ignore=[*left_out, *ignore])

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._follower.run()

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        """Store changes that the watcher has seen."""
        now_ns = time.time_ns()
        await self._log.add([_of_file(each, now_ns) for each in changes], {FILES: str(sequence)})
        await trio.sleep(GATHER_S)

    async def rescan(self, sequence: int) -> None:
        """Store that changes are missing, unless nothing was followed before."""
        found = [] if self._is_new else [_gap(root, "files may have changed unseen") for root in self._env.roots]
        await self._log.add(found, {FILES: str(sequence)})
        self._is_new = False

    async def watched(self) -> None:
        """Show that all changes are stored."""
        self._env.info(files="")

    def unwatched(self, reason: str) -> None:
        """Show why changes are not seen at the moment."""
        self._env.info(files=reason)


class Kernel:
    """Follows the kernel's audit log and its timeline of deaths."""

    def __init__(self, env: Environment, log: Log, positions: dict[str, str], bounds: Bounds) -> None:
        self._env = env
        self._log = log
        self._audit = positions.get(AUDIT, "")
        self._last = int(positions.get(TIMELINE, 0))
        self._bounds = bounds

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._env.after_the_rush()
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        while True:
            try:
                found = await self._env.call(KernelHappened(audit=self._audit, last=self._last, wait_s=WAIT_S))
                events = self._events(found)
                if events:
                    await self._log.add(events, {AUDIT: found.audit, TIMELINE: str(found.last)})
            except LinckiaError as error:
                self._env.info(kernel=str(error))
                await trio.sleep(FULL_PAUSE_S if isinstance(error, DiskFull) else backoff.pause_s())
                continue
            backoff.succeeded()
            self._env.info(kernel="")
            # A position without an event since is kept in memory only: reading the same lines again does no harm.
            self._audit, self._last = found.audit, found.last
            if events and not found.more:
                await trio.sleep(GATHER_S)

    def _events(self, found: Happened) -> list[NewEvent]:
        events = []
        if found.audit_lost:
            events.append(_gap("changes", "lines of the audit log were rotated away before they were read"))
        if found.timeline_lost:
            events.append(_gap("services", "deaths of services were not read in time"))
        events += [_of_change(each) for each in found.changes]
        events += [_of_service(each) for each in found.timeline]
        too_old_ns = time.time_ns() - self._bounds.age_ns
        return sorted((each for each in events if each.at_ns > too_old_ns), key=lambda each: each.at_ns)


def _of_file(change: Change, now_ns: int) -> NewEvent:
    details: dict[str, Any] = {}
    if change.kind is not EntryKind.FILE:
        details["type"] = change.kind.value
    elif change.change is not ChangeKind.DELETED:
        details["size"] = change.size
    return NewEvent(
        now_ns, EventKind.FILE, change.path, change.change.value, former=change.old_path, details=details
    )  # fmt: skip


def _of_change(change: AuditedChange) -> NewEvent:
    at_ns = int(change.at * NS)
    if change.outcome == "lost":
        return NewEvent(at_ns, EventKind.GAP, "changes", MISSING, details={"why": change.message})
    said = {
        "service": change.service,
        "outcome": "" if change.outcome == "ok" else change.outcome,
        "executed": change.executed,
        "message": change.message,
        "source": change.source,
        "count": change.count if change.count > 1 else "",
    }
    details = {name: value for name, value in said.items() if value}
    return NewEvent(at_ns, EventKind.CHANGE, change.target, change.operation, who=change.who, details=details)


def _of_service(event: TimelineEvent) -> NewEvent:
    # Its text may hold the last line that the process wrote, which is for the operator; that of an alert never does.
    text = event.text if event.kind.startswith("alert") else ""
    said = {"message": text, "generation": event.generation, "cause": event.cause, "recovery_ms": event.recovery_ms}
    details = {name: value for name, value in said.items() if value}
    return NewEvent(int(event.at * NS), EventKind.SERVICE, event.service, event.kind, details=details)


def _gap(subject: str, why: str) -> NewEvent:
    return NewEvent(time.time_ns(), EventKind.GAP, subject, MISSING, details={"why": why})
