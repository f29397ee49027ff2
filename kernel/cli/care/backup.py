"""`linckia backup` and `restore`: work with or without a kernel, which takes no part in them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec

from kernel.cli.care.data_format import program
from kernel.cli.care.exposure import require_out_of_reach
from kernel.cli.settings.layers import Flags, from_file
from kernel.cli.settings.loading import FILE_NAMES, load
from kernel.configure.config import BackupSettings, ConfigError
from proto.backup import BackupFailed, Backups, Manifest, Program
from proto.control.address import AlreadyHeld, CannotHold, locked
from proto.control.commands import Failed, Usage
from proto.control.terminal import Bars, complain, counted, duration, say, show_answer, show_json, size
from proto.mounts import TABLE as MOUNTS
from proto.names import module

EXIT_INCOMPLETE = 4
"""Exit code if a backup was made but is incomplete; lines on stderr name the missing data."""


def _service() -> Backups:
    """Return the backup service, which is imported by name: only these commands load code of services."""
    return cast(Backups, importlib.import_module(module("services.backup")))


def backup(arguments: argparse.Namespace) -> int:
    """Make a backup, or list backups; return `EXIT_INCOMPLETE` if some data could not be copied. Raises Failed,
    Usage."""
    settings = None if arguments.target and (arguments.list or arguments.keep) else _settings(arguments)
    named = arguments.target or (settings and settings.to)
    if not named:
        raise Usage("name a folder or FILE.tar to back up to, or set `to` in [backup] of the settings")
    to = Path(named).expanduser().absolute()
    if arguments.keep is not None and arguments.keep < 1:
        raise Usage(f"--keep is {arguments.keep}; it must be 1 or more")
    try:
        if arguments.list:
            return _list(to, arguments.json)
        served = _program(require_out_of_reach(to, arguments, "the backup and its tokens"))
        # The number in the settings applies only to the folder in the settings.
        keep = arguments.keep or (settings.keep if settings and settings.to == str(to.resolve()) else None)
        with Bars("backing up", of_bytes=True) as show:
            made = _service().backup(
                arguments.data_dir, to, served, keep, background=arguments.background,
                on_progress=show and (lambda done, total: show({"done": done, "total": total, "message": ""})),
            )  # fmt: skip
    except BackupFailed as error:
        raise Failed(str(error)) from None
    for problem in made.problems:
        complain(problem)
    if arguments.json:
        show_json(msgspec.to_builtins(made))
    else:
        say(
            f"{made.snapshot}: {counted(made.stores, 'store')}, {counted(made.files, 'file')}, {size(made.size)}, "
            f"of which {size(made.new)} were added to {made.to}; verified; writers waited {made.held_ms:.0f} ms"
        )
        if _has_server(arguments):
            say(
                "collections on the PostgreSQL server are not part of it; pg_dump, or the server's own backup, has them"
            )
    return EXIT_INCOMPLETE if made.problems else 0


def _has_server(arguments: argparse.Namespace) -> bool:
    """Return whether collections may be on a PostgreSQL server."""
    with contextlib.suppress(ConfigError):
        return bool(load(Flags(data_dir=arguments.data), os.environ).services.get("retrieve", {}).get("dsn_env"))
    return False


def _program(packages: list[str]) -> Program:
    """Return the description of the data by a kernel with these external packages."""
    try:
        return program(packages)
    except ConfigError as error:
        complain(f"{error}: all files of the data directory are backed up")
        return program()


def restore(arguments: argparse.Namespace) -> int:
    """Restore a data directory. Raises Failed, Usage."""
    data_dir: Path = arguments.data_dir
    require_out_of_reach(data_dir, arguments, "the restored data and its tokens")
    source = Path(arguments.source).expanduser().absolute()
    try:
        manifest, aside = _service().restore(
            source, data_dir, program(), without_kernel, at=arguments.at, replace=arguments.replace
        )
    except BackupFailed as error:
        raise Failed(f"{error}; nothing was changed") from None
    for problem in manifest.problems:
        complain(f"in the backup: {problem}")
    if aside is not None:
        complain(f"the previous contents are now in {aside}")
    if servers := _mounted_servers(data_dir):
        complain(
            f"its settings have Linckia start other programs ([mcp.NAME]): {', '.join(servers)}; check them before the "
            "first start if somebody else made this backup"
        )
    say(
        f"{data_dir} is restored to its state at {_at(manifest)} ({manifest.id}): "
        f"{counted(len(manifest.files), 'file')}, {size(manifest.size)}, verified. "
        "Indexes are rebuilt when Linckia starts"
    )
    return 0


def _mounted_servers(data_dir: Path) -> list[str]:
    """Return the names of the servers that the settings in a data directory mount."""
    names: list[str] = []
    for path in map(data_dir.joinpath, FILE_NAMES):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(ConfigError):
                tables = from_file(path).get(MOUNTS)
                names += map(str, tables) if isinstance(tables, dict) else ()
    return names


@contextlib.contextmanager
def without_kernel(data_dir: Path) -> Iterator[None]:
    try:
        with locked(data_dir, wait_s=0):
            yield
    except AlreadyHeld as error:
        raise BackupFailed(f"{error} Stop it before restoring") from None
    except CannotHold as error:
        raise BackupFailed(str(error)) from None


def _settings(arguments: argparse.Namespace) -> BackupSettings | None:
    try:
        return load(Flags(data_dir=arguments.data), os.environ).backup
    except ConfigError as error:
        if arguments.target:
            # A backup is needed most when something is wrong.
            return None
        raise Usage(str(error)) from None


def _at(manifest: Manifest) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.at))


def _list(to: Path, as_json: bool) -> int:
    """List the snapshots; exit code 1 if one cannot be read."""
    found = _service().snapshots(to)
    there = [each for each in found if isinstance(each, Manifest)]
    for problem in found:
        if isinstance(problem, str):
            complain(problem)
    rows = [
        [each.id, _at(each), duration(max(0.0, time.time() - each.at)), size(each.size), each.version, each.data_dir]
        for each in there
    ]
    answer = [
        {"snapshot": each.id, "at": each.at, "version": each.version, "data_dir": each.data_dir, "size": each.size}
        | {"schemas": each.schemas, "problems": each.problems}
        for each in there
    ]
    show_answer(as_json, answer, ("SNAPSHOT", "MOMENT", "AGE", "SIZE", "VERSION", "DATA"), rows)
    return int(len(there) < len(found))
