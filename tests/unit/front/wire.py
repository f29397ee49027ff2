"""A raw client over pipes: it sends and receives lines of JSON, nothing else."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import trio

from kernel import VERSION
from proto.ops import Table
from services.front.gateway import Gateway, open_gateway
from services.front.transport.stdio import attach
from services.runtime.handlers import OpenService
from tests.unit.front.inprocess import InProcess, in_process
from tests.unit.front.operations import TABLE, open_service

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Wire:
    """The client's ends of two pipes."""

    def __init__(self, to_server: int, from_server: int) -> None:
        self.writer = trio.lowlevel.FdStream(to_server)
        self.reader = trio.lowlevel.FdStream(from_server)
        self._buffer = b""
        self.ended = trio.Event()

    async def send_bytes(self, data: bytes) -> None:
        await self.writer.send_all(data)

    async def send(self, message: dict[str, Any]) -> None:
        await self.send_bytes(json.dumps(message).encode() + b"\n")

    async def line(self) -> bytes:
        """The next line; empty at the end."""
        while b"\n" not in self._buffer:
            data = await self.reader.receive_some(65536)
            if not data:
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    async def receive(self) -> dict[str, Any]:
        with trio.fail_after(10):
            line = await self.line()
        assert line, "the server closed the connection"
        message: dict[str, Any] = json.loads(line)
        return message

    async def initialize(self, version: str = "2025-11-25", capabilities: dict[str, Any] | None = None) -> Any:
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": client}
        await self.send({"jsonrpc": "2.0", "id": "init", "method": "initialize", "params": params})
        answer = await self.receive()
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    async def open_modern(self) -> Any:
        await self.send({"jsonrpc": "2.0", "id": "open", "method": "server/discover", "params": {"_meta": META}})
        return (await self.receive())["result"]

    async def call(self, name: str, arguments: object = None, *, id: int | str = 1, meta: object = None) -> None:
        params: dict[str, Any] = {"name": name}
        if arguments is not None:
            params["arguments"] = arguments
        if meta is not None:
            params["_meta"] = meta
        await self.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})


@contextlib.asynccontextmanager
async def gateway_in_process(table: Table = TABLE, *services: OpenService) -> AsyncIterator[tuple[Gateway, InProcess]]:
    """A gateway with the SDK loaded, which answers everything."""
    async with (
        in_process(*(services or (open_service,))) as dispatcher,
        open_gateway(table, dispatcher, dispatcher, version=VERSION) as gateway,
    ):
        await gateway.server("all")
        yield gateway, dispatcher


@contextlib.asynccontextmanager
async def connected(gateway: Gateway, surface: str = "all") -> AsyncIterator[Wire]:
    """A client attached to a surface; at the end its input is closed and the server must end by itself."""
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    wire = Wire(client_out, client_in)

    async def serve() -> None:
        try:
            await attach(gateway, server_in, server_out, surface)
        finally:
            os.close(server_in)
            os.close(server_out)
            wire.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield wire
        await wire.writer.aclose()
        with trio.fail_after(40):
            await wire.ended.wait()
        await wire.reader.aclose()
