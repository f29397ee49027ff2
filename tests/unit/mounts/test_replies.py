"""A reply that cannot be read fails its call at once, and nothing else."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec import UNSET, Raw

from proto.errors import LinckiaError, MaybeExecuted, OperationError
from proto.mounts import READ
from services.mounts.link import messages
from services.mounts.link.messages import NotJson, Unreadable
from tests.unit.mounts.kernel import Client, adapter
from tests.unit.mounts.test_http import free_port, server, url

SERVER = Path(__file__).with_name("server.py")
AT_ONCE_S = 20.0
"""Less than any time limit of a call; the machine may be slow."""

NO_MEMBER = '{"jsonrpc":"2.0","id":$id}'
BROKEN = '{"jsonrpc":"2.0","id":$id,"result":{"content":[{"type":"text","text":"a"b"}]}}'
UNREADABLE = {
    "no member": (NO_MEMBER, "neither a result nor an error"),
    "a list as result": ('{"jsonrpc":"2.0","id":$id,"result":[1]}', "its result is not a JSON object"),
    "null as result": ('{"jsonrpc":"2.0","id":$id,"result":null}', "its result is not a JSON object"),
    "a text as error": ('{"jsonrpc":"2.0","id":$id,"error":"no"}', "its error is not a JSON object"),
    "broken JSON": (BROKEN, "not a JSON-RPC message"),
    "cut": ('{"jsonrpc":"2.0","id":$id,"result":{"content":[', "not a JSON-RPC message"),
    "not a number of JSON": ('{"result":{"x":NaN},"jsonrpc":"2.0","id":$id}', "not a JSON-RPC message"),
    "invalid UTF-8": ('{"result":{"x":"$ff"},"jsonrpc":"2.0","id":$id}', "not a JSON-RPC message: 'utf-8'"),
    "invalid member": ('{"jsonrpc":2,"id":$id,"result":{}}', "not a JSON-RPC message"),
}


@pytest.mark.parametrize(("line", "problem"), UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_reply_of_a_process_fails_its_call_at_once(tmp_path: Path, line: str, problem: str) -> None:
    async with adapter(tmp_path, command=sys.executable, args=[str(SERVER)]) as running:
        with trio.fail_after(AT_ONCE_S):
            with pytest.raises(MaybeExecuted, match=f"reply to tools/call cannot be read: .*{problem}"):
                await running.tool("reply", {"line": line})
            with pytest.raises(OperationError, match=problem):
                await running.tool("reply", {"line": line}, kind=READ)
        assert await running.tool("echo") == "{}"


# The SDK leaves a stream that it does not read to its end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("line", "problem"), UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("content", ["application/json", "text/event-stream"])
async def test_an_unreadable_reply_over_http_fails_its_call_at_once(
    tmp_path: Path, line: str, problem: str, content: str
) -> None:
    if "NaN" in line or (content == "text/event-stream" and "$ff" in line):
        pytest.skip("the SDK reads NaN as null; in a stream, the HTTP library replaces the byte")
    expected = problem if content == "application/json" else "not a JSON-RPC message"
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        with trio.fail_after(AT_ONCE_S), pytest.raises(MaybeExecuted, match=f"cannot be read: .*{expected}"):
            await running.tool("reply", {"body": line, "type": content})
        assert await running.tool("echo") == "{}"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("", "not a JSON-RPC message"),
        ('{"jsonrpc":"2.0","id":4000,"result":{}}', "it replies to request 4000 instead of "),
        ('{"jsonrpc":"2.0","method":"notifications/message"}', "a request or notification instead of the reply"),
    ],
)
async def test_a_body_over_http_that_is_not_the_reply_fails_the_call_at_once(
    tmp_path: Path, body: str, problem: str
) -> None:
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        with trio.fail_after(AT_ONCE_S), pytest.raises(MaybeExecuted, match=problem):
            await running.tool("reply", {"body": body, "type": "application/json"})
        assert await running.tool("echo") == "{}"


async def test_an_error_without_an_id_over_http_is_the_reply_to_its_request(tmp_path: Path) -> None:
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        body = '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not understood"}}'
        arguments = {"body": body, "type": "application/json"}
        with trio.fail_after(AT_ONCE_S):
            reply = await running.call("tools/call", {"name": "reply", "arguments": arguments})
        assert b"not understood" in bytes(reply.error)  # type: ignore[arg-type]  # it is an error


async def test_a_connection_that_ends_within_a_body_is_lost(tmp_path: Path) -> None:
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        with trio.fail_after(AT_ONCE_S), pytest.raises(MaybeExecuted, match="lost the connection"):
            await running.tool("halt")
        assert await running.tool("echo") == "{}"


@pytest.mark.parametrize("id_comes", ["first", "last"])
async def test_a_reply_that_is_too_long_fails_its_call_alone(
    tmp_path: Path, id_comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_BYTES", 1024 * 1024)
    text = "x" * 3_000_000
    line = {
        "first": f'{{"jsonrpc":"2.0","id":$id,"result":{{"x":"{text}"}}}}',
        "last": f'{{"result":{{"x":"{text}"}},"jsonrpc":"2.0","id":$id}}',
    }[id_comes]
    async with adapter(tmp_path, command=sys.executable, args=[str(SERVER)]) as running:
        client = Client(None)
        got: list[str] = []

        async def slow() -> None:
            got.append(await running.tool("slow", client=client))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow)
            await client.reported.wait()
            with trio.fail_after(AT_ONCE_S), pytest.raises(MaybeExecuted, match=r"has more than .* MiB"):
                await running.tool("reply", {"line": line})
            await running.tool("release")
        assert got == ["released"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("content", ["application/json", "text/event-stream"])
async def test_a_reply_over_http_that_is_too_long_fails_its_call_alone(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_BYTES", 1024 * 1024)
    line = f'{{"jsonrpc":"2.0","id":$id,"result":{{"x":"{"x" * 3_000_000}"}}}}'
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        with trio.fail_after(AT_ONCE_S), pytest.raises(MaybeExecuted, match=r"has more than .* MiB"):
            await running.tool("reply", {"body": line, "type": content})
        assert await running.tool("echo") == "{}"


async def test_a_line_that_is_too_long_and_does_not_end_is_the_end_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MAX_BYTES", 1024 * 1024)
    async with adapter(tmp_path, command=sys.executable, args=[str(SERVER)]) as running:
        with pytest.raises(LinckiaError):
            await running.tool("reply", {"line": "x" * 6_000_000})
        await running.ended.wait()


async def test_replies_that_name_no_request_are_logged_and_end_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    stray = [
        '{"jsonrpc":"2.0","id":4000,"result":{}}',
        '{"jsonrpc":"2.0","id":"' + "9" * 5000 + '","result":{}}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
        '{"jsonrpc":"2.0","id":4001}',
        '{"jsonrpc":"2.0","id":4002,"result":{"x":' + "x" * 5000,
        '{"jsonrpc":"2.0","result":{"a":[],"id":$id}',
        "no JSON " + "y" * 5000,
    ]
    answer = '{"jsonrpc":"2.0","id":$id,"result":{"content":[{"type":"text","text":"answered"}]}}'
    async with adapter(tmp_path, command=sys.executable, args=[str(SERVER)]) as running:
        with trio.fail_after(AT_ONCE_S):
            assert await running.tool("reply", {"line": "\n".join([*stray, answer])}) == "answered"
        assert running.failure is None
    logged = [each.getMessage() for each in caplog.records if "a reply to no request" in each.getMessage()]
    assert len(logged) == 5
    assert all(len(each) < 1000 for each in logged)
    assert all(len(line) < 3000 for line in capfd.readouterr().err.splitlines())


async def test_a_late_reply_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with adapter(tmp_path, command=sys.executable, args=[str(SERVER)]) as running:
        client = Client(None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(running.tool, "slow", client=client))
            await client.reported.wait()
            nursery.cancel_scope.cancel()
        await running.tool("release")
        await running.tool("echo")
    assert not [each for each in caplog.records if "no request" in each.getMessage()]


def test_null_as_the_other_member_of_a_reply_is_ignored() -> None:
    (found,) = messages.parse(b'{"jsonrpc":"2.0","id":1,"result":{"a":1},"error":null}')
    assert found == messages.Message("2.0", id=1, result=Raw(b'{"a":1}'))


def test_other_messages_of_a_batch_are_read() -> None:
    line = b'[{"id":1,"result":{}},{"id":2,"result":3},{"jsonrpc":2,"id":3,"result":{}},4,{"method":"x"}]'
    found = messages.parse(line)
    assert [each.id for each in found] == [1, 2, 3, messages.UNKNOWN, UNSET]
    assert [isinstance(each, Unreadable) for each in found] == [False, True, True, True, False]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","result":{"id":5,"x":',
        b'{"jsonrpc":"2.0","result":{"a":1,"id":5}',
        b'{"jsonrpc":"2.0","id":5,"method":"ping",',
        b'{"jsonrpc":"2.0","result":"\\"id\\":5,',
        b'{"jsonrpc":"2.0","result":"x","note":"id":5,',
        b'"id":5}',
        b"",
    ],
)
def test_an_id_within_something_else_names_no_request(line: bytes) -> None:
    with pytest.raises(NotJson):
        messages.unreadable(line, "broken")
