"""The live figures of the operator's page, as server-sent events.

A page gets everything once (`overview`), and then only what changed (`changes`): `{"at": …, "changes": {…}}`, where a
service's members are those that changed, and null removes one. What the page can work out itself, such as how long a
service has been up, is not sent again, and neither is a figure that has hardly changed. So a page at rest gets some
hundred bytes each time, not some ten thousand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
import trio

from proto.errors import LinckiaError
from proto.json_types import JsonObject
from proto.operation import operation_of
from proto.ops.observation import KernelOverview, KernelPageCall
from proto.origin import Origin
from proto.wire.front import OWN
from services.runtime.dispatch import Dispatcher

LIVE_S: Final = 1.5
"""Interval of the live figures."""

SAME: Final[Mapping[str, tuple[float, float]]] = {
    "cpu": (0.01, 0.1),
    "kernel_cpu": (0.01, 0.1),
    "rss_bytes": (1 << 20, 0.02),
    "pss_bytes": (1 << 20, 0.02),
    "kernel_pss_bytes": (1 << 20, 0.02),
    "total_pss_bytes": (1 << 20, 0.01),
    "p50_ms": (0.1, 0.05),
    "p99_ms": (0.1, 0.05),
    "age_s": (60.0, 0.02),
}
"""Figures that are not sent again while they differ by less than this much, or by less than this share."""

ELAPSED: Final = "uptime_s"
"""It grows by itself: it is sent again only if it has not grown as the clock has."""

ELAPSED_SLACK_S: Final = 2.0


class Live:
    """The live figures: asks the kernel once per interval, however many pages are open, and not at all without one."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._key = ""
        self._readers: dict[trio.MemorySendChannel[bytes], JsonObject | None] = {}
        """What each page knows; None before its first figures."""
        self._wanted = trio.Event()
        self._is_closed = False

    async def run(self) -> None:
        """Send figures to the readers until cancelled."""
        while True:
            await self._wanted.wait()
            while self._readers:
                self._send(await self._found())
                await trio.sleep(LIVE_S)
            self._wanted = trio.Event()

    def _send(self, found: JsonObject | LinckiaError) -> None:
        for reader, known in tuple(self._readers.items()):
            if isinstance(found, LinckiaError):
                event, now = _event("failure", {"error": str(found)}), known
            elif known is None:
                event, now = _event("overview", found), found
            else:
                now = dict(known)
                event = _event("changes", {"at": found["at"], "changes": updated(now, found)})
            try:
                reader.send_nowait(event)
                self._readers[reader] = now
            except trio.WouldBlock:
                # A page that does not read gets the next figures once it does.
                continue

    async def _found(self) -> JsonObject | LinckiaError:
        try:
            found: JsonObject = msgspec.to_builtins(await self.ask(self._key, OWN))
        except LinckiaError as error:
            return error
        found["services"] = {each["name"]: each for each in found["services"]}
        return found

    async def ask(self, key: str, origin: Origin) -> object:
        """Return the current figures. Raises Forbidden: the key is wrong."""
        call = KernelPageCall(operation=operation_of(KernelOverview).name, key=key)
        return await self._dispatcher.call(operation_of(KernelPageCall), call, origin=origin)

    async def events(self, key: str) -> AsyncIterator[bytes]:
        """Yield server-sent events until the front ends. The caller has checked the key."""
        self._key = key
        send, receive = trio.open_memory_channel[bytes](1)
        self._readers[send] = None
        self._wanted.set()
        try:
            if self._is_closed:
                return
            async for event in receive:
                yield event
        finally:
            self._readers.pop(send, None)

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for reader in tuple(self._readers):
            reader.close()
        self._readers.clear()


def _event(kind: str, data: JsonObject) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(data))


def updated(known: JsonObject, found: JsonObject) -> JsonObject:
    """Bring what a page knows up to date, and return what to send it; null removes a member."""
    passed_s = found["at"] - known["at"]
    known["at"] = found["at"]
    return _updated(known, found, passed_s)


def _updated(known: JsonObject, found: JsonObject, passed_s: float) -> JsonObject:
    changes: JsonObject = {}
    for name in known.keys() - found.keys():
        changes[name] = None
        del known[name]
    for name, value in found.items():
        before = known.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = dict(before)
            if below := _updated(inner, value, passed_s):
                changes[name] = below
            known[name] = inner
        elif name == ELAPSED and before is not None and value is not None:
            if abs(value - before - passed_s) > ELAPSED_SLACK_S:
                changes[name] = value
            known[name] = value
        elif name not in known or not _is_same(name, before, value):
            changes[name] = known[name] = value
    return changes


def _is_same(name: str, before: Any, value: Any) -> bool:
    if before is None or value is None or name not in SAME:
        return bool(before == value)
    most, share = SAME[name]
    return bool(abs(value - before) <= max(most, share * abs(before)))
