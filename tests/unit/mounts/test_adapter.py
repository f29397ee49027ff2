"""What an adapter passes through, and how it reacts when a server dies, hangs or misbehaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from proto.errors import LinckiaError, MaybeExecuted, OperationError, Overloaded, Timeout, Unavailable
from proto.mounts import READ, REPEAT, UPDATED
from tests.unit.mounts.kernel import Adapter, Client, adapter, cause_of

SERVER = Path(__file__).with_name("server.py")


@asynccontextmanager
async def hand(folder: Path, **settings: Any) -> AsyncIterator[Adapter]:
    async with adapter(folder, command=sys.executable, args=[str(SERVER)], **settings) as running:
        yield running


async def test_results_and_errors_arrive_as_the_server_wrote_them(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        reply = await running.call("tools/call", {"name": "raw"})
        assert isinstance(reply.result, msgspec.Raw)
        assert bytes(reply.result) == (
            b'{"content":[{"type":"hologram","x":1.10,"big":123456789012345678901}]'
            b',"_meta":{"a/b":[null]},"unknown":"\\u00e9"}'
        )
        reply = await running.call("no/such")
        assert isinstance(reply.error, msgspec.Raw)
        assert msgspec.json.decode(reply.error) == {"code": -32601, "message": "no no/such", "data": {"x": 1}}
        assert running.info["server"] == "hand 1"
        assert running.info["protocol"] == "2025-06-18"
        assert running.info["rests"] == "yes"


async def test_parameters_arrive_as_the_client_wrote_them(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        params = b'{\n "name": "echo",\r\n "arguments": {"n": 1.10, "t": "a\\nb"},\n "_meta": {"x/y": 1}\n}'
        result = await running.result("tools/call", params)
        assert json.loads(result["content"][0]["text"]) == {"n": 1.10, "t": "a\nb"}


async def test_all_pages_of_lists_are_sent_to_the_registry_and_again_once_after_changes(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        found = await running.until_put(1)
        assert len(found.tools) == 22
        assert b'"vendor":1.5' in bytes(found.tools[0]) or b'"vendor": 1.5' in bytes(found.tools[0])
        assert len(found.resources) == 1
        assert (found.protocol_version, found.instructions) == ("2025-06-18", "Be kind.")
        assert found.server_info == {"name": "hand", "version": "1", "more": [1]}
        await running.tool("change_list")
        assert len((await running.until_put(2)).tools) == 23


async def test_progress_and_log_reach_the_client_of_the_call(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        client = Client(None)
        assert await running.tool("progress", client=client) == "done"
        assert client.progressed[-1] == (2.0, 2.0, "step 2")
        assert client.logged == [("notice", "step 1"), ("notice", "step 2")]


@pytest.mark.parametrize("settings", [{"env": {"MY_KEY": "hush-hush"}}, {"env_from": ["MY_KEY"]}])
async def test_secrets_that_the_server_writes_are_not_logged(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", "hush-hush")
    async with hand(tmp_path, **settings) as running:
        assert await running.tool("leak", {"name": "MY_KEY"}) == "hush-hush"
        with pytest.raises(LinckiaError):
            await running.tool("crash")
        await running.ended.wait()
    logged = capfd.readouterr().err
    assert "stdout: *** on stdout" in logged
    assert "*** on stderr" in logged
    assert "hush-hush" not in logged


async def test_a_call_that_a_server_leaves_unfinished_says_why_it_ended(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        with pytest.raises(LinckiaError, match=r"mcp_test ended \(the server ended with exit code 7: out of luck\)"):
            await running.tool("crash")


async def test_a_server_that_ends_at_its_handshake_is_a_failed_start_with_its_cause(tmp_path: Path) -> None:
    code = "import sys; [sys.exit('no licence') for line in sys.stdin if '\"initialize\"' in line]"
    async with adapter(tmp_path, command=sys.executable, args=["-c", code], is_ready=False) as running:
        await running.ended.wait()
        assert running.failure is not None
        assert cause_of(running.failure) == "the server ended with exit code 1: no licence"


async def test_text_other_than_json_on_stdout_is_tolerated(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        assert await running.tool("garbage") == "still here"
        assert len(await running.tool("big", {"size": 20_000_000})) == 20_000_000


async def test_messages_larger_than_the_pipe_arrive_whole_and_in_order(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        results: dict[int, Any] = {}

        async def echo(number: int) -> None:
            arguments = {"n": number, "text": "x" * (3_000_000 if number % 3 == 0 else 10)}
            results[number] = json.loads(await running.tool("echo", arguments)) == arguments

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(echo, number)
        assert results == dict.fromkeys(range(12), True)


async def test_a_shared_server_that_ends_takes_the_adapter_with_it_and_the_cause_is_known(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        with pytest.raises(LinckiaError):
            await running.tool("crash")
        await running.ended.wait()
        assert running.failure is not None
        assert cause_of(running.failure) == "the server ended with exit code 7: out of luck"


async def test_a_server_that_cannot_start_is_a_failed_start_with_its_cause(tmp_path: Path) -> None:
    async with hand(tmp_path, env={"FAIL": "1"}, is_ready=False) as running:
        await running.ended.wait()
        assert running.failure is not None
        assert cause_of(running.failure) == "the server ended with exit code 1: cannot read the configuration"


async def test_a_server_that_does_not_answer_its_handshake_is_a_failed_start(tmp_path: Path) -> None:
    async with adapter(tmp_path, command="cat", args=["/dev/zero"], is_ready=False, start_timeout=0.5) as running:
        await running.ended.wait()
    async with adapter(tmp_path, command="sleep", args=["1000"], is_ready=False, start_timeout=0.5) as running:
        await running.ended.wait()
        assert running.failure is not None
        assert "did not answer `initialize` within 0.5 s" in cause_of(running.failure)


async def test_a_server_that_ends_when_asked_anything_but_initialize_is_started_again(tmp_path: Path) -> None:
    async with hand(tmp_path, env={"STRICT": "1"}) as running:
        assert json.loads(await running.tool("seen"))[0] == "initialize"
    async with hand(tmp_path, env={"STRICT": "1"}) as running:
        assert json.loads(await running.tool("seen"))[0] == "initialize"


async def test_a_stopped_server_dies(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        with pytest.raises(LinckiaError):
            await running.tool("stop")
        await running.ended.wait()
        assert running.failure is not None
        assert "stopped" in cause_of(running.failure)


async def test_a_server_that_closes_its_stdin_dies_with_the_next_call(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        assert await running.tool("hang", {"deaf": True}) == "deaf"
        with trio.fail_after(30), pytest.raises(LinckiaError):
            await running.tool("echo")
        await running.ended.wait()
        assert running.failure is not None
        assert cause_of(running.failure) == "the server closed its stdin"


async def test_a_server_that_takes_too_much_memory_dies(tmp_path: Path) -> None:
    async with hand(tmp_path, memory_limit="60MiB") as running:
        # The server may die before it has answered.
        with contextlib.suppress(LinckiaError):
            await running.tool("grow", {"kib": 80 * 1024})
        await running.ended.wait()
        assert running.failure is not None
        assert cause_of(running.failure).startswith("memory: the server used ")


async def test_a_call_without_reply_times_out_and_a_live_server_keeps_running(tmp_path: Path) -> None:
    async with hand(tmp_path, timeout=0.5) as running:
        with pytest.raises(Timeout, match=r"within 0\.5 s"):
            await running.tool("hang")
        assert "notifications/cancelled" in json.loads(await running.tool("seen"))
        assert running.failure is None


async def test_a_server_that_hangs_as_a_whole_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.mounts.instance.HUNG_ANSWER_S", 0.5)
    async with hand(tmp_path, timeout=0.5) as running:
        with pytest.raises(Timeout):
            await running.tool("hang", {"whole": True})
        await running.ended.wait()
        assert running.failure is not None
        assert cause_of(running.failure).startswith("hung: ")


async def test_an_idle_server_that_does_not_answer_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.mounts.instance.IDLE_PING_S", 0.2)
    monkeypatch.setattr("services.mounts.instance.IDLE_ANSWER_S", 0.5)
    async with adapter(tmp_path, command=sys.executable, args=[str(SERVER)], timeout=0.3) as running:
        await running.until_put(1)
        with pytest.raises(Timeout):
            await running.tool("hang", {"whole": True})
        await running.ended.wait()


async def test_cancellation_reaches_the_server(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        with trio.move_on_after(0.5):
            await running.tool("slow")
        while "notifications/cancelled" not in json.loads(await running.tool("seen")):
            await trio.lowlevel.checkpoint()


async def test_environment_comes_from_settings_variables_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    monkeypatch.setenv("LINCKIA_SECRET", "no")
    (tmp_path / "vars").write_text("# comment\nexport FROM_FILE='a b'\n")
    settings = {"env": {"PLAIN": "1"}, "env_from": ["MY_TOKEN", str(tmp_path / "vars")]}
    async with hand(tmp_path, **settings) as running:
        found = [await running.tool("env", {"name": name}) for name in ("PLAIN", "MY_TOKEN", "FROM_FILE")]
        assert found == ["1", "hush-hush", "a b"]
        assert await running.tool("env", {"name": "LINCKIA_SECRET"}) == "-"
    async with hand(tmp_path, env_from=["NO_SUCH"], is_ready=False) as running:
        await running.ended.wait()
        assert running.failure is not None
        assert "no variable NO_SUCH" in cause_of(running.failure)


async def test_updates_of_subscribed_resources_are_published_and_subscriptions_renewed(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        await running.result("resources/subscribe", {"uri": "test://a"})
        await running.tool("touch")
        while not any(event.topic == UPDATED for event in running.events):
            await running.event.wait()
    async with hand(tmp_path) as running:
        while "resources/subscribe" not in json.loads(await running.tool("seen")):
            await trio.lowlevel.checkpoint()
        await running.result("resources/unsubscribe", {"uri": "test://a"})
    async with hand(tmp_path) as running:
        await running.until_put(1)
        assert "resources/subscribe" not in json.loads(await running.tool("seen"))


# A server for each client


async def test_each_client_has_a_server_of_its_own_that_dies_alone(tmp_path: Path) -> None:
    async with hand(tmp_path, share="client") as running:
        first, second = await running.tool("pid", session="a"), await running.tool("pid", session="b")
        assert first != second
        with pytest.raises(MaybeExecuted, match="exit code 7: out of luck; tools/call was not repeated"):
            await running.tool("crash", session="a")
        assert await running.tool("pid", session="b") == second
        assert await running.tool("pid", session="a") not in (first, second)


@pytest.mark.parametrize("kind", [READ, REPEAT])
async def test_a_repeatable_call_is_made_again_once_on_a_new_server(tmp_path: Path, kind: str) -> None:
    async with hand(tmp_path, share="client") as running:
        pid = int(await running.tool("pid"))
        async with trio.open_nursery() as nursery:
            got: list[str] = []
            client = Client(None)

            async def call() -> None:
                got.append(await running.tool("slow", kind=kind, client=client))

            nursery.start_soon(call)
            await client.reported.wait()
            client.reported = trio.Event()
            os.kill(pid, signal.SIGKILL)
            await client.reported.wait()
            assert int(await running.tool("pid")) != pid
            await running.tool("release", kind=READ)
        assert got == ["released"]
        with pytest.raises(MaybeExecuted):
            await running.tool("crash", kind=kind)


async def test_the_server_unused_for_longest_makes_room(tmp_path: Path) -> None:
    async with hand(tmp_path, share="client", max_instances=2) as running:
        first = await running.tool("pid", session="a")
        second = await running.tool("pid", session="b")
        await running.tool("pid", session="c")
        assert await running.tool("pid", session="c") not in (first, second)
        assert await running.tool("pid", session="b") == second
        async with trio.open_nursery() as nursery:
            for session in ("b", "c"):
                client = Client(None)
                nursery.start_soon(partial(running.tool, "slow", session=session, client=client))
                await client.reported.wait()
            with pytest.raises(Overloaded, match="max_instances"):
                await running.tool("pid", session="d")
            await running.tool("release", session="b")
            await running.tool("pid", session="d")
            nursery.cancel_scope.cancel()


async def test_a_stateful_server_tells_each_client_once_that_its_state_is_lost(tmp_path: Path) -> None:
    async with hand(tmp_path, stateful=True) as running:
        assert await running.tool("count", session="a") == "1"
        assert await running.tool("count", session="a") == "2"
        assert await running.tool("count", session="b") == "1"
        with pytest.raises(MaybeExecuted, match="its state is lost, and tools/call was not repeated"):
            await running.tool("crash", session="a", kind=READ)
        with pytest.raises(OperationError, match="its state is lost; nothing was done"):
            await running.tool("count", session="a")
        assert await running.tool("count", session="a") == "1"
        assert await running.tool("count", session="b") == "2"
    async with hand(tmp_path, stateful=True) as running:
        with pytest.raises(OperationError):
            await running.tool("count", session="b")
        assert await running.tool("count", session="b") == "1"
        assert await running.tool("count", session="new") == "1"


async def test_a_stateful_shared_server_says_so_before_it_takes_the_adapter_with_it(tmp_path: Path) -> None:
    async with hand(tmp_path, stateful=True, share="one") as running:
        with pytest.raises(MaybeExecuted, match="its state is lost"):
            await running.tool("crash", kind=READ)
        await running.ended.wait()
    async with hand(tmp_path, stateful=True, share="one") as running:
        with pytest.raises(OperationError, match="its state is lost"):
            await running.tool("count")
        assert await running.tool("count") == "1"


async def test_a_server_that_starts_no_more_is_unavailable(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    script = f"[ -e {flag} ] && {{ echo gone >&2; exit 2; }}; exec {sys.executable} {SERVER}"
    async with adapter(tmp_path, command="sh", args=["-c", script], share="client") as running:
        await running.tool("pid", session="a")
        flag.touch()
        with pytest.raises(Unavailable, match="exit code 2: gone"):
            await running.tool("pid", session="b")
