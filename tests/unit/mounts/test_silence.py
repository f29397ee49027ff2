"""Servers that are busy or silent while calls are in flight, and calls behind a silent one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from proto.errors import LinckiaError, Timeout, Unavailable
from proto.mounts import ACTIVITY, READ
from proto.wire import frames
from services.mounts.manifest import settings_of
from tests.unit.mounts.kernel import Adapter, Client, adapter
from tests.unit.mounts.test_http import free_port, server, url

SERVER = Path(__file__).with_name("server.py")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"QUIET_S": 0.3, "PING_S": 0.3, "DOUBT_S": 0.1, "BEHIND_S": 1.0, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(f"services.mounts.link.liveness.{name}", seconds)
    monkeypatch.setattr("services.mounts.instance.LOOK_S", 0.05)


def hand(folder: Path, **settings: Any) -> Any:
    return adapter(folder, command=sys.executable, args=[str(SERVER)], **settings)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nothing here says when a frame has arrived
        await trio.sleep(0.01)


async def activity(running: Adapter, expected: Callable[[str], bool]) -> str:
    """Wait until `status` shows what is expected."""
    while True:
        running.reported.clear()
        running.channel.post(frames.Ping(1))
        await until(lambda: bool(running.reported))
        found = running.reported[-1].get(ACTIVITY, "")
        if expected(found):
            return found


async def block(running: Adapter, nursery: trio.Nursery, go: Path) -> None:
    """Let the server's only thread wait for a file, for the session `a`."""
    client = Client(None)
    nursery.start_soon(partial(running.tool, "block", {"until": str(go)}, session="a", client=client))
    await client.reported.wait()


def is_none(text: str) -> bool:
    return not text


async def test_a_server_that_answers_pings_is_busy(tmp_path: Path) -> None:
    async with hand(tmp_path) as running, trio.open_nursery() as nursery:
        nursery.start_soon(partial(running.tool, "slow"))
        found = await activity(running, lambda text: text.startswith("busy for 1 s"))
        assert "1 call in flight, last sign of life 0 s ago" in found
        assert "ping" in json.loads(await running.tool("seen"))
        await running.tool("release")
        await activity(running, is_none)


