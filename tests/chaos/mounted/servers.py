"""The servers of the storm: how they start, the calls that they get, and a record of every request that reached them.

Each server reads its standard input through `tee`, which keeps everything sent to any of its processes. So the storm
knows how often a call reached the server, whatever the server makes of it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proto.mounts import CHANGE, READ, REPEAT
from services.mounts.torture.client import Client, opened
from tests.system.running import REPOSITORY

RUN = "CHAOS_MOUNT"
"""Environment variable that names the run and the server, in all of a server's processes."""

_TEE = 'log=$1; shift; exec 3<&0; exec "$@" < <(exec tee -a "$log" <&3) 3<&-'
"""The server itself is the process that was started; `tee` is its child."""

_SMALL = REPOSITORY / "tests" / "system" / "support" / "mcp_server.py"
_START_LIMIT_S = 60


@dataclass(frozen=True)
class Call:
    """One kind of call. `arguments` makes them from a text that no other call has."""

    tool: str
    kind: str
    arguments: Callable[[str], dict[str, Any]]
    expected: Callable[[str], str] = lambda _: ""
    """A part of the right answer."""
    alone: bool = False
    """Whether only one client makes this call, because the server cannot do two at once."""


@dataclass(frozen=True)
class Server:
    """A server and its calls; the first one is the probe."""

    name: str
    command: Sequence[str]
    calls: Sequence[Call]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    is_recorded: bool = True

    @property
    def log(self) -> Path:
        """The requests that its processes were sent."""
        return self.folder / f"{self.name}.requests"

    @property
    def whole_command(self) -> list[str]:
        if not self.is_recorded:
            return list(self.command)
        return [shutil.which("bash") or "bash", "-c", _TEE, "bash", str(self.log), *self.command]

    def table(self, run: str) -> dict[str, object]:
        """Return its table of settings."""
        command, *args = self.whole_command
        env = {**self.env, RUN: f"{run}.{self.name}"}
        return {"command": command, "args": args, "env": env, "start": "eager", "timeout": 60.0}

    def received(self) -> list[str]:
        """Return the lines with calls that its processes were sent."""
        if not self.log.exists():
            return []
        return [line for line in self.log.read_text(errors="replace").splitlines() if '"tools/call"' in line]


