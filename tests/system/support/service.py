"""A service that misbehaves on request, at start-up (settings) or on demand."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from services.runtime.handlers import Context, Environment, Handlers
from tests.system.support.ops import Echo, Misbehave, Said

hoard: list[bytearray] = []


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    at_start = env.settings.get("at_start", "")
    if at_start == "exit":
        sys.stderr.write("the disk is full\n")
        os._exit(7)
    if at_start == "sleep":
        await trio.sleep_forever()
    if env.mode and env.mode in env.settings.get("bad_modes", []):
        os._exit(9)
    if env.settings.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        faulthandler.disable()
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
    handlers = Handlers()

    @handlers.handle(Echo)
    async def echo(params: Echo, ctx: Context) -> Said:
        return Said(params.text)

    @handlers.handle(Misbehave)
    async def misbehave(params: Misbehave, ctx: Context) -> Said:
        match params.how:
            case "spin":
                _hold_the_interpreter()
            case "leak":
                hoard.append(bytearray(os.urandom(1024)) * 1024 * params.amount)
            case "exit":
                os._exit(params.amount)
            case "segfault":
                ctypes.string_at(0)
            case "spawn":
                return Said(_spawn())
            case "daemon":
                return Said(_leave_a_daemon())
            case "deaf" | "busy" | "deadlock":
                _stand_still(params.how)
            case "threads":
                await _work_in_threads(params.amount)
        return Said("done")

    env.info(mode=env.mode, pid=str(os.getpid()))
    yield handlers


def _hold_the_interpreter() -> None:
    # Deadlocks in C while holding the interpreter lock, so that no Python signal handler runs.
    sys.stderr.write("holds the interpreter\n")
    sys.stderr.flush()
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


async def _work_in_threads(count: int) -> None:
    meeting = threading.Barrier(count)
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(trio.to_thread.run_sync, _allocate, meeting)


def _allocate(meeting: threading.Barrier) -> None:
    held = [bytes(1000) for _ in range(1000)]
    meeting.wait(30)
    held.clear()


def _stand_still(how: str) -> None:
    lock = threading.Lock()
    while how == "busy":
        pass
    while how == "deadlock":
        lock.acquire()
    time.sleep(1000)


def _spawn() -> str:
    return str(subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL).pid)


def _leave_a_daemon() -> str:
    out = subprocess.run(["setsid", "sh", "-c", "sleep 0.3 >&2 & echo $!"], stdout=subprocess.PIPE, check=True)
    return out.stdout.decode().strip()
