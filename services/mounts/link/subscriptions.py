"""Subscriptions to resources and lists: remembered, and renewed when the server starts again.

A server with a handshake is asked for each resource (`resources/subscribe`) and reports changed lists by itself. One
without gets a single request (`subscriptions/listen`) that names everything, and which is made again when that changes.
"""

from __future__ import annotations

import logging
import math

import trio
from msgspec import UNSET

from proto import mcp
from proto.errors import InvalidParams
from proto.mounts import MountRequest
from proto.wire.frames import Written
from services.mounts.instance import Instance
from services.mounts.link import messages
from services.mounts.link.peer import BadReply, Lost, NoReply
from services.mounts.remembered import Remembered
from services.runtime.handlers import Context

RENEW_S = 30.0
"""Time for a server to accept a renewed subscription."""
AGAIN_S = 1.0
"""Pause before a server is asked again that has ended the request."""

_DONE = Written(b'{"result":{}}')
_log = logging.getLogger("linckia.mount")


async def change(
    instance: Instance, request: MountRequest, ctx: Context, remembered: Remembered, listening: Listening | None
) -> Written:
    """Subscribe or unsubscribe a client. Raises InvalidParams, Lost or Timeout."""
    params = messages.value(request.params)
    uri = params.get("uri") if isinstance(params, dict) else None
    if not isinstance(uri, str):
        raise InvalidParams("`uri` is missing", field="uri")
    subscribes = request.method == "resources/subscribe"
    if instance.greeting.modern:
        if subscribes:
            remembered.subscribe(uri, ctx.session)
        else:
            remembered.unsubscribe(uri, ctx.session)
        if listening is not None:
            listening.renew()
        return _DONE
    if not subscribes:
        is_last = remembered.unsubscribe(uri, ctx.session)
        return await instance.call(request, ctx) if is_last else _DONE
    reply = await instance.call(request, ctx)
    if reply.json.startswith(b'{"result"'):
        remembered.subscribe(uri, ctx.session)
    return reply


class Listening:
    """Keeps the subscriptions of one server."""

    def __init__(self, instance: Instance, remembered: Remembered) -> None:
        self._instance = instance
        self._remembered = remembered
        self._scope = trio.CancelScope()
        self._request = trio.CancelScope()

    def close(self) -> None:
        self._scope.cancel()

    def renew(self) -> None:
        """Make the request of a server without a handshake again, since what it names has changed."""
        self._request.cancel()

    async def run(self) -> None:
        """Renew what earlier processes subscribed to, and keep it up."""
        with self._scope:
            try:
                if self._instance.greeting.modern:
                    await self._listen()
                else:
                    await self._subscribe()
            except BadReply as error:
                _log.warning("subscriptions are not renewed: the server's reply cannot be read: %s", error)
            except (Lost, NoReply):
                # The end of the server is handled elsewhere.
                return

    async def _subscribe(self) -> None:
        for uri in list(self._remembered.state.subscriptions):
            reply = await self._instance.ask("resources/subscribe", {"uri": uri}, limit_s=RENEW_S)
            if reply.result is UNSET:
                _log.warning("resources/subscribe %s: %s", uri, messages.error_of(reply)[1])

    async def _listen(self) -> None:
        while True:
            self._request = trio.CancelScope()
            with self._request:
                if not (wanted := self._wanted()):
                    await trio.sleep_forever()
                reply = await self._instance.listen("subscriptions/listen", {"notifications": wanted}, limit_s=math.inf)
                if messages.error_of(reply)[0] == mcp.METHOD_NOT_FOUND:
                    return
                await trio.sleep(AGAIN_S)

    def _wanted(self) -> messages.JsonObject:
        can = self._instance.greeting.can
        wanted: messages.JsonObject = {
            f"{name}ListChanged": True
            for name in ("tools", "prompts", "resources")
            if isinstance(can.get(name), dict) and can[name].get("listChanged")
        }
        if uris := list(self._remembered.state.subscriptions):
            wanted["resourceSubscriptions"] = uris
        return wanted
