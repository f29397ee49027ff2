"""Two machines on one: network namespaces with a real network between them, which is slow or cut when a test says so.

What runs on one of them reaches the other only by the wire (`network.wire`). They share files, so a kernel's control
socket is reached from everywhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from tests.system.running import REPOSITORY
from tests.system.support.network.wire import ADDRESSES, Count, Weather

NEAR = Weather()
FAR = Weather(delay_s=0.040, jitter_s=0.010)
FAR_AND_LOSSY = msgspec.structs.replace(FAR, loss=0.02)

UNTIL_MENDED_S = 1e9

MISSING = "" if shutil.which("nsenter") and shutil.which("ip") else "needs nsenter (util-linux) and ip (iproute2)"


class CannotSeparate(Exception):
    """There can be no network namespaces with TAP devices here; the message says why."""


class Machine:
    """One of the two. What is started `within` it has its network."""

    def __init__(self, address: str, namespace: Path) -> None:
        self.address = address
        self.within: Sequence[str] = ("nsenter", f"--net={namespace}", "--")
        """The beginning of a command that runs here; it becomes the command, with the same pid."""
        self._identity = os.stat(namespace).st_ino

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program here. Its output goes to `log`, or nowhere."""
        with (log or Path(os.devnull)).open("ab") as out:
            return subprocess.Popen(
                [*self.within, *command], cwd=REPOSITORY, env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip

    def run(self, *command: str) -> str:
        """Run a program here and return its output. Raises CalledProcessError."""
        return subprocess.run([*self.within, *command], check=True, capture_output=True, text=True).stdout

    def processes(self) -> list[psutil.Process]:
        """Return what runs here, whoever started it."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if os.stat(f"/proc/{each.pid}/ns/net").st_ino == self._identity:
                    found.append(each)
        return found

    def kill(self) -> None:
        """Kill everything that runs here, as a loss of power does."""
        for _ in range(100):
            # What was just forked is killed in the next round.
            if not (left := self.processes()):
                return
            for each in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(left, timeout=1)
        raise AssertionError(f"these cannot be killed: {left}")


class TwoMachines:
    """The machine `here`, with the kernel, the other machine `there`, and the cable between them."""

    def __init__(self, wire: subprocess.Popen[bytes], descriptors: Sequence[int]) -> None:
        self._wire = wire
        self._weather = NEAR
        self.here, self.there = (
            Machine(address, Path("/proc", str(wire.pid), "fd", str(fd)))
            for address, fd in zip(ADDRESSES, descriptors, strict=True)
        )

    def set(self, weather: Weather) -> Count:
        """Change the weather; return what the wire has carried until now."""
        self._weather = weather
        return self._tell(weather)

    def cut(self, seconds: float = UNTIL_MENDED_S) -> Count:
        """Cut the cable for so long: neither machine hears of the other, and nothing says so."""
        return self._tell(msgspec.structs.replace(self._weather, cut_s=seconds))

    def mend(self) -> Count:
        """Connect the machines as before the cut."""
        return self._tell(self._weather)

    def _tell(self, weather: Weather) -> Count:
        assert self._wire.stdin is not None
        assert self._wire.stdout is not None
        self._wire.stdin.write(msgspec.json.encode(weather) + b"\n")
        self._wire.stdin.flush()
        return msgspec.json.decode(self._wire.stdout.readline(), type=Count)


@contextlib.contextmanager
def two_machines(seed: int = 1) -> Iterator[TwoMachines]:
    """Make two machines and a cable without delay; nothing of them is left afterwards. Raises CannotSeparate.

    Args:
        seed: decides which frames are lost.
    """
    if MISSING:
        raise CannotSeparate(MISSING)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.system.support.network.wire", str(seed)], cwd=REPOSITORY,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as wire:  # fmt: skip
        assert wire.stdout is not None
        assert wire.stderr is not None
        if not (line := wire.stdout.readline()):
            said = wire.stderr.read().decode().strip().rpartition("\n")[2]
            raise CannotSeparate(f"needs the right to make network namespaces and TAP devices: {said}")
        machines = TwoMachines(wire, msgspec.json.decode(line, type=list[int]))
        try:
            yield machines
        finally:
            try:
                machines.there.kill()
                machines.here.kill()
            finally:
                # The devices, and so the namespaces, end with it.
                wire.kill()
