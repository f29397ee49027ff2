"""No process of a server outlives its end, however the processes above it die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from services.mounts.process import guardian
from services.mounts.process.child import Child, NotStarted, start_child
from services.mounts.process.processes import MARKER, are_stopped, kill_leftovers, memory_bytes

LIMIT_S = 30.0

TREE = """
sh -c 'echo $$ >> {pids}; exec sleep 1000' &
setsid sh -c 'echo $$ >> {pids}; setsid sh -c "echo \\$\\$ >> {pids}; exec sleep 1000" & exec sleep 1000' &
echo $$ >> {pids}
while [ "$(wc -l < {pids})" -lt 4 ]; do sleep 0.01; done
echo ready
exec cat
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def until_gone(pids: list[int]) -> None:
    with trio.fail_after(LIMIT_S):
        # Nothing reports the end of processes that are not children.
        while any(map(is_alive, pids)):  # noqa: ASYNC110
            await trio.sleep(0.01)


def command(pids: Path) -> list[str]:
    return ["sh", "-c", TREE.format(pids=pids)]


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


async def tree(folder: Path) -> tuple[Child, list[int]]:
    child = await start_child(command(folder / "pids"), cwd=str(folder), environment=dict(os.environ))
    assert (await child.stdout.receive_some(100)) == b"ready\n"
    found = pids_in(folder / "pids")
    assert len(set(found)) == 4
    assert all(map(is_alive, found))
    return child, found


