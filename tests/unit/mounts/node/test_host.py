"""The host of a server on a node copies what the server reads and writes, says how it ends, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from proto.wire.cluster import Resources
from services.mounts.node.host import serve
from services.mounts.node.place import VARIABLE, Program, stand_in
from services.mounts.node.stand_in import CANNOT_START
from services.mounts.node.stream import SILENT_S, Kind, Lost, Stream
from services.mounts.process.processes import MARKER
from tests.unit.mounts.test_guardian import command, pids_in, until_gone

LIMIT_S = 30.0
GIB = 1024**3


class Hosted:
    """The other end of a host's stream."""

    def __init__(self, stream: Stream, end: trio.abc.Stream) -> None:
        self.stream = stream
        self.end = end

    async def next(self, kind: Kind) -> bytes:
        """Return the next piece, which must be of this kind; the log is left out otherwise."""
        while (received := await self.stream.receive())[0] is Kind.LOG is not kind:
            pass
        assert received[0] is kind, received
        return received[1]

    async def output(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += await self.next(Kind.OUTPUT)
        return data


@asynccontextmanager
async def hosted(*argv: str, cwd: str = "", memory_bytes: int = GIB, **environment: str) -> AsyncIterator[Hosted]:
    program = Program(command=list(argv), cwd=cwd, environment=environment, memory_bytes=memory_bytes)
    ours, theirs = trio.testing.memory_stream_pair()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, program, theirs)
            yield Hosted(Stream(ours), ours)
            nursery.cancel_scope.cancel()


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


async def test_input_and_output_pass_unchanged_and_the_end_of_the_input_too() -> None:
    data = os.urandom(300_000)
    async with hosted("cat") as host:
        pid = int(await host.next(Kind.STARTED))
        os.kill(pid, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.stream.send, Kind.INPUT, data)
            assert await host.output(len(data)) == data
        await host.stream.send(Kind.INPUT)
        assert await host.next(Kind.ENDED) == b"0"


@pytest.mark.parametrize(
    ("code", "ended"), [("raise SystemExit(7)", b"7"), ("import os; os.kill(os.getpid(), 9)", b"-9")]
)
async def test_it_says_how_the_server_ended(code: str, ended: bytes) -> None:
    async with hosted(*python(code)) as host:
        await host.next(Kind.STARTED)
        assert await host.next(Kind.ENDED) == ended


async def test_a_signal_reaches_the_server() -> None:
    async with hosted("sleep", "1000") as host:
        await host.next(Kind.STARTED)
        await host.stream.send(Kind.TERMINATE)
        assert await host.next(Kind.ENDED) == b"-15"


async def test_a_command_that_is_not_there_is_named() -> None:
    async with hosted("/nowhere/server") as host:
        assert b"/nowhere/server" in await host.next(Kind.FAILED)
    async with hosted("cat", cwd="/nowhere") as host:
        assert b"/nowhere" in await host.next(Kind.FAILED)


async def test_the_server_has_its_own_variables_and_those_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_INDEX", "of the node")
    monkeypatch.setenv("SECRET_OF_THE_NODE", "x")
    code = "import os; print(os.environ['UV_INDEX'], os.environ['GIVEN'], 'SECRET_OF_THE_NODE' in os.environ)"
    async with hosted(*python(code), GIVEN="given") as host:
        await host.next(Kind.STARTED)
        assert await host.next(Kind.OUTPUT) == b"of the node given False\n"


async def test_lines_of_its_stderr_arrive() -> None:
    async with hosted(*python("import sys; print('said', file=sys.stderr)")) as host:
        await host.next(Kind.STARTED)
        assert await host.next(Kind.LOG) == b"said\n"


async def test_a_server_past_its_limit_of_memory_is_ended_and_the_log_says_so() -> None:
    code = "kept = bytearray(200_000_000); import time; time.sleep(1000)"
    async with hosted(*python(code), memory_bytes=100_000_000) as host:
        await host.next(Kind.STARTED)
        assert (await host.next(Kind.LOG)).startswith(b"memory: ")
        assert await host.next(Kind.ENDED) == b"-9"


async def test_nothing_is_left_once_the_other_end_is_gone(tmp_path: Path) -> None:
    async with hosted(*command(tmp_path / "pids"), cwd=str(tmp_path)) as host:
        await host.next(Kind.STARTED)
        assert await host.output(6) == b"ready\n"
        await host.end.aclose()
        await until_gone(pids_in(tmp_path / "pids"))


async def test_silence_counts_only_while_an_end_reads(autojump_clock: trio.testing.MockClock) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    one, other = Stream(ours), Stream(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.beat)
        await other.send(Kind.OUTPUT, b"x")
        # Nothing is read meanwhile, as when whoever reads the output is busy.
        await trio.sleep(10 * SILENT_S)
        assert await one.receive() == (Kind.OUTPUT, b"x")
        nursery.cancel_scope.cancel()
    with pytest.raises(Lost, match="no sign of life"):
        await one.receive()


def test_without_a_driver_the_server_runs_here(tmp_path: Path) -> None:
    def run(*server: str, cwd: str) -> subprocess.CompletedProcess[str]:
        argv, variables = stand_in(
            server, {"PATH": os.environ["PATH"], "GIVEN": "given", MARKER: "mark"}, {}, secret="of nobody",
            service="mcp_one", resources=Resources(), cwd=cwd, memory_bytes=GIB, moves=True,
        )  # fmt: skip
        return subprocess.run(
            argv, env=variables, input="said", capture_output=True, text=True, check=False, timeout=LIMIT_S
        )

    done = run("sh", "-c", "cat; pwd; env; exit 3", cwd=str(tmp_path))
    assert (done.returncode, done.stdout.startswith(f"said{tmp_path}\n")) == (3, True)
    assert f"{MARKER}=mark\n" in done.stdout
    assert "GIVEN=given\n" in done.stdout
    assert VARIABLE not in done.stdout
    assert "on this machine instead of the cluster: the cluster is not connected" in done.stderr
    missing = run("/nowhere/server", cwd="")
    assert (missing.returncode, "/nowhere/server: No such file" in missing.stderr) == (CANNOT_START, True)
    assert "/nowhere: No such file" in run("cat", cwd="/nowhere").stderr


async def test_a_host_whose_process_is_killed_leaves_nothing(tmp_path: Path) -> None:
    code = f"""
import trio, trio.testing
from services.mounts.node.host import serve
from services.mounts.node.place import Program

async def main():
    ours, theirs = trio.testing.memory_stream_pair()
    await serve(Program(command={command(tmp_path / "pids")!r}, cwd={str(tmp_path)!r}, environment={{}},
                        memory_bytes={GIB}), theirs)

trio.run(main)
"""
    process = await trio.lowlevel.open_process([sys.executable, "-c", code])
    with trio.fail_after(LIMIT_S):
        path = trio.Path(tmp_path / "pids")
        # The tree says on its output, which nobody reads here, that it has started.
        while not await path.exists() or len(pids_in(tmp_path / "pids")) < 4:  # noqa: ASYNC110
            await trio.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    await until_gone(pids_in(tmp_path / "pids"))
