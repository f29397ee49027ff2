"""A session outlives its kernel: the next resumes where the killed one stood, and every request is answered once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.operation import operation_of
from services.front.transport.descriptors import READ_BYTES
from services.front.transport.json_lines import PARTIAL_BYTES
from services.front.transport.session_memory import BYTES, LONGEST_BYTES, SessionMemory
from services.front.transport.stdio import attach
from services.runtime.handlers import Context
from tests.unit.front.inprocess import InProcess
from tests.unit.front.operations import ListOp, StringOp
from tests.unit.front.wire import META, MODERN, Wire, gateway_in_process

NEWS = {f"notifications/{name}/list_changed" for name in ("prompts", "resources", "tools")}


class Session:
    """A client's ends, and the memory that its session is noted in."""

    def __init__(self) -> None:
        self.server_in, client_out = os.pipe()
        client_in, self.server_out = os.pipe()
        self.memory = os.memfd_create("session")
        self.wire = Wire(client_out, client_in)

    @contextlib.asynccontextmanager
    async def kernel(self) -> AsyncIterator[InProcess]:
        """One kernel, which is gone at the end without another word."""
        async with gateway_in_process() as (gateway, dispatcher), trio.open_nursery() as nursery:
            nursery.start_soon(attach, gateway, self.server_in, self.server_out, "all", self.memory)
            yield dispatcher
            nursery.cancel_scope.cancel()

    async def answers(self, count: int) -> dict[Any, dict[str, Any]]:
        """Return the next answers by their ids, without other messages."""
        found: dict[Any, dict[str, Any]] = {}
        while len(found) < count:
            message = await self.wire.receive()
            if "id" in message:
                assert message["id"] not in found
                found[message["id"]] = message
        return found

    async def close(self) -> None:
        await self.wire.writer.aclose()
        await self.wire.reader.aclose()
        for fd in (self.server_in, self.server_out, self.memory):
            os.close(fd)


@contextlib.asynccontextmanager
async def session() -> AsyncIterator[Session]:
    made = Session()
    try:
        yield made
    finally:
        await made.close()


async def test_an_idle_session_continues_and_is_notified_of_possible_changes() -> None:
    async with session() as s:
        async with s.kernel():
            await s.wire.initialize()
            await s.wire.call("t_string", id=1)
            await s.answers(1)
        async with s.kernel():
            assert {(await s.wire.receive())["method"] for _ in NEWS} == NEWS
            await s.wire.call("t_string", id=2)
            assert (await s.answers(1))[2]["result"]["isError"] is False


async def test_services_know_the_session_by_the_same_name() -> None:
    names: list[str] = []

    async def note(params: StringOp, ctx: Context) -> str:
        names.append(ctx.session)
        return ctx.session

    async with session() as s:
        for number in (1, 2):
            async with s.kernel() as dispatcher:
                dispatcher.handlers.by_name["t_string"] = (operation_of(StringOp), note)
                if number == 1:
                    await s.wire.initialize()
                await s.wire.call("t_string", id=number)
                assert (await s.answers(1))[number]["result"]["structuredContent"]["result"] == names[-1]
        assert len(names) == 2
        assert names[0] == names[1]


async def test_a_memory_cannot_name_the_session_of_another() -> None:
    async with session() as s:
        for name in ("sessionless", "0" * 24, "x" * 32):
            forged = SessionMemory(s.memory)
            forged.name = name
            forged.record_message("initialize", b"{}")
            forged.close()
            assert SessionMemory(s.memory).name not in ("", name)


async def test_repeatable_requests_are_repeated_and_others_answered_as_maybe_executed() -> None:
    async with session() as s:
        async with s.kernel() as first:
            writing = trio.Event()

            async def write(params: ListOp, ctx: object) -> list[int]:
                writing.set()
                await trio.sleep(60)
                return []

            first.handlers.by_name["t_list"] = (operation_of(ListOp), write)
            await s.wire.initialize()
            await s.wire.call("t_wait", {}, id=1)
            await s.wire.call("t_list", {}, id=2)
            with trio.fail_after(5):
                await writing.wait()
        async with s.kernel() as second:
            failed = (await s.answers(1))[2]["result"]
            assert failed["isError"] is True
            assert failed["_meta"]["linckia/failure"]["executed"] == "maybe"
            with trio.fail_after(5):
                await second.started.wait()
            assert second.calls == ["t_wait"]


