"""The check of every command that writes copies of protected data: no client may read them.

The data directory holds what all clients have stored, and tokens. Operations show a client its part, and no root shows
the directory. A copy in a folder that is served as a root would be readable by any client that may read files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure.config import ConfigError
from proto.control.address import find_data_dir
from proto.control.client import Client, ControlError
from proto.control.commands import Usage
from proto.ops.kernel import KernelStatusParams


def require_out_of_reach(to: Path | None, arguments: argparse.Namespace, what: str) -> list[str]:
    """Check that clients cannot read `what` in the file or folder `to`, which need not exist; None is a remote place.
    Raises Usage.

    The roots are those of the settings and of a running kernel, for the data directory of the command and for the usual
    one. Returns the external packages of the command's running kernel.
    """
    to = to and to.expanduser().resolve()
    packages: list[str] = []
    for data in _data_dirs(arguments):
        served, loaded = _served(data, arguments if data == arguments.data else None)
        if data == arguments.data:
            packages = loaded
        if to and (root := next((root for root in sorted(served) if to.is_relative_to(root)), None)):
            if _is_denied(to, data):
                continue
            raise Usage(
                f"{to} is below the root {root}, where clients could read {what}; name a folder that is not below a "
                "root, or one that `deny` in the settings lists"
            )
    return packages


def _data_dirs(arguments: argparse.Namespace) -> Iterator[str | None]:
    """Yield the data directory of the command, and the usual one if it is another."""
    yield arguments.data
    if arguments.data and find_data_dir(arguments.data, os.environ) != find_data_dir(None, os.environ):
        yield None


def _served(data: str | None, arguments: argparse.Namespace | None) -> tuple[set[Path], list[str]]:
    """Return the roots of the settings and of a running kernel, and the external packages of that.

    A kernel that runs the command itself says them in the arguments, since it admits none of its own processes.
    """
    roots: set[Path] = set()
    packages: list[str] = []
    with contextlib.suppress(ConfigError):
        roots.update(load(Flags(data_dir=data), os.environ).roots)
    if getattr(arguments, "background", False):
        assert arguments is not None
        return roots | set(map(Path, arguments.served_root or ())), arguments.served_package or []
    with contextlib.suppress(ControlError), Client(find_data_dir(data, os.environ)) as client:
        status = client.call(KernelStatusParams())
        roots.update(map(Path, status.roots))
        packages = status.packages
    return roots, packages


def _is_denied(to: Path, data: str | None) -> bool:
    """Return whether the settings keep all clients away, as from `[backup] to` and the folders that `deny` lists."""
    try:
        return any(to.is_relative_to(place) for place in load(Flags(data_dir=data), os.environ).denied)
    except ConfigError:
        return False
