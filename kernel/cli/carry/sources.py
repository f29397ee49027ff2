"""`linckia migrate sources`: moves documents, conversations and memories to a PostgreSQL server, or back into files."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure import manifests
from kernel.configure.config import ConfigError
from proto.control.address import CannotHold, locked
from proto.control.commands import Failed
from proto.control.terminal import say
from proto.host import extras
from proto.names import module


def movable() -> Iterator[tuple[str, str]]:
    """Yield the databases whose pages may be on a server: service and file."""
    for each in manifests.built_in():
        for store in each.manifest.stores:
            if store.movable:
                yield each.manifest.name, store.path


def run(arguments: argparse.Namespace) -> int:
    """Move all of them. Raises Failed."""
    data_dir: Path = arguments.data_dir
    try:
        given = load(Flags(data_dir=str(data_dir)), os.environ).sources
    except ConfigError as error:
        raise Failed(str(error)) from None
    if not extras.is_installed(extras.POSTGRES):
        raise Failed(f"the library of PostgreSQL is missing; install it with `{extras.command_for(extras.POSTGRES)}`")
    if not (dsn := os.environ.get(given.dsn_env)):
        raise Failed(f"the variable {given.dsn_env}, which `dsn_env` in [sources] names, is not set")
    # Imported by name: only this command loads code of services.
    moving = importlib.import_module(module("services.runtime.sources.moving"))
    moved = []
    try:
        with locked(data_dir, wait_s=0):
            for service, file in movable():
                path = data_dir / "services" / service / file
                if said := moving.move(
                    path, f"{service}/{file}", dsn, given.schema, to_server=arguments.to == "postgres"
                ):
                    say(f"{said}, compared")
                    moved.append(service)
    except CannotHold as error:
        raise Failed(str(error)) from None
    except moving.Cannot as error:
        raise Failed(str(error)) from None
    if not moved:
        say("nothing to move")
    elif arguments.to == "postgres":
        say('set `store = "postgres"` in [sources]; the originals are kept as *.before-postgres: remove them in time')
    else:
        say('set `store = "local"` in [sources]')
    return 0