async def test_input_that_was_read_but_not_parsed_is_not_lost() -> None:
    async with session() as s:
        async with s.kernel():
            await s.wire.initialize()
            # It waits for nothing but the rest of its line.
            await s.wire.send_bytes(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","par')
            await trio.testing.wait_all_tasks_blocked(0.05)
        async with s.kernel():
            await s.wire.send_bytes(b'ams":{"name":"t_string"}}\n')
            assert "result" in (await s.answers(1))[5]


async def test_a_long_message_that_was_half_read_is_refused_by_its_id() -> None:
    async with session() as s:
        async with s.kernel():
            await s.wire.initialize()
            await s.wire.send_bytes(b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"')
            await s.wire.send_bytes(b"x" * (2 * PARTIAL_BYTES))
            await trio.testing.wait_all_tasks_blocked(0.05)
        async with s.kernel():
            await s.wire.send_bytes(b'"}}\n')
            await s.wire.call("t_string", id=7)
            answers = await s.answers(2)
            assert "send it again" in answers[6]["error"]["message"]
            assert "result" in answers[7]


async def test_a_long_request_that_may_be_repeated_is_answered_at_least() -> None:
    async with session() as s:
        async with s.kernel() as first:
            await s.wire.initialize()
            await s.wire.call("t_wait", {}, id=1, meta={"filler": "x" * LONGEST_BYTES})
            with trio.fail_after(5):
                await first.started.wait()
        async with s.kernel() as second:
            assert "died before" in (await s.answers(1))[1]["error"]["message"]
            assert second.calls == []


async def test_sessions_of_modern_clients_continue_too() -> None:
    async with session() as s:
        async with s.kernel() as first:
            await s.wire.open_modern()
            await s.wire.call("t_wait", {}, id=1, meta=META)
            with trio.fail_after(5):
                await first.started.wait()
        async with s.kernel() as second:
            with trio.fail_after(5):
                await second.started.wait()
            await s.wire.call("t_string", id=2, meta=META)
            assert (await s.answers(1))[2]["result"]["resultType"] == "complete"
            assert META["io.modelcontextprotocol/protocolVersion"] == MODERN


async def test_a_request_that_was_withdrawn_stays_so() -> None:
    async with session() as s:
        async with s.kernel() as first:
            await s.wire.initialize()
            await s.wire.call("t_wait", {}, id=1)
            with trio.fail_after(5):
                await first.started.wait()
            await s.wire.send(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "reason": "enough"}}
            )
            with trio.fail_after(5):
                await first.withdrawn.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
        async with s.kernel() as second:
            await s.wire.call("t_string", id=2)
            await s.answers(1)
            assert second.calls == ["t_string"]


async def test_the_handshake_itself_may_be_interrupted() -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
    async with session() as s:
        session_memory = SessionMemory(s.memory)
        session_memory.record_request(0, "initialize", json.dumps(hello | {"params": _params()}).encode(), b"")
        session_memory.close()
        async with s.kernel():
            assert (await s.answers(1))[0]["result"]["protocolVersion"] == "2025-11-25"
            await s.wire.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            await s.wire.call("t_string", id=1)
            assert "result" in (await s.answers(1))[1]


async def test_a_message_that_was_written_in_part_is_ended_before_the_next() -> None:
    async with session() as s:
        session_memory = SessionMemory(s.memory)
        session_memory.record_output(mid_message=True)
        session_memory.close()
        os.write(s.server_out, b'{"jsonrpc":"2.0","id":1,"resu')
        async with s.kernel():
            assert await s.wire.line() == b'{"jsonrpc":"2.0","id":1,"resu'
            await s.wire.initialize()


