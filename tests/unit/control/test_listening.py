"""The port for HTTP: chosen, kept, and taken by others."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from kernel.configure.config import ConfigError
from kernel.control import listening
from kernel.control.handoff import Handoff
from kernel.control.listening import listen
from proto.wire.front import Http

HOST = "127.0.0.1"


@contextlib.contextmanager
def taken(port: int = 0) -> Iterator[int]:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, port))
        other.listen()
        yield other.getsockname()[1]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.mark.parametrize("fronts", [1, 2])
async def test_a_port_that_was_named_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fronts: int
) -> None:
    monkeypatch.setattr(listening, "PATIENCE_S", 0.1)
    handoff = Handoff([f"front-{number}" for number in range(fronts)])
    with taken() as port, pytest.raises(ConfigError) as refused:
        await listen(handoff, Http(port=port), tmp_path)
    assert f"cannot listen on {HOST}:{port}: it is taken by process {os.getpid()} (" in str(refused.value)
    assert "--http HOST:PORT" in str(refused.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fronts", [1, 2])
async def test_without_a_setting_the_next_free_port_is_used_and_kept(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fronts: int,
) -> None:
    monkeypatch.setattr(listening, "PATIENCE_S", 0.1)
    names = [f"front-{number}" for number in range(fronts)]
    with taken() as first:
        monkeypatch.setattr(listening, "DEFAULT_PORT", first)
        handoff = Handoff(names)
        chosen = port_of(await listen(handoff, Http(), tmp_path))
        assert first < chosen < first + listening.PORTS
        assert f"port {first} is taken by process {os.getpid()}" in caplog.text
        # Two kernels never share a port, even if their fronts would.
        other = Handoff(names)
        assert port_of(await listen(other, Http(), tmp_path_factory.mktemp("other"))) not in (first, chosen)
        other.close()
        handoff.close()
    again = Handoff(names)
    assert port_of(await listen(again, Http(), tmp_path)) == chosen
    again.close()


async def test_the_fronts_of_a_killed_kernel_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handoff = Handoff(["front"])
    held = contextlib.ExitStack()
    port = held.enter_context(taken())
    monkeypatch.setattr(listening, "DEFAULT_PORT", port)

    async def leave() -> None:
        # The first attempt has failed by then.
        await trio.testing.wait_all_tasks_blocked()
        held.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        assert port_of(await listen(handoff, Http(), tmp_path)) == port
    handoff.close()
    assert os.listdir(tmp_path) == []