async def test_a_server_that_works_and_answers_nothing_is_silent_and_may_finish(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        pid = await running.tool("pid")
        got: list[str] = []

        async def call() -> None:
            got.append(await running.tool("block", {"until": str(tmp_path / "go")}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await activity(running, lambda text: text.startswith("silent for 1 s, 1 call in flight"))
            (tmp_path / "go").touch()
        assert got == ["unblocked"]
        await activity(running, is_none)
        assert await running.tool("pid") == pid


async def test_a_server_that_writes_to_its_log_is_not_silent(tmp_path: Path) -> None:
    async with hand(tmp_path) as running, trio.open_nursery() as nursery:
        nursery.start_soon(partial(running.tool, "block", {"until": str(tmp_path / "go"), "chat": True}))
        found = await activity(running, lambda text: text.startswith(("busy for 2 s", "silent")))
        assert found.startswith("busy")
        (tmp_path / "go").touch()


async def test_a_call_behind_a_silent_server_is_not_sent_and_says_what_is_in_front(tmp_path: Path) -> None:
    async with hand(tmp_path) as running, trio.open_nursery() as nursery:
        await block(running, nursery, tmp_path / "go")
        await activity(running, lambda text: text.startswith("silent"))
        client = Client(None)
        expected = "no sign of life for .*; before this call comes tools/call of another client, which it got . s ago"
        with pytest.raises(Unavailable, match=f"{expected}; it was not sent") as raised:
            await running.tool("count", session="b", client=client)
        assert raised.value.failure.retry_after_ms == 10_000
        ((level, logged),) = client.logged
        assert level == "notice"
        assert "no sign of life" in logged
        with pytest.raises(Unavailable, match="tools/call of this client"):
            await running.tool("count", session="a")
        (tmp_path / "go").touch()
        assert await running.tool("count", session="b") == "1"


async def test_a_call_that_waits_for_a_sign_of_life_is_sent_then(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        got: list[str] = []

        async def call(name: str, arguments: object = None, **options: Any) -> None:
            got.append(await running.tool(name, arguments, **options))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(call, "block", {"until": str(tmp_path / "go")}, session="a"))
            await activity(running, lambda text: text.startswith("silent"))
            client = Client(None)
            nursery.start_soon(partial(call, "count", session="b", client=client))
            await until(lambda: bool(client.logged))
            (tmp_path / "go").touch()
        assert got == ["unblocked", "1"]


async def test_a_call_that_the_server_has_not_read_is_answered_before_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.mounts.link.liveness.DOUBT_S", 60.0)
    async with hand(tmp_path) as running, trio.open_nursery() as nursery:
        await block(running, nursery, tmp_path / "go")
        client = Client(None)
        # It is sent at once: the server has just given a sign of life.
        with pytest.raises(Timeout, match=r"before this call .*; the server has not read it yet"):
            await running.tool("count", session="b", client=client)
        assert client.logged
        (tmp_path / "go").touch()
        # The call in the pipe still arrives.
        assert await running.tool("count", session="b") == "2"


async def test_a_call_that_the_server_has_read_waits_for_its_own_timeout(tmp_path: Path) -> None:
    async with hand(tmp_path, timeout=3) as running, trio.open_nursery() as nursery:
        for session in "ab":
            client = Client(None)
            nursery.start_soon(partial(_timed_out, running, session, client))
            await client.reported.wait()
        # The server's only thread is stuck, with both calls read.
        nursery.start_soon(partial(_hang, running))


async def _timed_out(running: Adapter, session: str, client: Client) -> None:
    with pytest.raises(LinckiaError, match="neither answered tools/call nor reported progress within 3 s"):
        await running.tool("slow", session=session, client=client)


async def _hang(running: Adapter) -> None:
    with pytest.raises(LinckiaError):
        await running.tool("hang", {"whole": True}, session="c")


async def test_a_server_whose_client_has_given_up_stays_silent_for_the_others(tmp_path: Path) -> None:
    async with hand(tmp_path) as running:
        with trio.move_on_after(0.3):
            await running.tool("block", {"until": str(tmp_path / "go")}, session="a")
        with pytest.raises(Unavailable, match=r"of another client, .* and whose client has given up; it was not sent"):
            await running.tool("count", session="b")
        await activity(running, lambda text: text.startswith("silent"))
        (tmp_path / "go").touch()
        await activity(running, is_none)
        assert await running.tool("count", session="b") == "1"


async def test_a_silent_server_with_nothing_to_do_is_replaced_although_calls_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.mounts.instance.IDLE_PING_S", 0.5)
    monkeypatch.setattr("services.mounts.instance.IDLE_ANSWER_S", 0.5)
    async with hand(tmp_path) as running:
        with trio.move_on_after(0.3):
            await running.tool("hang", {"whole": True}, session="a")
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                while not running.ended.is_set():
                    with pytest.raises(LinckiaError):
                        await running.tool("count", session="b")

            nursery.start_soon(wait)
            await running.ended.wait()
            nursery.cancel_scope.cancel()


async def test_each_client_of_its_own_server_is_independent_of_a_silent_one(tmp_path: Path) -> None:
    async with hand(tmp_path, share="client") as running, trio.open_nursery() as nursery:
        nursery.start_soon(partial(running.tool, "block", {"until": str(tmp_path / "go")}, session="a"))
        await activity(running, lambda text: text.startswith("silent"))
        assert await running.tool("count", session="b") == "1"
        await activity(running, lambda text: "(1 of 2 processes)" in text)
        (tmp_path / "go").touch()


async def test_a_call_that_waits_for_its_turn_is_answered_early_too(tmp_path: Path) -> None:
    folder = tmp_path / "mcp_test"
    folder.mkdir()
    (folder / "state.json").write_text('{"asks": true}')
    async with hand(tmp_path) as running, trio.open_nursery() as nursery:
        await block(running, nursery, tmp_path / "go")
        with pytest.raises(Unavailable, match="it was not sent"):
            await running.tool("count", session="b")
        (tmp_path / "go").touch()
        assert await running.tool("count", session="b") == "1"


async def test_a_call_behind_a_server_that_dies_is_made_on_the_next_one(tmp_path: Path) -> None:
    async with hand(tmp_path, share="client") as running:
        pid = int(await running.tool("pid"))
        async with trio.open_nursery() as nursery:

            async def hang() -> None:
                with pytest.raises(LinckiaError):
                    await running.tool("hang", {"whole": True})

            nursery.start_soon(hang)
            client = Client(None)

            async def count() -> None:
                assert await running.tool("count", client=client) == "1"

            await activity(running, lambda text: text.startswith("silent"))
            nursery.start_soon(count)
            await until(lambda: bool(client.logged))
            os.kill(pid, signal.SIGKILL)


async def test_a_server_that_waits_for_a_person_is_not_silent(tmp_path: Path) -> None:
    decided = trio.Event()

    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        await decided.wait()
        return {"action": "decline"}

    async with hand(tmp_path, env={"IGNORE_PING": "1"}) as running, trio.open_nursery() as nursery:
        nursery.start_soon(partial(running.tool, "ask", session="a", ask=ask))
        found = await activity(running, lambda text: text.startswith(("busy for 1 s", "silent")))
        assert found.startswith("busy")
        assert await running.tool("count", session="b") == "1"
        decided.set()


async def test_calls_go_to_an_extra_process_while_the_shared_one_is_silent(tmp_path: Path) -> None:
    async with hand(tmp_path, extra_instances=1) as running:
        shared = await running.tool("pid")
        got: list[str] = []

        async def call() -> None:
            got.append(await running.tool("block", {"until": str(tmp_path / "go")}, session="a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await activity(running, lambda text: text.startswith("busy"))
            extra = await running.tool("pid", session="b")
            assert extra != shared
            assert await running.tool("pid", session="c") == extra
            # A second one that hangs: now there is no process left.
            with trio.move_on_after(0.5):
                await running.tool("hang", {"whole": True}, session="b")
            with pytest.raises(Unavailable, match="it was not sent"):
                await running.tool("pid", session="c")
            os.kill(int(extra), signal.SIGKILL)
            another = extra
            while another == extra:
                # The adapter may not have noticed yet that the silent one is dead.
                with contextlib.suppress(Unavailable):
                    another = await running.tool("pid", session="c")
                await trio.lowlevel.checkpoint()
            assert another != shared
            assert got == []
            (tmp_path / "go").touch()
        assert got == ["unblocked"]
        assert await running.tool("pid", session="b") == shared
        await until(lambda: not Path(f"/proc/{another}").exists())
        assert running.failure is None


async def test_calls_behind_a_silent_server_fail_if_no_extra_process_starts(tmp_path: Path) -> None:
    script = f'mkdir "$1" || {{ echo taken >&2; exit 3; }}; exec {sys.executable} {SERVER}'
    args = ["-c", script, "sh", str(tmp_path / "lock")]
    async with adapter(tmp_path, command="sh", args=args, extra_instances=2) as running, trio.open_nursery() as nursery:
        await block(running, nursery, tmp_path / "go")
        await activity(running, lambda text: text.startswith("busy"))
        with pytest.raises(Unavailable, match="before this call comes tools/call of another client"):
            await running.tool("count", session="b")
        (tmp_path / "go").touch()
        assert await running.tool("count", session="b") == "1"


@pytest.mark.parametrize(
    "table", [{"command": "x", "stateful": True}, {"command": "x", "share": "client"}, {"url": "http://x/"}]
)
def test_extra_processes_are_refused_where_they_make_no_sense(table: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"mcp\.one\.extra_instances: only for a `command` that all clients share"):
        settings_of("one", {**table, "extra_instances": 1})


# Over HTTP


async def test_a_server_over_http_that_does_not_answer_pings_is_silent(tmp_path: Path) -> None:
    port = free_port()
    go, pings = tmp_path / "go", tmp_path / "pings"
    async with (
        server("legacy", port, PING=str(pings)),
        adapter(tmp_path, url=url(port)) as running,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(running.tool, "block", {"until": str(go)}, session="a"))
        await activity(running, lambda text: text.startswith("silent"))
        with pytest.raises(Unavailable, match="it was not sent"):
            await running.tool("echo", session="b")
        pings.touch()
        await activity(running, lambda text: text.startswith("busy"))
        assert await running.tool("echo", session="b") == "{}"
        go.touch()


@pytest.mark.parametrize(("pings", "seems"), [("drop", "silent"), ("refuse", "busy")])
async def test_a_ping_that_fails_over_http_ends_no_other_call(tmp_path: Path, pings: str, seems: str) -> None:
    port = free_port()
    async with server("legacy", port, PING=pings), adapter(tmp_path, url=url(port)) as running:
        got: list[str] = []

        async def call() -> None:
            got.append(await running.tool("block", {"until": str(tmp_path / "go")}, kind=READ))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await activity(running, lambda text: text.startswith(f"{seems} for 1 s"))
            await activity(running, lambda text: text.startswith(f"{seems} for 2 s"))
            (tmp_path / "go").touch()
        assert got == ["unblocked"]
        assert running.failure is None
