"""HTTP as a front serves it: MCP, the routes that operations declare, the metrics, the operator's page."""

from __future__ import annotations

import socket

import trio

from proto.errors import LinckiaError
from proto.front import SERVICE, FrontSettings
from proto.operation import operation_of
from proto.ops import Table
from proto.ops.kernel import KernelReady
from services.front.dispatcher import LinkDispatcher
from services.front.gateway import Gateway
from services.front.transport.http import serve_http
from services.front.web import metrics, page, routes


async def serve(
    gateway: Gateway,
    dispatcher: LinkDispatcher,
    declared: Table,
    settings: FrontSettings,
    listening: socket.socket,
    ending: trio.Event,
) -> None:
    """Until `ending` is set, and the requests in flight are answered.

    Args:
        declared: all operations, those of services that are switched off among them.
    """
    assert settings.http is not None

    async def ready() -> bool:
        try:
            return await dispatcher.call(operation_of(KernelReady), KernelReady(), caller=SERVICE) is True
        except LinckiaError:
            return False

    of_table = routes.routes(dispatcher, declared, settings.http.max_body_bytes, unserved=settings.unserved)
    every = [*of_table, *metrics.routes(dispatcher), *page.routes(dispatcher)]
    await serve_http(
        gateway, settings.http, listening, routes=every, ready=ready, session_key=bytes.fromhex(settings.session_key),
        several=settings.workers > 1, shutdown=ending.wait,
    )  # fmt: skip
