"""Servers that do not quite speak MCP, as public reports describe them, work as well as they can."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from services.mounts.link import messages
from services.mounts.link.messages import UNKNOWN, Message, NotJson
from tests.unit.mounts.kernel import Client, adapter

SERVER = r"""
import json, sys
mode, lists = sys.argv[1], 0
TOOL = {"name": "work", "inputSchema": {"type": "object"}}
DONE = {"content": [{"type": "text", "text": "done"}]}
BOM = b"\xef\xbb\xbf"

def write(before, message):
    sys.stdout.buffer.write(before + json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()

def reply(i, result, before=b""):
    write(before, {"jsonrpc": "2.0", "id": i, "result": result})

def notify(method, **params):
    write(b"", {"jsonrpc": "2.0", "method": method, "params": params})

for line in sys.stdin:
    m = json.loads(line)
    i, method, params = m.get("id"), m.get("method"), m.get("params") or {}
    if method is None: continue
    if i is None:
        if mode == "crashes" and method == "notifications/cancelled":
            sys.exit("cannot read this notification")
        continue
    if method == "initialize":
        if mode == "early":
            notify("notifications/tools/list_changed")
            notify("notifications/message", level="info", data="hello")
            write(b"", {"jsonrpc": "2.0", "id": "ours", "method": "ping"})
        capabilities = {} if mode == "silent" else {"tools": {"listChanged": True}}
        if mode == "claims":
            capabilities |= {"prompts": {}, "resources": {}}
        reply(i, {"protocolVersion": "2025-06-18", "capabilities": capabilities,
                  "serverInfo": {"name": "n", "version": "1"}}, BOM if mode == "bom" else b"")
    elif method == "tools/list":
        lists += 1
        page = {"tools": [TOOL]}
        if mode == "empty": page["nextCursor"] = ""
        if mode == "null": page["nextCursor"] = None
        if mode == "pages" and params.get("cursor") != "2":
            page = {"tools": [{**TOOL, "name": f"page{params.get('cursor', 0)}"}],
                    "nextCursor": str(int(params.get("cursor", 0)) + 1)}
        reply(i, page)
        if mode == "asks again": notify("notifications/tools/list_changed")
    elif method == "tools/call":
        token = params.get("_meta", {}).get("progressToken")
        text = params["arguments"].get("text", "")
        if text == "lists": reply(i, {"content": [{"type": "text", "text": str(lists)}]})
        elif text == "wait": continue
        elif mode == "float": write(b"", {"jsonrpc": "2.0", "id": float(i), "result": DONE})
        elif mode == "last": write(b"working ", {"result": DONE, "jsonrpc": "2.0", "id": i})
        elif mode == "token":
            notify("notifications/progress", progressToken=f"tool-call-{i}", progress=0)
            notify("notifications/progress", progressToken=token, progress=1, total=2)
            reply(i, DONE)
            notify("notifications/progress", progressToken=token, progress=2, total=2)
        else: reply(i, DONE, {"bom": BOM, "prints": b"working ... ", "bar": b"\r 0%|#\r100%|##",
                              "braces": b'{"done": 1} {"id" ', "colour": b"\x1b[32mok\x1b[0m "}.get(mode, b""))
    elif method == "ping": reply(i, {})
    else: write(b"", {"jsonrpc": "2.0", "id": i, "error": {"code": -32601, "message": "no"}})
"""


def odd(mode: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", SERVER, mode]}


@pytest.mark.parametrize(
    "mode", ["bom", "prints", "bar", "braces", "colour", "last", "float", "empty", "null", "silent", "claims", "early"]
)
async def test_the_server_works(tmp_path: Path, mode: str) -> None:
    with trio.fail_after(10):
        async with adapter(tmp_path, **odd(mode)) as running:
            found = await running.until_put(1)
            assert [json.loads(bytes(tool))["name"] for tool in found.tools] == ["work"]
            assert found.problems == []
            assert [await running.tool("work") for _ in range(3)] == ["done"] * 3


async def test_text_before_a_reply_is_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with adapter(tmp_path, **odd("prints")) as running:
        assert await running.tool("work") == "done"
    assert "stdout: working ... \n" in capfd.readouterr().err


async def test_all_pages_are_read(tmp_path: Path) -> None:
    async with adapter(tmp_path, **odd("pages")) as running:
        found = await running.until_put(1)
        assert [json.loads(bytes(tool))["name"] for tool in found.tools] == ["page0", "page1", "work"]


async def test_a_server_that_reports_a_change_whenever_it_is_asked_is_listed_and_asked_less_and_less(
    tmp_path: Path,
) -> None:
    async with adapter(tmp_path, **odd("asks again")) as running:
        with trio.fail_after(5):
            await running.until_put(1)
        await trio.sleep(2)
        before = int(await running.tool("work", {"text": "lists"}))
        await trio.sleep(2)
        # It was asked 10 times a second.
        assert int(await running.tool("work", {"text": "lists"})) - before <= 2


async def test_only_progress_of_the_call_itself_reaches_the_client(tmp_path: Path) -> None:
    async with adapter(tmp_path, **odd("token")) as running:
        client = Client(None)
        assert await running.tool("work", client=client) == "done"
        assert client.progressed[0] == (1.0, 2.0, None)
        assert await running.tool("work") == "done"


async def test_a_server_that_dies_of_a_cancellation_serves_the_next_call(tmp_path: Path) -> None:
    with trio.fail_after(20):
        async with adapter(tmp_path, share="client", **odd("crashes")) as running:
            assert await running.tool("work") == "done"
            with trio.move_on_after(0.2):
                await running.tool("work", {"text": "wait"})
            await trio.sleep(0.3)
            assert await running.tool("work") == "done"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'text {"jsonrpc": "2.0", "id": 1, "result": {}}', b"text "),
        (b'a {"id" {"jsonrpc":"2.0","id":1,"error":{}}', b'a {"id" '),
        (b'{"result":{},"id":1,"jsonrpc":"2.0"}', b""),
        # The message that it received, and parts of other objects.
        (b'got {"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', None),
        (b'{"level":"info","reply":{"jsonrpc":"2.0","id":1,"result":{}}}', None),
        (b'text {"id":1,"result":{}}', None),
        (b'text {"jsonrpc":"2.0","id":1,"result":7}', None),
        (b'text {"jsonrpc":"2.0","id":1,"result":{}} more', None),
        (b'{"id"' * 100_000, None),
    ],
)
def test_a_reply_behind_text_is_found(line: bytes, found: bytes | None) -> None:
    behind = messages.behind_text(line)
    assert (behind and behind[0]) == found
    if behind is not None:
        assert behind[1].id == 1


@pytest.mark.parametrize(
    ("token", "number"), [(1.0, 1), ("1", 1), (1, 1), (1.5, UNKNOWN), (True, UNKNOWN), (None, UNKNOWN)]
)
def test_ids_may_be_written_otherwise(token: object, number: int) -> None:
    assert messages.number_of(token) == number


def test_a_byte_order_mark_is_not_part_of_a_message() -> None:
    (found,) = messages.parse(b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"x"}')
    assert isinstance(found, Message)
    assert found.method == "x"
    with pytest.raises(NotJson):
        messages.parse(b"\xef\xbb\xbf")
