"""Takes backups during the storm; the last one is restored elsewhere and compared with the ledger at its time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio

from proto.control.client import CallFailed, Client
from tests.chaos.comparison import turns_of
from tests.chaos.load import Worker
from tests.chaos.record import Record
from tests.chaos.system import System, kept_by
from tests.system.running import REPOSITORY

EVERY_S = 10.0


class Backups:
    """The backups of one system, all in one folder."""

    def __init__(self, system: System, record: Record) -> None:
        self._system = system
        self._record = record
        self._folder = system.data.parent / "backup"
        self.stop = trio.CancelScope()
        self.taken: list[dict[str, Any]] = []
        self.refused: list[str] = []
        """Errors of refused backups, for example because the disk was full."""

    async def run(self) -> None:
        """Take one backup after the other until cancelled."""
        with self.stop:
            while True:
                await trio.sleep(EVERY_S)
                with trio.CancelScope(shield=True):
                    await self._take()

    async def _take(self) -> None:
        done = await trio.to_thread.run_sync(
            partial(_linckia, "backup", self._folder, "--json", data=self._system.data)
        )
        if done.returncode:
            self.refused.append(done.stderr.strip())
            return
        told = json.loads(done.stdout)
        if told["problems"]:
            self._record.wrong.append(f"a backup of whole databases reports {told['problems']}")
        self.taken.append(told)

    def restore(self, to: Path) -> bool:
        """Restore the last backup; returns False if no backup was taken."""
        if not self.taken:
            return False
        done = _linckia("restore", self._folder, data=to)
        if done.returncode:
            self._record.wrong.append(f"the backup cannot be restored: {done.stderr.strip()}")
        return not done.returncode

    def compare(self, restored: Path, workers: Iterable[Worker]) -> tuple[str, set[str]]:
        """Check that writes acknowledged before the backup's time are in it, and writes started after it are not.

        A kernel serves the restored data. Returns a summary, and the names found.
        """
        at = self.taken[-1]["at"]
        there = set(turns_of(restored))
        # Tags are stored in the user's files.
        writes = [(what, when) for worker in workers for what, when in worker.writes.items() if what[0] != "tag"]
        with Client(restored) as client:
            there |= kept_by(client)
            for (kind, name), _ in writes:
                if kind == "document" and _has(client, name):
                    there.add(name)
        for (kind, name), (begun, acknowledged) in writes:
            if acknowledged is not None and acknowledged < at and name not in there:
                self._record.lost.append(f"{kind} {name!r} in the backup, {at - acknowledged:.3f} s after it was kept")
            if begun > at and name in there:
                self._record.wrong.append(f"{kind} {name!r} is in a backup {begun - at:.3f} s older than it")
        old = sum(acknowledged is not None and acknowledged < at for _, (_, acknowledged) in writes)
        counted = f"{len(self.taken)} taken, {len(self.refused)} refused"
        held = f"it held up writes for {self.taken[-1]['held_ms']} ms"
        return (
            f"backups: {counted}; {old} of {len(writes)} writes precede the last one and were checked; {held}",
            there,
        )


def _has(client: Client, sha: str) -> bool:
    try:
        client.call_named("documents_get", {"hash": sha}, timeout_s=30)
    except CallFailed:
        return False
    return True


def _linckia(*arguments: str | Path, data: Path) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [
        sys.executable,
        "-P",
        "-m",
        "kernel.cli",
        *map(str, arguments),
        "--data",
        str(data),
    ]
    return subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True)
