"""A rehearsal opens the service on nothing of its own, makes the calls that the service names, and leaves no trace."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from proto.birth import Birth
from proto.link import socket_pair
from proto.operation import Params
from proto.ops.echo import Echo, EchoParams
from services.runtime.handlers import Context, Environment, Handlers
from services.runtime.standby import rehearse

SETTINGS = {"loud": True}


class Play:
    """A service's module, and what happened in it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.opened: list[Environment] = []
        self.ended = 0
        self.module = ModuleType("play")
        self.module.__dict__["open_service"] = self.open_service

    @contextlib.asynccontextmanager
    async def open_service(self, env: Environment) -> AsyncIterator[Handlers]:
        self.opened.append(env)
        handlers = Handlers()

        @handlers.handle(EchoParams)
        async def echo(params: EchoParams, ctx: Context) -> Echo:
            self.heard.append(params.message)
            if params.message == "fail":
                raise RuntimeError("as it happens")
            return Echo(message=params.message)

        yield handlers
        self.ended += 1

    def with_calls(self, *messages: str) -> ModuleType:
        def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
            assert settings == SETTINGS
            (root / "file").write_text("x", encoding="utf-8")
            return [EchoParams(message=message) for message in messages]

        self.module.__dict__["rehearse"] = rehearse
        return self.module


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


@pytest.fixture
def birth(tmp_path: Path) -> Birth:
    return Birth(
        service="echo", module="play", generation=7, operations=("mcp.echo",), parent_pid=os.getpid(),
        data_dir=str(tmp_path / "data"), roots=(str(tmp_path),), settings=SETTINGS,
    )  # fmt: skip


async def test_calls_are_made_in_order_on_folders_of_its_own(place: Path, birth: Birth) -> None:
    play = Play()
    await rehearse(birth, play.with_calls("a", "fail", "b"), socket_pair(), place)
    assert play.heard == ["a", "fail", "b"]
    assert play.ended == 1
    (env,) = play.opened
    assert env.data_dir.is_relative_to(place)
    assert all(Path(root).is_relative_to(place) for root in env.roots)
    assert os.listdir(place) == []
    assert os.listdir(place.parent) == [place.name]


async def test_service_without_a_rehearsal_is_not_opened(place: Path, birth: Birth) -> None:
    play = Play()
    await rehearse(birth, play.module, socket_pair(), place)
    assert play.opened == []


async def test_service_that_declines_is_not_opened(place: Path, birth: Birth) -> None:
    play = Play()
    play.module.__dict__["rehearse"] = lambda root, settings: None
    await rehearse(birth, play.module, socket_pair(), place)
    assert play.opened == []


async def test_folder_of_a_process_that_was_killed_is_removed_and_that_of_a_living_one_is_not(
    place: Path, birth: Birth
) -> None:
    dead, alive = place / "linckia-rehearsal-dead", place / "linckia-rehearsal-alive"
    (dead / "root").mkdir(parents=True)
    alive.mkdir()
    fd = os.open(alive, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        await rehearse(birth, Play().with_calls(), socket_pair(), place)
    finally:
        os.close(fd)
    assert os.listdir(place) == [alive.name]
