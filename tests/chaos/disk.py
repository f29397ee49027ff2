"""Makes the disk full or read-only for a while. The disk is a private one in memory."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time

import trio

from tests.chaos.record import Window
from tests.chaos.storm import KERNEL, WRITES, Storm, send

FULL_S = 2.0
READ_ONLY_S = 1.0
PIECE = bytes(1 << 20)


async def full(storm: Storm) -> list[str]:
    """Leave no free byte on the disk for a while, then make room again."""
    filler = storm.system.data.parent / "filler"
    with storm.record.opened(Window.FULL):
        try:
            # Space that others free meanwhile is taken too.
            with filler.open("wb", buffering=0) as file:
                until = trio.current_time() + FULL_S
                while trio.current_time() < until:
                    with contextlib.suppress(OSError):
                        while file.write(PIECE) == len(PIECE):
                            pass
                    await trio.sleep(0.05)
        finally:
            filler.unlink()
        storm.ended()
    return list(WRITES)


async def read_only(storm: Storm) -> list[str]:
    """End the kernel, and let the next ones start on a read-only disk until it becomes writable again."""
    kernel = storm.system.process
    if kernel is None or kernel.poll() is not None:
        return []
    disk = str(storm.system.data.parent)
    with storm.record.opened(Window.DOWN):
        storm.system.look()
        send(kernel.pid, signal.SIGKILL)
        await trio.to_thread.run_sync(kernel.wait)
        try:
            if not await trio.to_thread.run_sync(_remounted, disk, "ro"):
                return [KERNEL]
            await trio.sleep(READ_ONLY_S)
        finally:
            assert _remounted(disk, "rw")
        storm.ended()
    return [KERNEL, *WRITES]


def _remounted(disk: str, mode: str) -> bool:
    """Return False if files are still open for writing: the services of the dead kernel have not ended in time."""
    for _ in range(100):
        if subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=False, capture_output=True).returncode == 0:
            return True
        time.sleep(0.02)
    return False
