"""How a server starts that the settings place on the cluster: its stand-in here, and what its host is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from proto.host.environment import environment as own_environment
from proto.host.environment import of_programs
from proto.names import module
from proto.wire.cluster import Resources
from services.mounts.process.processes import MARKER

VARIABLE = "LINCKIA_NODE"
"""Environment variable in which the stand-in finds its `Place`. The server never has it."""

STAND_IN = module("services.mounts.node.stand_in")
HOST = module("services.mounts.node.host")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What the stand-in of a server is told.

    Attributes:
        secret: by which the cluster's driver knows it.
        service: of the server's adapter.
        environment: the server's own variables; others are those of the machine that it runs on.
        given: the whole environment of a server that runs here.
        memory_bytes: what all its processes may use.
        moves: whether it may move to a node later.
    """

    secret: str
    service: str
    resources: Resources
    cwd: str
    environment: dict[str, str]
    given: dict[str, str]
    memory_bytes: int
    moves: bool


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What the host of a server is told. An empty `cwd` is the home folder of the node's user."""

    command: list[str]
    cwd: str
    environment: dict[str, str]
    memory_bytes: int


def folder_of(cwd: str) -> str:
    """Return the working directory of the server on this machine."""
    return os.path.expanduser(cwd) if cwd else str(Path.home())


def stand_in(
    command: Sequence[str],
    environment: Mapping[str, str],
    own: Mapping[str, str],
    *,
    secret: str,
    service: str,
    resources: Resources,
    cwd: str,
    memory_bytes: int,
    moves: bool,
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a server's stand-in.

    Args:
        environment: that of a server that runs here, with its marker.
        own: the variables among them that the settings name.
    """
    usual = of_programs()
    sent = {name: value for name, value in environment.items() if name in own or name not in usual}
    place = Place(
        secret=secret, service=service, resources=resources, cwd=cwd, environment=sent, given=dict(environment),
        memory_bytes=memory_bytes, moves=moves,
    )  # fmt: skip
    variables = own_environment({VARIABLE: msgspec.json.encode(place).decode(), MARKER: environment[MARKER]})
    return [sys.executable, "-P", "-m", STAND_IN, *command], variables
