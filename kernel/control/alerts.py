"""Alerts: what the operator should see to. They are shown on the page, recorded as events, and sent to a webhook.

An alert begins when its condition holds, and ends when it no longer does. Only both changes are told. A webhook that
does not answer is asked again later and later; nothing else waits for it.
"""

from __future__ import annotations

import collections
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import trio

from kernel.chronicle.history import Recorder
from kernel.configure.config import AlertSettings
from kernel.router.generation import ServiceState
from kernel.router.ports import CauseKind
from proto.errors import LinckiaError
from proto.ops.kernel import SERVICE, BackupStatus
from proto.ops.observation import Alert, TimelineEvent

CHECK_S: Final = 15.0

GATHER_S: Final = 1.0
"""Time after a death until the conditions are checked again, since deaths come together."""

DEATHS_S: Final = 600.0
"""Period in which deaths are counted; a service that no longer dies is no alert after it."""

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 300.0

WAITING: Final = 100
"""Messages that wait for the webhook; the oldest are dropped."""

_log = logging.getLogger("linckia.kernel")


class Process(msgspec.Struct, frozen=True):
    """What this needs of a process."""

    name: str
    state: ServiceState
    mount: bool


@dataclass(kw_only=True, eq=False)
class Alerts:
    """The alerts of one kernel; `run` must be running.

    Attributes:
        post: sends a message to a URL; raises LinckiaError.
    """

    settings: AlertSettings
    data_dir: Path
    recorder: Recorder
    processes: Callable[[], list[Process]]
    backup: Callable[[], Awaitable[BackupStatus | None]]
    post: Callable[[str, bytes], Awaitable[None]]
    version: str
    current: dict[str, Alert] = field(default_factory=dict)
    _messages: collections.deque[bytes] = field(default_factory=lambda: collections.deque(maxlen=WAITING))
    _news: trio.Event = field(default_factory=trio.Event)
    _began: float = field(default_factory=time.time)

    async def run(self) -> None:
        """Check until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            while True:
                with trio.move_on_after(CHECK_S):
                    await self.recorder.changed.wait()
                    await trio.sleep(GATHER_S)
                await self.check()

    async def check(self) -> None:
        """Compare what holds now with the current alerts, and tell what changed."""
        usage = await trio.to_thread.run_sync(shutil.disk_usage, self.data_dir)
        found = {each.id: each for each in (*self._of_services(), *self._of_disk(usage.free / usage.total))}
        found |= {each.id: each for each in self._of_backup(await self.backup())}
        begun = [each for name, each in found.items() if name not in self.current]
        ended = [each for name, each in self.current.items() if name not in found]
        self.current = {name: self.current.get(name, each) for name, each in found.items()}
        for kind, alerts in (("alert", begun), ("alert_ended", ended)):
            for each in alerts:
                _log.warning("%s: %s", kind.replace("_", " "), each.text)
                self.recorder.happened(TimelineEvent(service=each.subject, kind=kind, cause=each.kind, text=each.text))
                self._messages.append(self._message(kind, each))
                self._news.set()

    def _of_services(self) -> Iterator[Alert]:
        since = time.time() - DEATHS_S
        deaths = collections.Counter(
            each.service
            for each in self.recorder.events
            if each.kind == "died" and each.at >= since and each.cause != CauseKind.STOPPED
        )
        for each in self.processes():
            if each.mount and each.state in (ServiceState.FAILED, ServiceState.BACKOFF):
                yield _alert("mount", each.name, f"the mounted server {each.name} does not start")
            elif each.state is ServiceState.FAILED:
                yield _alert("death", each.name, f"{each.name} died again and again, and waits for a longer time")
            elif deaths[each.name] >= self.settings.deaths:
                often = "died" if self.settings.deaths == 1 else f"died {self.settings.deaths} times or more"
                yield _alert("death", each.name, f"{each.name} {often} within ten minutes")

    def _of_disk(self, free: float) -> Iterator[Alert]:
        least = self.settings.disk_free_percent / 100
        # A disk at the limit is not told again and again.
        if free < least or ("disk" in self.current and free < least * 1.1):
            yield _alert("disk", SERVICE, f"less than {self.settings.disk_free_percent:g} % of the disk is free")

    def _of_backup(self, backup: BackupStatus | None) -> Iterator[Alert]:
        if backup is None or backup.every_s is None:
            return
        age_s = time.time() - self._began if backup.age_s is None else backup.age_s
        if age_s > self.settings.backup_intervals * backup.every_s:
            why = f": {backup.error}" if backup.error else ""
            yield _alert("backup", SERVICE, f"the latest backup is too old{why}")

    def _message(self, event: str, alert: Alert) -> bytes:
        said = {"source": "linckia", "version": self.version, "event": event, **msgspec.to_builtins(alert)}
        return msgspec.json.encode(said | {"at": time.time()})

    async def _send(self) -> None:
        pause_s = FIRST_RETRY_S
        while True:
            await self._news.wait()
            if not self._messages:
                self._news = trio.Event()
                continue
            message = self._messages[0]
            if self.settings.webhook:
                try:
                    await self.post(self.settings.webhook, message)
                except LinckiaError as error:
                    _log.warning(
                        "an alert has not reached the webhook, and is sent again in %.0f s: %s", pause_s, error
                    )
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LAST_RETRY_S)
                    continue
            pause_s = FIRST_RETRY_S
            if self._messages and self._messages[0] is message:
                self._messages.popleft()


def _alert(kind: str, subject: str, text: str) -> Alert:
    name = kind if subject == SERVICE else f"{kind}:{subject}"
    return Alert(id=name, kind=kind, subject=subject, text=text, since=round(time.time(), 1))
