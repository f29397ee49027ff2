"""Runs `watchfiles` or `watchdog` in a separate process, which prints the path of each change that it receives."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType

from tests.bench.parts.peer_venv import environment

_READY = "ready"

_WATCHFILES = """
import sys, threading, watchfiles
stop = threading.Event()
print("ready", flush=True)
for changes in watchfiles.watch(sys.argv[1], stop_event=stop, raise_interrupt=False):
    sys.stdout.write("".join(path + "\\n" for _, path in changes)); sys.stdout.flush()
"""

_WATCHDOG = """
import sys, time, watchdog.events, watchdog.observers
class Handler(watchdog.events.FileSystemEventHandler):
    def on_any_event(self, event):
        sys.stdout.write(event.src_path + "\\n"); sys.stdout.flush()
observer = watchdog.observers.Observer()
observer.schedule(Handler(), sys.argv[1], recursive=True)
observer.start()
print("ready", flush=True)
while True: time.sleep(1)
"""

_PROGRAMS = {"watchfiles": _WATCHFILES, "watchdog": _WATCHDOG}

_PACKAGES = ("watchfiles==1.3.0", "watchdog==7.1.0")


class Peer:
    """A watching process."""

    def __init__(self, name: str, root: Path) -> None:
        python = environment("watchers", _PACKAGES)
        self._process = subprocess.Popen(
            [str(python), "-c", _PROGRAMS[name], str(root)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._told: set[str] = set()
        self._changed = threading.Condition()
        self._last = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Peer:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == _READY.encode()
        self._reader.start()
        # It reports ready before all its watches exist.
        time.sleep(1.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._told.add(os.fsdecode(line.rstrip(b"\n")))
                self._last = time.monotonic()
                self._changed.notify_all()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def until_quiet(self, patience_s: float) -> set[str]:
        """Return all reported paths once no more arrive."""
        self._last = time.monotonic()
        while time.monotonic() - self._last < patience_s:
            time.sleep(0.1)
        return set(self._told)

    def until_told(self, path: str, patience_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: path in self._told, patience_s)
