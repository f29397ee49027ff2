"""The stdio transport: every line is answered or refused with a reason; descriptors are left as they were found."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from proto.errors import InvalidParams
from services.front.transport.descriptors import Input
from services.front.transport.json_lines import MAX_MESSAGE_BYTES, lines
from services.front.transport.stdio import attach
from tests.unit.front.wire import META, connected, gateway_in_process


def call_line(name: str, arguments: Any = None, id: int = 1) -> bytes:
    params = {"name": name, "arguments": arguments or {}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode() + b"\n"


INITIALIZE = (
    json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 0,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
    ).encode()
    + b"\n"
)
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json\n", -32700),
        (b'{"jsonrpc":"2.0","id":1,\n', -32700),
        (b'\xff\xfe{"jsonrpc":"2.0"}\n', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\xff"}}\n', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"\xff":1}}\n', -32700),
        (b"5\n", -32600),
        (b"[]\n", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]\n', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}\n', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}\n', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t_list","arguments":{"a":NaN}}}\n', -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":' + b"[" * 5000 + b"]" * 5000 + b"}\n", -32700),
    ],
)
async def test_invalid_messages_are_refused_and_the_connection_continues(line: bytes, code: int) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        await wire.send_bytes(line)
        refused = await wire.receive()
        assert refused["error"]["code"] == code
        await wire.call("t_string", id=2)
        assert (await wire.receive())["id"] == 2


@pytest.mark.parametrize(
    ("inner", "said"),
    [(b"[" * 101 + b"]" * 101, "levels"), (b"[" + b"[]," * 97_000 + b"[]]", "lists and objects")],
)
async def test_messages_beyond_the_bounds_are_refused_by_id_before_they_are_decoded(inner: bytes, said: str) -> None:
    head = b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"t_string","arguments":{"message":'
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        await wire.send_bytes(head + inner + b"}}}\n")
        refused = await wire.receive()
        assert (refused["id"], refused["error"]["code"]) == (9, -32700)
        assert said in refused["error"]["message"]


async def test_half_a_surrogate_pair_is_refused_under_the_id_of_its_request() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        await wire.send_bytes(
            b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"t_string","arguments":{"a":"\\ud83d"}},"id":7}\n'
        )
        refused = await wire.receive()
        assert (refused["id"], refused["error"]["code"]) == (7, -32700)
        assert "\\ud83d, half of a surrogate pair" in refused["error"]["message"]


async def test_blank_lines_and_carriage_returns_are_no_messages() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.send_bytes(b"\n\r\n  \n" + INITIALIZE.replace(b"\n", b"\r\n") + INITIALIZED + b"\n")
        assert (await wire.receive())["id"] == 0
        await wire.call("t_string", id=2)
        assert (await wire.receive())["id"] == 2


async def test_a_message_over_the_limit_is_refused_by_its_id_and_the_next_is_served() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()

        async def send() -> None:
            await wire.send_bytes(b'{"jsonrpc":"2.0","id":77,"method":"tools/call","params":{"name":"')
            for _ in range(MAX_MESSAGE_BYTES // (1 << 20) + 2):
                await wire.send_bytes(b"x" * (1 << 20))
            await wire.send_bytes(b'"}}\n')
            await wire.call("t_string", id=78)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            refused = await wire.receive()
            assert refused["id"] == 77
            assert str(MAX_MESSAGE_BYTES) in refused["error"]["message"]
            assert (await wire.receive())["id"] == 78


async def test_lines_are_whole_however_they_arrive() -> None:
    """Every way of cutting the bytes gives the same lines."""
    data = b'{"a":1}\n\n{"b":"' + b"x" * 50 + b'"}\n{"id":3,"c":"' + b"y" * 300 + b'"}\nlast'

    class Pieces(Input):
        def __init__(self, size: int) -> None:
            self._pieces = [data[i : i + size] for i in range(0, len(data), size)]

        async def receive(self) -> bytes:
            await trio.lowlevel.checkpoint()
            return self._pieces.pop(0) if self._pieces else b""

    expected = None
    for size in range(1, len(data) + 1):
        found = [(line.data, line.skipped and line.skipped.request_id) async for line in lines(Pieces(size), limit=200)]
        expected = expected or found
        assert found == expected
    assert expected == [(b'{"a":1}', None), (b'{"b":"' + b"x" * 50 + b'"}', None), (b"", 3), (b"last", None)]


async def test_calls_in_flight_at_the_end_of_input_are_answered() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.initialize()
        # The last line has no newline, as `printf '{…}' | linckia stdio` sends it.
        await wire.send_bytes(call_line("t_wait", {"seconds": 0.3}, id=5) + call_line("t_string", id=6).rstrip())
        await wire.writer.aclose()
        assert (await wire.receive())["id"] == 6
        assert (await wire.receive())["id"] == 5
        assert await wire.line() == b""
        assert dispatcher.cancelled == []


@pytest.mark.parametrize("name", ["t_wait", "t_asks"])
async def test_a_request_is_withdrawn_by_the_very_next_line(name: str) -> None:
    """One of these tools is on the fast path, the other is not."""
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}\n'
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize(capabilities={"elicitation": {}})
        await wire.send_bytes(call_line(name, {}, id=5) + cancel + call_line("t_string", id=6))
        assert (await wire.receive())["id"] == 6
        # Nothing is in flight that the end would wait for.
        await wire.writer.aclose()
        with trio.fail_after(5):
            await wire.ended.wait()
        assert await wire.line() == b""


async def test_answering_after_the_end_of_input_is_bounded() -> None:
    async with gateway_in_process() as (gateway, dispatcher):
        server_in, client_out = os.pipe()
        client_in, server_out = os.pipe()
        os.write(client_out, INITIALIZE + INITIALIZED + call_line("t_wait", {}, id=5))
        os.close(client_out)
        with trio.fail_after(5):
            await attach(gateway, server_in, server_out, "all", drain_s=0.2)
        assert dispatcher.cancelled == ["t_wait"]
        for fd in (server_in, client_in, server_out):
            os.close(fd)


async def test_a_client_that_is_gone_withdraws_its_calls_at_once() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.initialize()
        await wire.call("t_wait", {}, id=5)
        with trio.fail_after(5):
            await dispatcher.started.wait()
            await wire.reader.aclose()
            await wire.writer.aclose()
            await wire.ended.wait()
        assert dispatcher.cancelled == ["t_wait"]


@pytest.mark.parametrize("opened", [True, False])
async def test_cancellation_ends_it(opened: bool) -> None:
    async with gateway_in_process() as (gateway, dispatcher):
        server_in, client_out = os.pipe()
        client_in, server_out = os.pipe()
        if opened:
            os.write(client_out, INITIALIZE + INITIALIZED + call_line("t_wait", {}, id=5))
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(attach, gateway, server_in, server_out, "all")
                if opened:
                    with trio.fail_after(5):
                        await dispatcher.started.wait()
                else:
                    await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        for fd in (server_in, client_out, client_in, server_out):
            os.close(fd)


async def test_descriptors_are_left_open_and_as_they_were_found() -> None:
    async with gateway_in_process() as (gateway, _):
        server_in, client_out = os.pipe()
        client_in, server_out = os.pipe()
        before = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (server_in, server_out)]
        os.write(client_out, INITIALIZE)
        os.close(client_out)
        await attach(gateway, server_in, server_out, "all")
        assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (server_in, server_out)] == before
        assert json.loads(os.read(client_in, 65536))["id"] == 0
        for fd in (server_in, client_in, server_out):
            os.close(fd)


async def test_a_regular_file_is_an_input_like_any_other(tmp_path: Path) -> None:
    asked = tmp_path / "requests.jsonl"
    asked.write_bytes(INITIALIZE + INITIALIZED + call_line("t_string", id=3))
    answered = tmp_path / "answers.jsonl"
    async with gateway_in_process() as (gateway, _):
        with asked.open("rb") as source, answered.open("wb") as target, trio.fail_after(10):
            await attach(gateway, source.fileno(), target.fileno(), "all")
        assert {json.loads(line)["id"] for line in answered.read_bytes().splitlines()} == {0, 3}


async def test_dev_null_is_an_input_like_any_other() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    async with gateway_in_process() as (gateway, _):
        with trio.fail_after(10):
            await attach(gateway, null, null, "all")
    os.close(null)


async def test_one_socket_for_both_directions() -> None:
    ours, theirs = socket.socketpair()
    async with gateway_in_process() as (gateway, _), trio.open_nursery() as nursery:
        nursery.start_soon(attach, gateway, theirs.fileno(), theirs.fileno(), "all")
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        await stream.send_all(INITIALIZE + INITIALIZED + call_line("t_string", id=3))
        seen = b""
        with trio.fail_after(5):
            while seen.count(b"\n") < 2:
                seen += await stream.receive_some(65536)
        assert {json.loads(line)["id"] for line in seen.splitlines()} == {0, 3}
        nursery.cancel_scope.cancel()
    ours.close()
    theirs.close()


async def test_a_client_that_does_not_read_gets_everything_once_it_does() -> None:
    """More answers than a pipe holds: none is lost or torn, and reading stops rather than memory growing."""
    count, text = 400, "x" * 900
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        for number in range(count):
            await wire.call("t_pair", {"text": text}, id=number)
        seen = {(await wire.receive())["id"] for _ in range(count)}
        assert seen == set(range(count))


async def test_an_unknown_surface_is_refused_by_name() -> None:
    async with gateway_in_process() as (gateway, _):
        with pytest.raises(InvalidParams, match="known surfaces: core, all, compact"):
            await attach(gateway, 0, 1, "everything")


async def test_calls_sent_before_the_handshake_is_answered_are_served_after_it() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.send_bytes(INITIALIZE + INITIALIZED + call_line("t_string", id=3) + call_line("t_list", id=4))
        answered = [(await wire.receive())["id"] for _ in range(3)]
        assert answered[0] == 0
        assert set(answered[1:]) == {3, 4}


async def test_a_call_before_any_handshake_is_refused() -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await wire.call("t_string", id=3)
        assert (await wire.receive())["error"]["code"] == -32602
        assert dispatcher.calls == []


async def test_one_connection_speaks_one_era() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.open_modern()
        await wire.send_bytes(INITIALIZE)
        assert (await wire.receive())["error"]["code"] == -32022
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        await wire.initialize()
        await wire.call("t_string", id=3, meta=META)
        assert (await wire.receive())["error"]["code"] == -32600


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_revision_with_a_handshake_is_spoken(version: str) -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        result = await wire.initialize(version)
        assert result["protocolVersion"] == version
        assert result["serverInfo"]["name"] == "linckia"
        assert result["capabilities"]["tools"] == {"listChanged": True}


async def test_an_unknown_revision_is_answered_with_one_that_is_known() -> None:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        assert (await wire.initialize("1999-01-01"))["protocolVersion"] == "2025-11-25"


async def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    async with gateway_in_process() as (gateway, _):

        async def come_and_go(count: int) -> None:
            for _ in range(count):
                async with connected(gateway) as wire:
                    await wire.initialize()
                    await wire.call("t_string", id=1)
                    await wire.receive()

        def now() -> tuple[int, int]:
            return trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd"))

        await come_and_go(3)
        before = now()
        await come_and_go(30)
        assert now() == before
