"""A task that this process carries out: its progress, why it waits, and its end."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import trio

from proto.errors import LinckiaError, Unavailable
from proto.json_types import JsonObject
from proto.ops.tasks import Task, TaskProgress
from proto.wire.frames import Level
from services.shared.times import NS, rfc3339


class Running:
    """A task that is being carried out. Implements `services.runtime.dispatch.ClientRequests` for its call."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.changed = trio.Event()
        """Set when `progress_made` changes, and replaced."""
        self._reported: TaskProgress | None = None
        self._waits = ""

    @property
    def progress_made(self) -> TaskProgress | None:
        """What the operation reported last; while the task waits, with the reason as its message."""
        if not self._waits:
            return self._reported
        return msgspec.structs.replace(self._reported or TaskProgress(done=0), message=self._waits)

    def shown(self, task: Task) -> Task:
        """Return the stored task with its progress."""
        return msgspec.structs.replace(task, progress=self.progress_made)

    def waits(self, error: LinckiaError, pause_s: float) -> None:
        """Show why the task cannot go on, and when it is tried again."""
        at = rfc3339(int(time.time() + pause_s) * NS)
        self._waits = f"waiting: {error}; next attempt at {at}"
        self._has_changed()

    def goes_on(self) -> None:
        """Show that an attempt is under way."""
        if self._waits:
            self._waits = ""
            self._has_changed()

    def _has_changed(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    # `services.runtime.dispatch.ClientRequests`

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._reported = TaskProgress(done=done, total=total, message=message)
        self._has_changed()

    def log(self, level: Level, logger: str, message: str) -> None:
        """No-op: the service's own log has it."""

    async def ask(self, method: str, params: dict[str, Any]) -> JsonObject:
        raise Unavailable("a task has no client that can be asked")