async def test_closing_a_server_leaves_none_of_its_processes(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        child, pids = await tree(tmp_path)
        await child.close()
        await until_gone(pids)


async def test_remaining_processes_are_killed_when_the_server_is_killed(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        child, pids = await tree(tmp_path)
        os.kill(child.pid, signal.SIGKILL)
        await child.watch(str)
        assert child.cause == "the server was ended by SIGKILL"
        await until_gone(pids)
        await child.kill()


async def test_remaining_processes_are_killed_when_the_guardian_is_killed(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        child, pids = await tree(tmp_path)
        os.kill(child._guardian.pid, signal.SIGKILL)
        await child.watch(str)
        assert child.cause == "the guardian of the server was killed"
        await child.kill()
        await until_gone(pids)


SCRIPT = """
import os, sys, trio
from services.mounts.process.child import start_child

async def main():
    child = await start_child(sys.argv[1:], cwd="/", environment=dict(os.environ))
    await child.stdout.receive_some(100)
    print(child._guardian.pid, flush=True)
    await trio.sleep_forever()

trio.run(main)
"""


def adapter(folder: Path, mark: str) -> tuple[subprocess.Popen[str], int, list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *command(folder / "pids")],
        env={**os.environ, MARKER: mark}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as output:
        above = int(output.readline())
    return process, above, pids_in(folder / "pids")


async def test_a_stopped_guardian_holds_nothing_up(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        child, pids = await tree(tmp_path)
        os.kill(child._guardian.pid, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGKILL)
        await child.kill()
        await until_gone(pids)


async def test_the_server_is_killed_when_its_adapter_is_killed(tmp_path: Path) -> None:
    process, above, pids = await trio.to_thread.run_sync(adapter, tmp_path, "a")
    process.kill()
    process.wait()
    await until_gone([above, *pids])


async def test_processes_that_outlive_adapter_and_guardian_are_killed_by_the_next_start(tmp_path: Path) -> None:
    mark = f"test-{os.getpid()}"
    process, above, pids = await trio.to_thread.run_sync(adapter, tmp_path, mark)
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(above, signal.SIGKILL)
    process.kill()
    process.wait()
    # Those that left the session and their parent still run.
    assert await trio.to_thread.run_sync(kill_leftovers, mark) >= 1
    await until_gone(pids)
    assert await trio.to_thread.run_sync(kill_leftovers, mark) == 0


async def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(NotStarted, match="no-such-command: No such file"):
        await start_child(["no-such-command"], cwd="/", environment=dict(os.environ))
    with pytest.raises(NotStarted, match="`cwd` /no/such"):
        await start_child(["true"], cwd="/no/such", environment=dict(os.environ))


async def test_the_cause_has_the_exit_code_and_the_last_line_of_stderr() -> None:
    script = "echo first >&2; echo 'no token: secret' >&2; exit 3"
    child = await start_child(["sh", "-c", script], cwd="/", environment=dict(os.environ))
    await child.watch(lambda line: line.replace("secret", "***"))
    assert child.cause == "the server ended with exit code 3: no token: ***"
    await child.kill()


async def test_memory_counts_all_processes_and_stops_are_seen(tmp_path: Path) -> None:
    child, pids = await tree(tmp_path)
    try:
        assert memory_bytes(child.guardian_pid, 1 << 40) > 4 * 100_000
        assert not are_stopped(child.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with trio.fail_after(LIMIT_S):
            while not are_stopped(child.pid):  # noqa: ASYNC110
                await trio.sleep(0.01)
    finally:
        await child.close()
    await until_gone(pids)


DAEMON = """
import os, sys, time
above = os.getppid()
if not os.fork():
    os.setsid()
    if not os.fork():
        used = bytearray(b"x") * (40 << 20)
        refused = []
        for pid in (above, int(open(f"/proc/{above}/stat").read().rpartition(")")[2].split()[1])):
            try:
                os.kill(pid, 0)
            except PermissionError:
                refused.append(pid)
        os.write(1, f"{os.getpid()} {len(refused)}".encode())
        if sys.argv[1:]:
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        time.sleep(1000)
    os._exit(0)
os.wait()
sys.stdin.read()
"""
"""A server whose daemon leaves its session, its parent and its environment. It says whether it can signal guardian and
adapter."""


async def test_memory_counts_a_daemon_that_has_left_the_servers_tree() -> None:
    child = await start_child([sys.executable, "-c", DAEMON], cwd="/", environment=dict(os.environ))
    with trio.fail_after(LIMIT_S):
        pid, refused = map(int, (await child.stdout.receive_some(100)).split())
        assert refused == 0
        assert memory_bytes(child.guardian_pid, 1 << 40) > 40 << 20
        await child.close()
        await until_gone([pid])


@pytest.mark.skipif(not guardian.has_scopes(), reason="landlock does not bound signals here")
async def test_a_confined_server_cannot_signal_what_is_above_it_and_its_daemon_ends_with_it() -> None:
    command = [sys.executable, "-c", DAEMON, "without environment"]
    child = await start_child(command, cwd="/", environment=dict(os.environ), confined=True)
    with trio.fail_after(LIMIT_S):
        pid, refused = map(int, (await child.stdout.receive_some(100)).split())
        assert refused == 2
        assert is_alive(pid)
        await child.close()
        await until_gone([pid])


@pytest.mark.skipif(not guardian.has_scopes(), reason="landlock does not bound signals here")
async def test_a_confined_server_ends_its_own_children_and_a_flood_of_them_ends_with_it(tmp_path: Path) -> None:
    script = (
        "sh -c 'sleep 1000 & kill $!; wait $!; echo $?';"
        " f() { while :; do (setsid sh -c 'echo $$ >> pids; sleep 0.01' &); sleep 0.001; done; }; (f &) ; (f &) ; cat"
    )
    command, before = ["sh", "-c", script], guardian.descendants(os.getpid())
    child = await start_child(command, cwd=str(tmp_path), environment={"PATH": os.environ["PATH"]}, confined=True)
    with trio.fail_after(LIMIT_S):
        assert await child.stdout.receive_some(100) == b"143\n"
        while not (tmp_path / "pids").exists():  # noqa: ASYNC110  # other processes
            await trio.sleep(0.01)
        await child.kill()
        await until_gone(pids_in(tmp_path / "pids"))
    assert set(guardian.descendants(os.getpid())) <= set(before)
