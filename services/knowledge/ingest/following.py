"""Being told what changes below the roots, by the service `watch`, for as long as the service lives.

What is told is only looked at again, so that it does not matter whether it is told twice. Between the end of one read
and the next nothing is lost: the watcher keeps its log on disk, through its own death as well. Only where it has no
complete log to offer (at the start, after a long absence) all folders are walked; and while it is away, now and then.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import trio

from proto.errors import Kind, LinckiaError
from proto.ops.watch import Change, ChangeKind, EntryKind, WatchChanges, WatchSubscribe
from services.knowledge.ingest.ingest import Ingest
from services.knowledge.ingest.walking import MARKER, SKIPPED_FOLDERS
from services.runtime.handlers import Environment
from services.runtime.ignore_files import IGNORE_FILES

NAME = "notes"
WAIT_S = 30.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0

PATIENCE_S = 1.0
"""A watcher that is back so soon was never missed: its log goes on where it ended."""


class Following:
    """The task."""

    def __init__(self, env: Environment, ingest: Ingest) -> None:
        self._env = env
        self._ingest = ingest
        self._after = 0
        self._subscribed = False
        self._pause_s = FIRST_PAUSE_S
        self._away_since: float | None = None
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Follow until `stop`, or until cancelled."""
        with self._scope:
            await self._env.after_the_rush()
            while True:
                try:
                    await self._read()
                except LinckiaError as error:
                    await self._miss(error)

    def stop(self) -> None:
        """End the task."""
        self._scope.cancel()

    async def _read(self) -> None:
        """Subscribe if need be, and take in one answer."""
        if not self._subscribed and not await self._subscribe():
            await trio.sleep(LAST_PAUSE_S)
            return
        answer = await self._env.call(WatchChanges(subscription=NAME, after=self._after, wait_s=WAIT_S, limit=5000))
        self._away_since, self._pause_s = None, FIRST_PAUSE_S
        if not answer.complete:
            self._ingest.unwatched("the watcher still looks at all folders for the first time")
            return
        self._after = answer.sequence
        if answer.resync:
            # What changed before that number may not have been told; what changes from now on will be.
            self._ingest.hurry()
        else:
            self._ingest.touch(*touched(answer.changes))
        self._ingest.watched()

    async def _subscribe(self) -> bool:
        roots = self._ingest.roots
        missing = [root for root in roots if not await trio.to_thread.run_sync(os.path.isdir, root)]
        if missing or not roots:
            self._ingest.unwatched(f"{missing[0]} is not there" if missing else "there is no folder to be watched")
            return False
        await self._env.call(
            WatchSubscribe(
                name=NAME,
                paths=list(roots),
                ignore=[*(f"{name}/" for name in sorted(SKIPPED_FOLDERS)), ".*/"],
                include=["*.md", *IGNORE_FILES, MARKER],
            )
        )
        self._subscribed = True
        return True

    async def _miss(self, error: LinckiaError) -> None:
        now = trio.current_time()
        if self._away_since is None:
            self._away_since = now
        if error.failure.kind not in (Kind.UNAVAILABLE, Kind.OVERLOADED, Kind.MAYBE_EXECUTED):
            # It may know nothing of the subscription, its database being lost.
            self._subscribed = False
        if now - self._away_since >= PATIENCE_S or self._ingest.progress.unwatched is not None:
            self._ingest.unwatched(f"the watcher of folders is not available: {error}")
        await trio.sleep(min(LAST_PAUSE_S, max(self._pause_s, (error.failure.retry_after_ms or 0) / 1000)))
        self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)


def touched(changes: Sequence[Change]) -> tuple[list[str], list[str]]:
    """Files that are to be looked at, and folders of which everything is."""
    files: list[str] = []
    folders: list[str] = []
    for change in changes:
        path = _path(change.path, change.raw_path)
        old_path = None if change.old_path is None else _path(change.old_path, change.raw_old_path)
        for each in (path, old_path):
            if each is None:
                continue
            folder, name = os.path.split(each)
            if change.kind is EntryKind.FOLDER:
                # What is in a new one is told as well, entry by entry.
                if change.change is not ChangeKind.CREATED:
                    folders.append(each)
            elif name == MARKER or name in IGNORE_FILES:
                folders.append(folder)
            else:
                files.append(each)
    return files, folders


def _path(text: str, raw: bytes | None) -> str:
    return text if raw is None else os.fsdecode(raw)
