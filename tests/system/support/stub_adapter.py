"""A stand-in for the adapter: runs a server and passes requests on, without the rest of MCP."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator

import msgspec
import trio

from linckia.proto.errors import Unavailable
from linckia.proto.frames import Written
from linckia.proto.mounts import MountRequest, operations_of
from linckia.services.runtime.handlers import Context, Environment, Handlers


class Reply(msgspec.Struct):
    id: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Run the server while the service is open; end with it."""
    command = [env.settings["command"], *env.settings.get("args", [])]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    ids, waiting = itertools.count(1), dict[int, trio.MemorySendChannel[Reply]]()
    env.info(rests="yes")

    async def read() -> None:
        held = b""
        async for data in stdout:
            *lines, held = (held + data).split(b"\n")
            for line in lines:
                reply = msgspec.json.decode(line, type=Reply)
                await waiting.pop(reply.id).send(reply)
        await process.wait()
        raise Unavailable(f"the server ended with {process.returncode}")

    async def ask(method: str, params: bytes) -> Reply:
        number = next(ids)
        waiting[number], answers = trio.open_memory_channel[Reply](1)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": msgspec.Raw(params)}
        await stdin.send_all(msgspec.json.encode(message) + b"\n")
        return await answers.receive()

    async def serve(request: MountRequest, ctx: Context) -> Written:
        reply = await ask(request.method, request.params)
        kind, body = ("result", reply.result) if reply.error is msgspec.UNSET else ("error", reply.error)
        return Written(msgspec.json.encode({kind: body}))

    env.background.start_soon(read)
    await ask("initialize", b'{"protocolVersion": "2025-11-25"}')
    handlers = Handlers()
    for number, operation in enumerate(operations_of(env.settings["mount"]).values()):
        params = type(MountRequest)(f"Request{number}", (MountRequest,), {}, frozen=True, kw_only=True)
        params.__operation__ = operation  # type: ignore[attr-defined]  # as `proto.operation.operation` does
        handlers.by_name[operation.name] = (params, serve)
    try:
        yield handlers
    finally:
        process.kill()
