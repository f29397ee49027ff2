"""The processes of mounted servers, found by a variable of their environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from services.mounts.process import guardian
from services.mounts.process.processes import MARKER
from tests.chaos.mounted.servers import RUN


class Process(NamedTuple):
    pid: int
    parent: int
    server: str
    command: tuple[str, ...]

    @property
    def is_guardian(self) -> bool:
        return guardian.__file__ in self.command


def processes(run: str) -> list[Process]:
    """Return the living processes of all mounted servers of this run."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        folder = Path("/proc", name)
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            mine = next((each for each in variables if each.startswith(f"{RUN}={run}.".encode())), None)
            if mine is None or not any(each.startswith(f"{MARKER}=".encode()) for each in variables):
                continue
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = tuple((folder / "cmdline").read_bytes().decode(errors="replace").split("\0"))
        except OSError:
            continue
        if state not in "ZX":
            found.append(Process(int(name), int(parent), mine.decode().rpartition(".")[2], command))
    return found


class Tree(NamedTuple):
    """The processes of one server. Everything is empty while it starts or ends."""

    guardians: list[Process]
    roots: list[Process]
    """Children of guardians: the servers themselves."""
    others: list[Process]

    @property
    def is_whole(self) -> bool:
        return len(self.guardians) == 1 and len(self.roots) == 1

    @property
    def pids(self) -> list[int]:
        return [each.pid for part in self for each in part]


def tree(run: str, server: str) -> Tree:
    """Return the processes of one server."""
    mine = [each for each in processes(run) if each.server == server]
    guardians = [each for each in mine if each.is_guardian]
    above = {each.pid for each in guardians}
    roots = [each for each in mine if each.parent in above and not each.is_guardian]
    others = [each for each in mine if each not in guardians and each not in roots]
    return Tree(guardians, roots, others)
