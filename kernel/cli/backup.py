"""`linckia backup` and `restore-backup`: with or without a kernel, which has no part in them."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

import msgspec

from linckia.kernel.backup import making, restoring
from linckia.kernel.backup.target import BackupFailed, Manifest, listed, opened
from linckia.kernel.cli import Failed, Usage
from linckia.kernel.cli.terminal import complain, duration, show_answer, show_json, size
from linckia.kernel.config import load
from linckia.kernel.control.client import Client, ControlError
from linckia.kernel.settings import BackupSettings, ConfigError, Flags


def backup(arguments: argparse.Namespace) -> int:
    """Make one, or list those there are.  Raises Failed, Usage."""
    settings = None if arguments.target and (arguments.list or arguments.keep) else _settings(arguments)
    named = arguments.target or (settings and settings.to)
    if not named:
        raise Usage("name a folder or FILE.tar to back up to, or set `to` in [backup] of the settings")
    to = Path(named).expanduser().absolute()
    if arguments.keep is not None and arguments.keep < 1:
        raise Usage(f"--keep is {arguments.keep}; it is 1 or more")
    try:
        if arguments.list:
            return _list(to, arguments.json)
        _require_out_of_reach(to.resolve(), arguments)
        # Where the settings say how many, they do so of their own folder alone.
        keep = arguments.keep or (settings.keep if settings and settings.to == str(to.resolve()) else None)
        made = making.backup(arguments.data_dir, to, keep, background=arguments.background)
    except BackupFailed as error:
        raise Failed(str(error)) from None
    for problem in made.problems:
        complain(problem)
    if arguments.json:
        show_json(msgspec.to_builtins(made))
    else:
        print(
            f"{made.snapshot}: {made.stores} stores, {made.files} files, {size(made.size)}, of which {size(made.new)} "
            f"were added to {made.to}; verified; writers waited {made.held_ms:.0f} ms"
        )
    return 0


def _require_out_of_reach(to: Path, arguments: argparse.Namespace) -> None:
    """A backup holds the tokens and all that is stored, so no client may read it.  Raises Usage."""
    try:
        config = load(Flags(data_dir=arguments.data), os.environ)
    except ConfigError:
        config = None
    if config is not None and any(to.is_relative_to(place) for place in config.denied):
        # `[backup] to`, or below what `deny` lists.
        return
    roots = set() if config is None else set(config.roots)
    with contextlib.suppress(ControlError), Client(arguments.data_dir) as client:
        roots.update(map(Path, client.call("kernel_status", {})["roots"]))
    if root := next((root for root in sorted(roots) if to.is_relative_to(root)), None):
        raise Usage(
            f"{to} lies below the root {root}, where clients could read the backup and the tokens in it; name a folder "
            "below no root"
        )


def restore_backup(arguments: argparse.Namespace) -> int:
    """Put a data directory back.  Raises Failed."""
    data_dir: Path = arguments.data_dir
    source = Path(arguments.source).expanduser().absolute()
    try:
        manifest, aside = restoring.restore(source, data_dir, at=arguments.at, replace=arguments.replace)
    except BackupFailed as error:
        raise Failed(f"{error}; nothing was changed") from None
    for problem in manifest.problems:
        complain(f"in the backup: {problem}")
    if aside is not None:
        complain(f"what was there is in {aside} now")
    print(
        f"{data_dir} is as it was at {_at(manifest)} ({manifest.id}): {len(manifest.files)} files, "
        f"{size(manifest.size)}, verified. Indexes are rebuilt once Linckia is started"
    )
    return 0


def _settings(arguments: argparse.Namespace) -> BackupSettings | None:
    try:
        return load(Flags(data_dir=arguments.data), os.environ).backup
    except ConfigError as error:
        if arguments.target:
            # A backup is wanted most where something is wrong.
            return None
        raise Usage(str(error)) from None


def _at(manifest: Manifest) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.at))


def _list(to: Path, as_json: bool) -> int:
    """Exit code 1 where a snapshot cannot be read."""
    with opened(to) as target:
        found = list(listed(target))
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