def _params() -> dict[str, Any]:
    return {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


# ---- the record -----------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path) -> int:
    # A file stands for the memory: what matters is that it is the same to both sides.
    return os.open(tmp_path / "memory", os.O_RDWR | os.O_CREAT)


def subscription(action: str, uri: str) -> bytes:
    return json.dumps({"id": 1, "method": f"resources/{action}", "params": {"uri": uri}}).encode()


def test_answered_requests_with_lasting_effect_are_replayed_in_order(memory: int) -> None:
    session_memory = SessionMemory(memory)
    session_memory.record_message("initialize", b'{"id": 0, "method": "initialize"}')
    session_memory.record_message("notifications/initialized", b'{"method": "notifications/initialized"}')
    for key, action, uri in ((1, "subscribe", "a:b"), (2, "subscribe", "a:c"), (3, "unsubscribe", "a:b")):
        session_memory.record_request(key, f"resources/{action}", subscription(action, uri), b"")
        session_memory.record_answer(key)
    record = SessionMemory(memory).take_over()
    assert record is not None
    assert [json.loads(message)["method"] for message in record.state_messages] == [
        "initialize", "notifications/initialized", "resources/subscribe",
    ]  # fmt: skip
    assert b"a:c" in record.state_messages[-1]
    assert record.in_flight == []


@pytest.mark.parametrize("is_written", [True, False])
def test_a_request_whose_answer_was_written_is_not_answered_again(memory: int, *, is_written: bool) -> None:
    """The front is killed right after the answer, before it wrote a record."""
    session_memory = SessionMemory(memory)
    initialize, call = b'{"id": 0, "method": "initialize"}', b'{"id": 1, "method": "tools/call"}'
    session_memory.record_request(0, "initialize", initialize, b"")
    session_memory.record_request(1, "tools/call", call, b"")
    session_memory.begin_answer(0)
    if is_written:
        session_memory.end_answer()
    for _ in range(2):
        record = SessionMemory(memory).take_over()
        assert record is not None
        assert record.state_messages == ([initialize] if is_written else [])
        assert record.in_flight == ([call] if is_written else [initialize, call])


def test_requests_taken_over_are_kept_until_they_are_handled(memory: int) -> None:
    session_memory = SessionMemory(memory)
    session_memory.record_request(7, "tools/call", b'{"id": 7, "method": "tools/call"}', b'{"id": 8')
    first = SessionMemory(memory)
    assert first.take_over() is not None
    first.record_output(mid_message=True)
    record = SessionMemory(memory).take_over()
    assert record is not None
    assert (record.in_flight, record.unread, record.mid_message) == (
        [b'{"id": 7, "method": "tools/call"}'],
        b'{"id": 8',
        True,
    )


def test_deaths_of_fronts_are_counted_against_the_requests_in_flight(memory: int) -> None:
    def front() -> tuple[SessionMemory, int]:
        taken = SessionMemory(memory)
        record = taken.take_over()
        return taken, 0 if record is None else record.revivals

    def request(number: int) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call"}).encode()

    living, _ = front()
    living.record_request(1, "tools/call", request(1), b"")
    for number in range(2, 6):
        living, revivals = front()
        assert revivals == 1, "requests are in flight at each death, but never the same ones"
        living.record_request(number, "tools/call", request(number), b"")
        living.record_answer(number - 1)
    for deaths in range(1, 4):
        living, revivals = front()
        assert revivals == deaths, "the same request is in flight at each death"
        living.record_request(100 + deaths, "tools/call", request(100 + deaths), b"")
        living.record_answer(100 + deaths)


@pytest.mark.parametrize("short", [False, True])
def test_input_read_by_a_kernel_that_died_at_once_is_not_lost(memory: int, *, short: bool) -> None:
    begun = b"x" * PARTIAL_BYTES if short else b'{"id": 7, '
    source, target = os.pipe()
    first = SessionMemory(memory)
    first.record_unread(begun, is_partial=True)
    for sent in (b'"method": "ping"}\n', b'{"id": 8'):
        os.write(target, sent)
        image = os.pread(memory, BYTES, 0)
        assert first.receive(source) == sent
        # As if it had been killed between the read and its note of it.
        landing = len(image) - READ_BYTES
        os.pwrite(memory, image[:8], 0)
        os.pwrite(memory, image[16:landing], 16)
        os.pwrite(memory, sent, landing)
        record = SessionMemory(memory).take_over()
        assert record is not None
        assert (record.landed if short else record.unread) == (sent if short else begun + sent)
        first = SessionMemory(memory)
        first.take_over()
        first.record_unread(begun, is_partial=True)


def test_input_that_has_not_arrived_leaves_no_record(memory: int) -> None:
    source, _target = os.pipe()
    os.set_blocking(source, False)
    session_memory = SessionMemory(memory)
    with pytest.raises(BlockingIOError):
        session_memory.receive(source)
    record = SessionMemory(memory).take_over()
    assert record is not None
    assert (record.unread, record.in_flight) == (b"", [])


def test_requests_beyond_the_capacity_are_kept_in_part(memory: int) -> None:
    session_memory = SessionMemory(memory)
    for key in range(100):
        message = b'{"id": %d, "method": "tools/call", "params": "%b"}' % (key, b"x" * LONGEST_BYTES)
        session_memory.record_request(key, "tools/call", message, b"rest")
    record = SessionMemory(memory).take_over()
    assert record is not None
    assert [message[:8] for message in record.in_flight[:2]] == [b'{"id": 0', b'{"id": 1']
    assert len(record.in_flight) == 100
    assert record.unread == b"rest"


def test_memory_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    with (tmp_path / "other").open("r+b") as other, pytest.raises(ValueError, match="mmap length"):
        SessionMemory(other.fileno())
    assert BYTES > 2 * PARTIAL_BYTES
