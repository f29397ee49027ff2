"""How a failing server looks to clients: the call that was in flight, the calls after it, and the processes left."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.bench.mounts._gateways import Gateway, NotServing, Served, server_command
from tests.bench.mounts._sessions import ANSWERED, SILENT, Reply, Session
from tests.bench.mounts.server import BIG_BYTES, PIDS, SLOW

CALL_LIMIT_S = 20.0
NEXT_LIMIT_S = 20.0
TRY_LIMIT_S = 5.0
LEFT_LIMIT_S = 5.0

MIB = 1024 * 1024


class Seen(msgspec.Struct):
    """What became of one fault.

    Attributes:
        next_s: time from the end of the call to the first good answer after it; None if there was none.
        reconnected: whether this took a new session.
        left: processes of the server that outlived the gateway.
    """

    reply: Reply | None = None
    note: str = ""
    next_s: float | None = None
    reconnected: bool = False
    left: int = 0

    def cell(self) -> str:
        """Return the cell of the table."""
        if self.reply is None:
            return (self.note + self._left()).removeprefix("; ")
        said = (
            self.reply.outcome if self.reply.outcome == SILENT else f"{self.reply.outcome} {self.reply.seconds:.1f} s"
        )
        if self.note:
            said += f", {self.note}"
        if self.next_s is None:
            return f"{said}; **no call works any more**{self._left()}"
        how = " in a new session" if self.reconnected else ""
        return f"{said}; next call {self.next_s:.1f} s{how}{self._left()}"

    def _left(self) -> str:
        return f"; **{self.left} left**" if self.left else ""


class Fault(msgspec.Struct, kw_only=True):
    """A fault, and how it is caused.

    Attributes:
        cause: makes the call; returns its reply, and what else is worth a note.
        failures: starts of the server that fail.
    """

    name: str
    cause: Callable[[Session, Path], tuple[Reply, str]]
    failures: int = 0


def pids(folder: Path) -> list[int]:
    """Return the processes of the server that live."""
    try:
        noted = [int(pid) for pid in (folder / PIDS).read_text().split()]
    except FileNotFoundError:
        return []
    return [pid for pid in noted if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _rss_bytes(folder: Path) -> int:
    total = 0
    for pid in pids(folder):
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total


def _call(tool: str) -> Callable[[Session, Path], tuple[Reply, str]]:
    return lambda session, folder: (session.call(tool, {}, CALL_LIMIT_S), "")


def _killed(session: Session, folder: Path) -> tuple[Reply, str]:
    with ThreadPoolExecutor(1) as callers:
        reply = callers.submit(session.call, "slow", {"seconds": 1}, CALL_LIMIT_S)
        while not (folder / SLOW).exists() and not reply.done():
            time.sleep(0.01)
        for pid in pids(folder):
            os.kill(pid, signal.SIGKILL)
        return reply.result(), ""


def _big(session: Session, folder: Path) -> tuple[Reply, str]:
    reply = session.call("big", {}, CALL_LIMIT_S)
    whole = len(reply.text) == BIG_BYTES
    # The text itself is of no use any more.
    reply.text = reply.text[:200]
    return reply, "" if whole or reply.outcome != ANSWERED else "not whole"


def _leak(session: Session, folder: Path) -> tuple[Reply, str]:
    most = 0
    with ThreadPoolExecutor(1) as callers:
        reply = callers.submit(session.call, "leak", {}, CALL_LIMIT_S)
        while not reply.done():
            most = max(most, _rss_bytes(folder))
            time.sleep(0.05)
    # A gateway may have given up the call, while the server grows on.
    before = -1
    while (now := _rss_bytes(folder)) > before:
        before, most = now, max(most, now)
        time.sleep(2)
    return reply.result(), f"{most // MIB} MiB at most, {now // MIB} MiB then"


def _deaf(session: Session, folder: Path) -> tuple[Reply, str]:
    """The call after it is the one that is lost."""
    session.call("deafen", {}, 1.0)
    return session.call("echo", {}, CALL_LIMIT_S), ""


def _first(session: Session, folder: Path) -> tuple[Reply, str]:
    return session.call("echo", {"message": "first"}, CALL_LIMIT_S), ""


FAULTS = (
    Fault(name="killed during a call that only reads", cause=_killed),
    Fault(name="hangs", cause=_call("hang")),
    Fault(name="crashes at its first two starts", cause=_first, failures=2),
    Fault(name="answers with 50 MB", cause=_big),
    Fault(name="writes garbage to stdout", cause=_call("garbage")),
    Fault(name="closes its stdin and stdout", cause=_call("close")),
    Fault(name="closes only its stdin", cause=_deaf),
    Fault(name="leaks 1 GB", cause=_leak),
)


def seen(gateway: Gateway, fault: Fault) -> Seen:
    """Cause a fault behind a gateway."""
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as state:
        found, folder = Seen(), Path(state)
        try:
            with gateway(server_command(folder, fault.failures), Path(own)) as served:
                found = _through(served, fault, folder)
        except NotServing as error:
            found.note = f"the gateway does not start: {error}"
        found.left = _left(folder)
        return found


def killed_gateway(gateway: Gateway) -> Seen:
    """Kill a gateway whose server hangs."""
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as state:
        folder = Path(state)
        with gateway(server_command(folder), Path(own)) as served, contextlib.closing(served.connect()) as session:
            session.call("hang", {}, 1.0)
            os.kill(served.pid, signal.SIGKILL)
            left = _left(folder)
    return Seen(note="" if left else "none left", left=left)


def _through(served: Served, fault: Fault, folder: Path) -> Seen:
    try:
        session = served.connect()
    except ConnectionError as error:
        found = Seen(reply=Reply("no session", str(error)))
        _again(served, None, found)
        return found
    try:
        if not fault.failures:
            session.call("echo", {"message": "warm"}, CALL_LIMIT_S)
        reply, note = fault.cause(session, folder)
        found = Seen(reply=reply, note=note)
        _again(served, session, found)
    finally:
        session.close()
    return found


def _again(served: Served, session: Session | None, found: Seen) -> None:
    """Call until there is a good answer: in the session, then in new ones."""
    begun = time.monotonic()
    give_up = begun + NEXT_LIMIT_S
    while session is not None and time.monotonic() < give_up:
        if _works(session):
            found.next_s = time.monotonic() - begun
            return
        time.sleep(0.1)
    found.reconnected = True
    # Clients do so at once, and not after a time that is a choice of this benchmark.
    begun = time.monotonic()
    give_up = begun + NEXT_LIMIT_S
    while time.monotonic() < give_up:
        with contextlib.suppress(ConnectionError), contextlib.closing(served.connect()) as fresh:
            if _works(fresh):
                found.next_s = time.monotonic() - begun
                return
        time.sleep(0.1)


def _works(session: Session) -> bool:
    reply = session.call("echo", {"message": "hello"}, TRY_LIMIT_S)
    return reply.outcome == ANSWERED and reply.text == "hello"


def _left(folder: Path) -> int:
    """Wait until the server's processes have ended; return the number of those that did not, and kill them."""
    give_up = time.monotonic() + LEFT_LIMIT_S
    while (alive := pids(folder)) and time.monotonic() < give_up:
        time.sleep(0.05)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(alive)
