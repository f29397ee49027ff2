"""HTTP as a front serves it: MCP, the routes that operations declare, the metrics, the operator's page."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
import trio

from proto import grants
from proto.errors import LinckiaError
from proto.front import SERVICE, FrontSettings
from proto.operation import operation_of
from proto.ops import Table
from proto.ops.fetch import IssuerKeys, IssuerKeySet
from proto.ops.kernel import KernelReady
from services.front.dispatcher import LinkDispatcher
from services.front.gateway import Gateway
from services.front.transport.http import serve_http
from services.front.transport.http_server import Relay
from services.front.transport.oauth import ResourceServer
from services.front.transport.tokens import Tokens
from services.front.transport.turns import Shared
from services.front.web import metrics, page, routes


async def serve(
    gateway: Gateway,
    dispatcher: LinkDispatcher,
    declared: Table,
    settings: FrontSettings,
    listening: socket.socket,
    ending: trio.Event,
    relay: Relay,
    *,
    front: str,
) -> None:
    """Until `ending` is set, and the requests in flight are answered.

    Args:
        declared: all operations, those of services that are switched off among them.
        front: the name of this process.
    """
    assert settings.http is not None

    async def ready() -> bool:
        try:
            return await dispatcher.call(operation_of(KernelReady), KernelReady(), caller=SERVICE) is True
        except LinckiaError:
            return False

    shared = Shared()
    of_table = routes.routes(
        dispatcher, declared, settings.http.max_body_bytes, unserved=settings.unserved, shared=shared
    )
    every = [*of_table, *metrics.routes(dispatcher), *page.routes(dispatcher)]

    async def read_keys() -> list[dict[str, Any]]:
        # Whoever is served meanwhile has no part in it.
        with grants.lifted():
            answer = await dispatcher.call(operation_of(IssuerKeys), IssuerKeys(), caller=SERVICE)
        return msgspec.convert(answer, IssuerKeySet).keys

    oauth = settings.http.oauth
    issuer = None if oauth is None else ResourceServer(oauth, read_keys)
    tokens = Tokens()
    async with trio.open_nursery() as nursery:
        await nursery.start(tokens.follow, dispatcher, front)
        await serve_http(
            gateway, settings.http, listening, routes=every, ready=ready, tokens=tokens, shutdown=ending.wait,
            issuer=issuer, shared=shared, session_key=bytes.fromhex(settings.session_key), several=settings.workers > 1,
            relay=relay,
        )  # fmt: skip
        nursery.cancel_scope.cancel()
