"""Subscriptions of clients without a handshake to resources of mounted servers.

Such a client names resources in `subscriptions/listen`. Their servers are asked to report changes for as long as that
request lasts.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import msgspec
import trio

from proto.errors import LinckiaError
from proto.mounts import READ, MountRequest, operations_of
from proto.origin import Origin
from services.runtime.dispatch import Dispatcher

UNSUBSCRIBE_S = 5.0

_log = logging.getLogger("linckia.service")


class Listeners:
    """The resources of mounted servers that clients of this front listen to."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._counts: Counter[tuple[str, str, str]] = Counter()

    @contextlib.asynccontextmanager
    async def listening(self, origin: Origin, resources: Iterable[tuple[str, str]]) -> AsyncIterator[None]:
        """Have resources watched while this context is active.

        Args:
            origin: who listens.
            resources: mounts and their own URIs.
        """
        keys = {(origin.session, mount, uri) for mount, uri in resources}
        self._counts.update(keys)
        try:
            for key in keys:
                if self._counts[key] == 1:
                    await self._send("resources/subscribe", origin, key)
            yield
        finally:
            self._counts.subtract(keys)
            with trio.CancelScope(shield=True), trio.move_on_after(UNSUBSCRIBE_S):
                for key in keys:
                    if not self._counts[key]:
                        del self._counts[key]
                        await self._send("resources/unsubscribe", origin, key)

    async def _send(self, method: str, origin: Origin, key: tuple[str, str, str]) -> None:
        _, mount, uri = key
        request = MountRequest(method=method, name=uri[:4096], params=msgspec.json.encode({"uri": uri}), modern=True)
        try:
            await self._dispatcher.call(operations_of(mount)[READ], request, origin=origin, written=True)
        except LinckiaError as error:
            _log.warning("%s of %s: %s", method, mount, error)
