"""Stderr of servers reaches the log, even if others write at the same moment."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from services.mounts.process.child import write_log
from tests.unit.mounts.kernel import adapter

CASES = Path(__file__).parents[4] / "shared/cases/reports/second/mounts"

CHATTY = """
import json, sys, threading
mode, clients = sys.argv[1], {}
def write(stream, text, count):
    for number in range(count):
        stream.write(f"{text} {number}\\n"); stream.flush()
def both(count):
    streams = {"out": sys.stdout, "err": sys.stderr}
    threads = [threading.Thread(target=write, args=(streams[text], text, count)) for text in streams]
    [each.start() for each in threads]; [each.join() for each in threads]
if mode == "start": both(200)
if mode == "long": sys.stderr.write("e" * 12000 + "\\n"); sys.stdout.write("o" * 12000 + "\\n"); sys.stderr.flush()
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m: continue
    if m["method"] == "tools/call": both(200)
    r = {"initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
         "serverInfo": {"name": "n", "version": "1"}}, "tools/list": {"tools": []}, "ping": {},
         "tools/call": {"content": [{"type": "text", "text": "done"}]}}.get(m["method"])
    reply = {"result": r} if r is not None else {"error": {"code": -32601, "message": "none"}}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **reply}), flush=True)
"""


class Log:
    """The lines written to the log."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self.written = b""
        self.may_read = threading.Event()
        self.may_read.set()

    def read(self) -> None:
        while data := os.read(self._reading, 65_536):
            self.may_read.wait()
            self.written += data

    @property
    def lines(self) -> list[str]:
        return self.written.decode().splitlines()

    def has(self, line: str, times: int = 1) -> bool:
        return self.lines.count(line) >= times


@contextlib.contextmanager
def logging() -> Iterator[Log]:
    """The log is a pipe, as that of a service: a file, as pytest has it, is always writable."""
    before = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    found = Log(reading)
    thread = threading.Thread(target=found.read)
    thread.start()
    try:
        yield found
    finally:
        found.may_read.set()
        os.dup2(before, 2)
        os.close(before)
        thread.join()
        os.close(reading)


def case(name: str, *arguments: str) -> dict[str, Any]:
    path = CASES / name
    if not path.exists():
        pytest.skip("the shared cases are absent")
    return {"command": sys.executable, "args": [str(path), *arguments]}


def chatty(mode: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", CHATTY, mode]}


async def test_two_tasks_that_log_at_once_take_turns() -> None:
    with logging() as log:
        log.may_read.clear()
        texts = [f"{letter * 50_000}\n" for letter in "abc"]
        async with trio.open_nursery() as nursery:
            for text in texts:
                nursery.start_soon(write_log, text)
            await trio.testing.wait_all_tasks_blocked()
            log.may_read.set()
        await until(lambda: len(log.written) == sum(map(len, texts)))
        assert log.written.decode() == "".join(sorted(texts, key=log.written.decode().index))


async def test_a_task_that_gives_up_lets_the_others_log() -> None:
    with logging() as log:
        log.may_read.clear()
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.05):
                await write_log("a" * 500_000)
            nursery.start_soon(write_log, "\nnext\n")
            nursery.start_soon(write_log, "\nlast\n")
            log.may_read.set()
        await until(lambda: {"next", "last"} <= set(log.lines))


@pytest.mark.parametrize("arguments", [("both", "160"), ("both", "16000"), ("json", "0"), ("esc", "0")])
async def test_a_server_that_writes_to_stdout_and_stderr_at_its_start_works(
    tmp_path: Path, arguments: tuple[str, str]
) -> None:
    with logging():
        async with adapter(tmp_path, **case("prints_and_logs_at_start.py", *arguments)) as running:
            assert await running.tool("hi") == "hi"


@pytest.mark.parametrize("options", [[], ["erronly"]])
async def test_a_server_that_logs_in_its_calls_answers_each(tmp_path: Path, options: list[str]) -> None:
    with logging():
        async with adapter(tmp_path, **case("prints_and_logs_in_a_call.py", *options)) as running:
            assert [await running.tool("work") for _ in range(5)] == [f"done {number}" for number in range(1, 6)]


@pytest.mark.parametrize("options", [[], ["erronly"]])
async def test_processes_of_several_clients_log_at_once(tmp_path: Path, options: list[str]) -> None:
    with logging():
        found: list[str] = []
        async with adapter(tmp_path, share="client", **case("prints_and_logs_in_a_call.py", *options)) as running:

            async def work(session: str) -> None:
                found.extend([await running.tool("work", session=session) for _ in range(3)])

            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(work, f"client {number}")
        assert sorted(found) == sorted(["done 1", "done 2", "done 3"] * 4)


@pytest.mark.parametrize("share", ["one", "client"])
async def test_every_line_of_both_streams_is_logged_whole_and_in_order(tmp_path: Path, share: str) -> None:
    with logging() as log:
        async with adapter(tmp_path, share=share, **chatty("start")) as running:
            assert await running.tool("work") == "done"
            for beginning in ("stdout: out ", "err "):
                await until(partial(log.has, f"{beginning}199", 2))
                said = [line.removeprefix(beginning) for line in log.lines if line.startswith(beginning)]
                assert said == [f"{number}" for number in range(200)] * 2


async def test_long_lines_of_both_streams_do_not_mix(tmp_path: Path) -> None:
    with logging() as log:
        log.may_read.clear()
        async with adapter(tmp_path, **chatty("long")) as running:
            assert await running.tool("work") == "done"
            log.may_read.set()
            await until(lambda: any("oooo" in line for line in log.lines) and "e" * 12000 in log.lines)
        assert all("eo" not in line and "oe" not in line for line in log.lines)


async def until(condition: Any) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110  # another thread reads
            await trio.sleep(0.01)
