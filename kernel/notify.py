"""What a service manager is told of this kernel, as sd_notify(3) has it: ready, still alive, ending.

Nothing where none has asked: systemd sets `NOTIFY_SOCKET` for a unit of `Type=notify`, and `WATCHDOG_USEC` for one with
`WatchdogSec=`.  A kernel whose event loop stands still sends no sign of life, and is started again.
"""

from __future__ import annotations

import contextlib
import os
import socket

import trio


class Manager:
    """The service manager, if there is one."""

    def __init__(self) -> None:
        self._address = os.environ.get("NOTIFY_SOCKET", "")
        own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        given = os.environ.get("WATCHDOG_USEC", "") if own else ""
        self._watchdog_s = int(given) / 1e6 if given.isdigit() else 0.0

    @property
    def is_there(self) -> bool:
        return bool(self._address)

    def tell(self, state: str) -> None:
        """One message, such as `READY=1`; lost where nobody takes it."""
        if not self._address:
            return
        # An abstract address begins with a zero byte, which no variable can hold.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line,
            contextlib.suppress(OSError),
        ):
            line.setblocking(False)
            line.sendto(state.encode(), address)

    async def keep_alive(self) -> None:
        """Signs of life, twice as often as they are wanted; returns at once where none are."""
        while self._address and self._watchdog_s:
            self.tell("WATCHDOG=1")
            await trio.sleep(self._watchdog_s / 2)