def five(folder: Path, programs: Path) -> list[Server]:
    """Return the real servers. `programs` has `npm/node_modules/.bin` and `venv/bin`."""
    npm, venv = programs / "npm" / "node_modules" / ".bin", programs / "venv" / "bin"
    work, repository = folder / "work", folder / "repository"
    work.mkdir()
    (work / "here.txt").write_text("sea stars\n")
    _make_repository(repository)
    hint = {"timezone": "Asia/Tokyo"}
    return [
        Server(
            "everything",
            [str(npm / "mcp-server-everything")],
            [
                Call("echo", READ, lambda mark: {"message": mark}, lambda mark: mark),
                Call("get-sum", READ, lambda mark: {"a": len(mark), "b": 1000}, lambda mark: str(len(mark) + 1000)),
                Call("trigger-long-running-operation", READ, lambda _: {"duration": 0.2, "steps": 2}),
                Call("toggle-simulated-logging", CHANGE, lambda mark: {"mark": mark}),
            ],
            folder,
        ),
        Server(
            "filesystem",
            [str(npm / "mcp-server-filesystem"), str(work)],
            [
                Call("read_text_file", READ, lambda _: {"path": str(work / "here.txt")}, lambda _: "sea stars"),
                Call("write_file", REPEAT, lambda mark: {"path": str(work / f"{mark}.txt"), "content": mark}),
                Call("edit_file", CHANGE, lambda mark: _edit(work / "edited.txt", mark), alone=True),
            ],
            folder,
        ),
        Server(
            "memory",
            [str(npm / "mcp-server-memory")],
            [
                Call("search_nodes", READ, lambda mark: {"query": mark}, lambda _: "entities"),
                Call("create_entities", CHANGE, _entity, lambda mark: mark, alone=True),
                Call("delete_entities", REPEAT, lambda _: {"entityNames": ["nobody"]}, alone=True),
            ],
            folder,
            {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
        ),
        Server(
            "time",
            [str(venv / "mcp-server-time"), "--local-timezone", "Etc/UTC"],
            [
                Call("get_current_time", READ, lambda _: hint, lambda _: "Asia/Tokyo"),
                Call("convert_time", READ, _at_noon, lambda _: "21:00"),
            ],
            folder,
        ),
        Server(
            "git",
            [str(venv / "mcp-server-git"), "--repository", str(repository)],
            [
                Call("git_log", READ, lambda _: {"repo_path": str(repository)}, lambda _: "the first"),
                Call("git_create_branch", CHANGE, lambda mark: {"repo_path": str(repository), "branch_name": mark},
                     lambda mark: mark),
            ],
            folder,
        ),
    ]  # fmt: skip


def small(folder: Path, count: int = 2) -> list[Server]:
    """Return handwritten servers, which need nothing to be installed."""
    work = folder / "work"
    work.mkdir()
    calls = [
        Call("echo", READ, lambda mark: {"text": mark}, lambda mark: mark),
        Call("write", REPEAT, lambda mark: {"path": str(work / mark)}, lambda _: "written"),
        Call("append", CHANGE, lambda mark: {"path": str(work / "lines"), "text": mark}, lambda _: "appended"),
    ]
    return [Server(f"small{n}", [sys.executable, str(_SMALL)], calls, folder) for n in range(count)]


def _edit(path: Path, mark: str) -> dict[str, Any]:
    path.touch()
    if not path.read_text():
        path.write_text("start\n")
    return {"path": str(path), "edits": [{"oldText": "start\n", "newText": f"start\n{mark}\n"}]}


def _entity(mark: str) -> dict[str, Any]:
    return {"entities": [{"name": mark, "entityType": "test", "observations": ["seen"]}]}


def _at_noon(_: str) -> dict[str, Any]:
    return {"source_timezone": "Etc/UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}


def _make_repository(at: Path) -> None:
    at.mkdir()
    person = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for arguments in (["init", "-q"], [*person, "commit", "-q", "--allow-empty", "-m", "the first"]):
        subprocess.run(["git", *arguments], cwd=at, check=True)


def real(folder: Path, programs: Path, count: int) -> list[Server]:
    """Return this many real servers, of two kinds in turn, which run without `tee`."""
    npm = programs / "npm" / "node_modules" / ".bin"
    kinds = [
        ("everything", Call("get-sum", READ, lambda mark: {"a": len(mark), "b": 1000}, lambda m: str(len(m) + 1000))),
        ("memory", Call("search_nodes", READ, lambda mark: {"query": mark}, lambda _: "entities")),
    ]
    return [
        Server(
            f"{name}{n}",
            [str(npm / f"mcp-server-{name}")],
            [call],
            folder,
            {"MEMORY_FILE_PATH": str(folder / f"memory{n}.jsonl")},
            is_recorded=False,
        )
        for n in range(count)
        for name, call in [kinds[n % len(kinds)]]
    ]


@asynccontextmanager
async def direct(server: Server, environment: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    """Start a server as a client would start it. It is killed at the end."""
    wrong: list[str] = []
    whole = {**server.env, **(environment or {})}
    async with opened(server.whole_command, lambda *what: wrong.append(str(what)), whole) as client:
        yield client
    assert not wrong, wrong


async def call(client: Client, server: Server, mark: str) -> None:
    """Shake hands with a server, call its first tool, and wait for the answer."""
    assert await client.greet(_START_LIMIT_S), client.process.last_lines
    probe = server.calls[0]
    asked = await client.call(probe.tool, probe.arguments(mark))
    assert not await client.wait([asked], _START_LIMIT_S), client.process.last_lines


async def direct_start(server: Server) -> float:
    """Start the server as a client would, and return the seconds until its first answer to a call."""
    began = time.monotonic()
    async with direct(server) as client:
        await call(client, server, "directly")
        return time.monotonic() - began
