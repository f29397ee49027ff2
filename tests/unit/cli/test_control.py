"""The control socket: a real socket, the real client and server, the real router with a service in this process."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from kernel.control.peers import is_admitted
from kernel.control.server import MAX_LINE_BYTES, ControlServer
from proto.control.address import AlreadyHeld, CannotHold, connect, hold, locked, socket_path
from proto.control.client import CallFailed, Client, KernelGone, NoKernel
from tests.unit.router.rig import Rig, rig

T = TypeVar("T")


class Gateway:
    """Echoes one line from a client's input to its output, then waits for the end of its input."""

    def __init__(self) -> None:
        self.surfaces: list[str] = []
        self.arrived = trio.Event()
        self.cancelled = trio.Event()

    async def attach(self, fd_in: int, fd_out: int, surface: str, memory: int | None = None) -> None:
        self.surfaces.append(surface)
        self.arrived.set()
        async with (
            trio.lowlevel.FdStream(os.dup(fd_in)) as incoming,
            trio.lowlevel.FdStream(os.dup(fd_out)) as outgoing,
        ):
            try:
                async for data in incoming:
                    await outgoing.send_all(data)
            except trio.Cancelled:
                self.cancelled.set()
                raise


class Served:
    """A served control socket; `ended` once the server has returned of itself."""

    def __init__(self, data_dir: Path, r: Rig) -> None:
        self.data_dir = data_dir
        self.rig = r
        self.gateway = Gateway()
        self.ended = trio.Event()
        self.stopping = trio.Event()

    async def ask(self, question: Callable[[Client], T]) -> T:
        def in_thread() -> T:
            with Client(self.data_dir) as client:
                return question(client)

        return await trio.to_thread.run_sync(in_thread, abandon_on_cancel=True)


@contextlib.asynccontextmanager
async def served(
    data_dir: Path,
    *,
    roots: tuple[Path, ...] = (),
    linger_s: float | None = None,
    started: trio.Event | None = None,
) -> AsyncIterator[Served]:
    if started is None:
        started = trio.Event()
        started.set()
    async with rig() as r, trio.open_nursery() as nursery:
        made = Served(data_dir, r)
        server = ControlServer(
            router=r.router,
            table=r.table,
            attach=made.gateway.attach,
            started=started,
            stopping=made.stopping,
            roots=tuple(map(str, roots)),
            linger_s=linger_s,
        )
        with hold(data_dir) as listener:

            async def serve(task_status: trio.TaskStatus[None]) -> None:
                await server.run(listener, task_status=task_status)
                made.ended.set()

            await nursery.start(serve)
            yield made
            nursery.cancel_scope.cancel()


