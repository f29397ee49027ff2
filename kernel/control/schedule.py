"""Scheduled backups, each made by its own process, and the outcome of the latest one, from `backup.json`."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import msgspec
import trio

from kernel.configure.config import Config
from proto.backup import Outcome, known
from proto.names import module
from proto.ops.kernel import BackupStatus

AGAIN_S = 600.0
"""Delay after a failure, unless the next backup is due earlier."""

BEHIND_S = 60.0
"""Age of what continuous backups have sent last that counts as an interval for alerts."""

LOOK_S = 60.0
"""Maximum sleep before the clock, which may have been set, is read again."""

_log = logging.getLogger("linckia.kernel")


class Schedule:
    """Makes backups according to the settings."""

    def __init__(self, config: Config) -> None:
        self._data_dir = config.data_dir
        self._settings = config.backup
        self._served = [
            *(f"--served-root={root}" for root in config.roots),
            *(f"--served-package={package}" for package in config.packages),
        ]
        self._turn = trio.Lock()
        self._unnoted: Outcome | None = None
        """Outcome of a backup that could not record it itself."""

    async def run(self) -> None:
        """Make backups until cancelled; return at once if the settings name no destination."""
        if self._settings is None:
            return
        while self._settings.continuous:
            ended = await self._backup("--continuous", str(self._settings.every_s))
            _log.error("continuous backups ended, and begin again: %s", self._why(ended))
            await trio.sleep(LOOK_S / 4)
        while True:
            if (left := self._due(await self.latest()) - time.time()) > 0:
                await trio.sleep(min(left, LOOK_S))
            else:
                await self.now()

    def _due(self, found: Outcome | None) -> float:
        assert self._settings is not None
        # If the clock was set back, the backup is due now.
        if found is None or found.at > time.time():
            return 0
        return found.at + (min(AGAIN_S, self._settings.every_s) if found.error else self._settings.every_s)

    async def status(self) -> BackupStatus | None:
        """Return the latest backup's status for clients; None if there is no backup and none is scheduled."""
        settings, found = self._settings, await self.latest()
        every_s = None if settings is None else BEHIND_S if settings.continuous else settings.every_s
        if found is None:
            return None if settings is None else BackupStatus(to=settings.to, every_s=every_s)
        age_s = None if found.succeeded is None else max(0.0, time.time() - found.succeeded)
        return BackupStatus(
            to=found.to, every_s=every_s, snapshot=found.snapshot, age_s=age_s, error=found.error,
            problems=found.problems,
        )  # fmt: skip

    async def now(self) -> Outcome | None:
        """Make a backup once no other is running, and return its outcome; None if the settings name no destination."""
        if self._settings is None:
            return None
        async with self._turn:
            began = time.time()
            ended = await self._backup()
            found = await self.latest() or Outcome(to=self._settings.to, at=0)
            if found.at < began:
                # It was killed, or could not even record why it failed.
                found = self._unnoted = msgspec.structs.replace(found, at=began, error=self._why(ended))
            if found.error:
                _log.error("no backup was made: %s", found.error)
            else:
                _log.info("backup %s to %s", found.snapshot, found.to)
            return found

    async def _backup(self, *more: str) -> subprocess.CompletedProcess[bytes]:
        """Run `linckia backup` to its end."""
        assert self._settings is not None
        command = [sys.executable, "-P", "-m", module("kernel.cli"), "backup", self._settings.to, "--background"]
        command += ["--keep", str(self._settings.keep), "--data", str(self._data_dir)]
        command += [*self._how(), *self._served, *more]
        return await trio.run_process(command, capture_stderr=True, stdout=subprocess.DEVNULL, check=False)

    def _why(self, ended: subprocess.CompletedProcess[bytes]) -> str:
        said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return said.removeprefix("linckia: ") or f"its process ended with {ended.returncode}"

    def _how(self) -> list[str]:
        """Return the options for the destination; a passphrase is named by its file, and never in the command."""
        assert self._settings is not None
        named = {"--endpoint": self._settings.endpoint, "--passphrase-file": self._settings.passphrase_file}
        flags = {"--encrypt": self._settings.encrypt, "--append-only": self._settings.append_only}
        return [
            *(word for option, text in named.items() if text for word in (option, text)),
            *(option for option, is_set in flags.items() if is_set),
        ]

    async def latest(self) -> Outcome | None:
        """Return the outcome of the latest backup to the destination in the settings, or to any if none is set."""
        found = await trio.to_thread.run_sync(known, self._data_dir)
        # A destination without any successful backup is probably a typo, unless there is no other.
        places = sorted(found.values(), key=lambda each: each.succeeded is not None)
        latest = found.get(self._settings.to) if self._settings else places[-1] if places else None
        unnoted = self._unnoted
        return unnoted if unnoted is not None and (latest is None or latest.at < unnoted.at) else latest
