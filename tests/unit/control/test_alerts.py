"""Alerts begin and end with their condition, are told once, and wait for the webhook without holding up anything."""

from __future__ import annotations

import collections
import shutil
import time
from pathlib import Path

import msgspec
import pytest
import trio

from kernel.chronicle.history import Recorder
from kernel.configure.config import AlertSettings
from kernel.control import alerts
from kernel.control.alerts import Alerts, Process
from kernel.router.generation import ServiceState
from proto.errors import OperationError
from proto.ops.kernel import BackupStatus
from proto.ops.observation import TimelineEvent


class Around:
    """What alerts look at, and a webhook."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.states = {"echo": ServiceState.READY, "mcp_weather": ServiceState.READY}
        self.backup: BackupStatus | None = None
        self.refusals = 0
        self.got: list[dict[str, object]] = []
        self.at: list[float] = []
        self.arrived = trio.Event()
        self.recorder = Recorder(folder, dict)
        self.alerts = Alerts(
            settings=msgspec.convert(settings, AlertSettings), data_dir=folder, recorder=self.recorder,
            processes=lambda: [Process(name, state, name.startswith("mcp_")) for name, state in self.states.items()],
            backup=self.read_backup, post=self.post, version="1",
        )  # fmt: skip

    async def read_backup(self) -> BackupStatus | None:
        return self.backup

    async def post(self, url: str, message: bytes) -> None:
        self.at.append(trio.current_time())
        if self.refusals:
            self.refusals -= 1
            raise OperationError("it answered 503")
        self.got.append(msgspec.json.decode(message))
        self.arrived.set()

    def dies(self, times: int, cause: str = "signal") -> None:
        for _ in range(times):
            self.recorder.happened(TimelineEvent(service="echo", kind="died", cause=cause))

    async def now(self) -> set[str]:
        await self.alerts.check()
        return set(self.alerts.current)


async def test_a_single_death_is_no_alert_unless_it_is_to_be(tmp_path: Path) -> None:
    for deaths, expected in ((3, set[str]()), (1, {"death:echo"})):
        around = Around(tmp_path, deaths=deaths)
        around.dies(1)
        around.dies(5, cause="stopped")
        assert await around.now() == expected


async def test_repeated_deaths_are_one_alert_until_they_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = Around(tmp_path)
    around.dies(3)
    assert await around.now() == {"death:echo"}
    first = around.alerts.current["death:echo"]
    around.dies(2)
    assert await around.now() == {"death:echo"}
    assert around.alerts.current["death:echo"] == first
    later = time.time() + alerts.DEATHS_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert await around.now() == set()
    told = [(each.kind, each.service) for each in around.recorder.events if each.kind.startswith("alert")]
    assert told == [("alert", "echo"), ("alert_ended", "echo")]


async def test_a_service_or_mount_that_fails_is_an_alert(tmp_path: Path) -> None:
    around = Around(tmp_path)
    around.states |= {"echo": ServiceState.FAILED, "mcp_weather": ServiceState.BACKOFF}
    assert await around.now() == {"death:echo", "mount:mcp_weather"}
    around.states["mcp_weather"] = ServiceState.READY
    assert await around.now() == {"death:echo"}


async def test_a_full_disk_is_told_once_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = Around(tmp_path, disk_free_percent=10)
    usage = collections.namedtuple("usage", "total used free")
    for free, expected in ((11, set[str]()), (9, {"disk"}), (10.5, {"disk"}), (12, set[str]())):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(100, 100 - free, free))
        assert await around.now() == expected


async def test_an_old_backup_is_an_alert_if_backups_are_scheduled(tmp_path: Path) -> None:
    around = Around(tmp_path, backup_intervals=2)
    for every_s, age_s, expected in ((None, 9e9, set[str]()), (100, 150, set[str]()), (100, 201, {"backup"})):
        around.backup = BackupStatus(to="/backup", every_s=every_s, age_s=age_s)
        assert await around.now() == expected


async def test_the_webhook_is_asked_again_later_and_later_and_nothing_waits(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    around = Around(tmp_path, webhook="https://alerts.example")
    around.refusals = 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.alerts.run)
        await trio.testing.wait_all_tasks_blocked()
        around.dies(3)
        await around.arrived.wait()
        nursery.cancel_scope.cancel()
    assert [round(later - before) for before, later in zip(around.at, around.at[1:], strict=False)] == [1, 2, 4]
    (got,) = around.got
    assert (got["event"], got["kind"], got["subject"]) == ("alert", "death", "echo")
    assert around.alerts.current