async def test_call_goes_through_and_comes_back_as_json(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        answer = await s.ask(lambda client: client.call_named("test.say", {"text": "hello"}))
        assert answer == {"text": "hello", "generation": 1, "caller": "operator"}


async def test_large_result_comes_whole_and_the_next_one_after_it(tmp_path: Path) -> None:
    text = "long é" * 100_000
    async with served(tmp_path) as s:
        answers = await s.ask(lambda c: [c.call_named("test.say", {"text": each})["text"] for each in (text, "short")])
    assert answers == [text, "short"]


async def test_one_connection_answers_one_request_after_the_other(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        answer = await s.ask(lambda c: [c.call_named("test.say", {"text": text})["text"] for text in ("a", "b", "c")])
        assert answer == ["a", "b", "c"]


async def test_progress_arrives_before_the_result(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    async with served(tmp_path) as s:
        await s.ask(lambda c: c.call_named("test.say", {"text": "x"}, on_progress=seen.append))
    assert seen == [{"done": 1.0, "total": 2.0, "message": "half"}]


async def test_failure_names_its_kind_and_field(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        with pytest.raises(CallFailed) as caught:
            await s.ask(lambda c: c.call_named("test.say", {"txt": "x"}))
        assert caught.value.failure["kind"] == "invalid_params"
        assert caught.value.failure["field"] == "txt"
        with pytest.raises(CallFailed) as caught:
            await s.ask(lambda c: c.call_named("test.say", {"text": "fail"}, on_progress=lambda _: None))
        assert caught.value.failure["kind"] == "operation"


async def test_operations_for_services_only_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        with pytest.raises(CallFailed) as caught:
            await s.ask(lambda c: c.call_named("test.secret", {"text": "x"}))
        assert caught.value.failure["kind"] == "forbidden"


async def test_a_deadline_may_be_given(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        s.rig.hold = trio.Event()
        with pytest.raises(CallFailed) as caught:
            await s.ask(lambda c: c.call_named("test.say", {"text": "x"}, timeout_s=0.05))
        assert caught.value.failure["kind"] == "timeout"


async def test_closing_the_connection_stops_the_work(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        s.rig.hold = trio.Event()
        connection = connect(tmp_path)
        connection.sendall(b'{"call": "test.say", "params": {"text": "long"}}\n')
        await s.rig.until(lambda: s.rig.seen == ["long"])
        connection.close()
        await s.rig.until(lambda: s.rig.stopped == ["long"])


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[]\n",
        b"{}\n",
        b'{"call": 3}\n',
        b'{"call": "test.say", "params": []}\n',
        b'{"call": "test.say", "extra": 1}\n',
        b'{"attach": {"surface": "all"}}\n',
        b"\xff\xfe\n",
        b"\n",
    ],
)
async def test_a_bad_request_is_answered_and_the_connection_lives_on(tmp_path: Path, line: bytes) -> None:
    async with served(tmp_path) as s:

        def talk() -> list[dict[str, Any]]:
            with connect(tmp_path) as connection, connection.makefile("rb") as answers:
                connection.sendall(line + b'{"call": "test.say", "params": {"text": "still here"}}\n')
                return [json.loads(answers.readline()) for _ in range(2)]

        refused, answered = await trio.to_thread.run_sync(talk)
        assert refused["failure"]["kind"] == "invalid_params"
        assert answered["result"]["text"] == "still here"
        assert not s.ended.is_set()


async def test_a_request_without_end_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path):

        def talk() -> dict[str, Any]:
            with connect(tmp_path) as connection, connection.makefile("rb") as answers:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(b"x" * (MAX_LINE_BYTES + 1))
                answer: dict[str, Any] = json.loads(answers.readline())
                return answer

        assert str(MAX_LINE_BYTES) in (await trio.to_thread.run_sync(talk))["failure"]["message"]


async def test_attached_descriptors_are_served_until_their_end(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        to_kernel, from_client = socket.socketpair()

        def attach(client: Client) -> bytes:
            with from_client:
                with to_kernel:
                    client.attach("yaml", None, to_kernel.fileno(), to_kernel.fileno())
                from_client.sendall(b"hello")
                echoed = from_client.recv(100)
                from_client.shutdown(socket.SHUT_WR)
                client.wait_detached()
                return echoed

        assert await s.ask(attach) == b"hello"
        assert s.gateway.surfaces == ["yaml"]


async def test_calls_wait_for_the_services_and_descriptors_do_not(tmp_path: Path) -> None:
    started = trio.Event()
    async with served(tmp_path, started=started) as s, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await s.ask(lambda c: c.call_named("test.say", {"text": "early"})))

        nursery.start_soon(call)
        null = os.open(os.devnull, os.O_RDWR)
        await s.ask(lambda c: c.attach("all", None, null, null, timeout_s=5))
        os.close(null)
        assert answers == []
        started.set()
    assert answers[0]["text"] == "early"


async def test_a_client_that_vanishes_ends_its_session(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        ours, theirs = socket.socketpair()
        with ours, theirs, Client(tmp_path) as client:
            await trio.to_thread.run_sync(client.attach, "all", None, theirs.fileno(), theirs.fileno())
            client.close()
            with trio.fail_after(5):
                await s.gateway.cancelled.wait()


async def test_other_roots_than_the_kernels_are_refused_naming_both(tmp_path: Path) -> None:
    async with served(tmp_path, roots=(Path("/srv/notes"),)) as s:
        with pytest.raises(CallFailed) as caught:
            await s.ask(lambda c: c.attach("all", ["/srv/other"], 0, 1))
        assert "/srv/notes" in str(caught.value)
        assert "/srv/other" in str(caught.value)
        assert not s.gateway.arrived.is_set()


async def test_an_unknown_surface_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        with pytest.raises(CallFailed, match=r"all, compact, .*yaml"):
            await s.ask(lambda c: c.attach("yml", None, 0, 1))


async def test_refused_descriptors_are_closed(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        ours, theirs = socket.socketpair()

        def refused(client: Client) -> None:
            with theirs, pytest.raises(CallFailed):
                client.attach("nothing", None, theirs.fileno(), theirs.fileno())

        await s.ask(refused)
        ours.settimeout(5)
        with ours:
            # The end of the stream says that no copy of the other end is left anywhere.
            assert await trio.to_thread.run_sync(ours.recv, 1) == b""


async def test_an_ephemeral_kernel_ends_after_its_last_client(tmp_path: Path) -> None:
    async with served(tmp_path, linger_s=0.05) as s:
        with Client(tmp_path) as first:
            await s.ask(lambda c: c.call_named("test.say", {"text": "x"}))
            # Longer than it lingers: the first client is still there.
            with trio.move_on_after(0.2) as waited:
                await s.ended.wait()
            assert waited.cancelled_caught
            assert first
        with trio.fail_after(5):
            await s.ended.wait()


async def test_the_end_of_the_kernel_is_distinguished_from_an_answer(tmp_path: Path) -> None:
    ended: list[BaseException] = []

    def ask() -> None:
        with Client(tmp_path) as client, pytest.raises(KernelGone) as caught:
            client.call_named("test.say", {"text": "x"})
        ended.append(caught.value)

    async with trio.open_nursery() as nursery, served(tmp_path) as s:
        s.rig.hold = trio.Event()
        nursery.start_soon(trio.to_thread.run_sync, ask)
        await s.rig.until(lambda: s.rig.seen == ["x"])
    assert len(ended) == 1


def test_without_a_kernel_the_error_says_how_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(NoKernel, match="linckia serve"):
        Client(tmp_path)


def test_a_data_directory_has_one_kernel(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(AlreadyHeld, match=str(os.getpid())), hold(tmp_path):
        pytest.fail("held twice")
    with hold(tmp_path):
        connect(tmp_path).close()


def test_a_killed_kernels_socket_is_taken_over(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(socket_path(tmp_path)))
    left.close()
    with hold(tmp_path):
        connect(tmp_path).close()


def test_only_the_user_may_open_the_socket(tmp_path: Path) -> None:
    with hold(tmp_path / "data"):
        assert socket_path(tmp_path / "data").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_a_path_too_long_for_an_address_works_all_the_same(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    with hold(deep):
        connect(deep).close()
        with pytest.raises(AlreadyHeld), hold(deep, wait_s=0):
            pytest.fail("held twice")


def test_a_data_directory_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotHold, match="--data"), hold(tmp_path / "file" / "data"):
        pytest.fail("held")


def test_the_socket_is_gone_with_its_kernel(tmp_path: Path) -> None:
    with hold(tmp_path):
        pass
    assert not socket_path(tmp_path).exists()


CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    try:
        connection.sendall(b'{"call": "test.say", "params": {"text": "x"}}\\n')
        print(connection.makefile().readline() or "refused")
    except ConnectionError:
        print("refused")
"""

BY_A_CHILD = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-c", *sys.argv[1:]]))
"""

AS_AN_ORPHAN = """
import os, sys, time
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.001)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.parametrize("code", [(CONNECT,), (BY_A_CHILD, CONNECT), (BY_A_CHILD, BY_A_CHILD, CONNECT)])
async def test_no_descendant_of_the_kernel_may_use_the_control_socket(tmp_path: Path, code: tuple[str, ...]) -> None:
    async with served(tmp_path) as s:
        command = [sys.executable, "-c", *code, str(socket_path(tmp_path))]
        done = await trio.run_process(command, capture_stdout=True)
        assert done.stdout == b"refused\n"
        # The kernel's own process does not count as its descendant.
        assert (await s.ask(lambda client: client.call_named("test.say", {"text": "hello"})))["text"] == "hello"


async def test_a_process_that_is_no_longer_a_descendant_may_use_the_control_socket(tmp_path: Path) -> None:
    # Another test may have made this process adopt orphans.
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    async with served(tmp_path):
        command = [sys.executable, "-c", AS_AN_ORPHAN, CONNECT, str(socket_path(tmp_path))]
        done = await trio.run_process(command, capture_stdout=True)
        assert b'"text":"x"' in done.stdout


async def test_a_connection_whose_creator_has_ended_is_refused(tmp_path: Path) -> None:
    code = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).connect(sys.argv[2])"
    with socket.socket(socket.AF_UNIX) as made, hold(tmp_path) as listener:
        command = [sys.executable, "-c", code, str(made.fileno()), str(socket_path(tmp_path))]
        await trio.run_process(command, pass_fds=(made.fileno(),))
        with trio.socket.from_stdlib_socket(listener.accept()[0]) as accepted:
            assert not is_admitted(accepted)


def test_an_existing_data_directory_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    with locked(tmp_path / "data", wait_s=0):
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
