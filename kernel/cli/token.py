"""`linckia token`: tokens for clients over HTTP, each with its client's permissions.

Tokens are stored in the data directory, so no kernel needs to run. A running kernel applies each change before the
command ends.
"""

from __future__ import annotations

import argparse
import datetime
import os
from functools import partial
from pathlib import Path

import msgspec

from kernel.cli.servers.tables import mounts
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure import token_editing, tokens
from kernel.configure.config import ConfigError
from proto.control.client import Client, ControlError, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import Cell, complain, say, show_answer, show_json
from proto.grants import Token
from proto.operation import SURFACES, SYNC
from proto.ops.kernel import KernelStatusParams, KernelTokensChanged

_HEADERS = ("NAME", "SURFACES", "ROOTS", "MAY", "RATE", "CREATED", "EXPIRES")
_DROP = ("CREATED", "RATE", "SURFACES", "ROOTS")


def token(arguments: argparse.Namespace) -> int:
    """Create, list or revoke tokens. Raises Usage, Failed, ControlError, OSError."""
    act = {"create": _create, "list": _list, "revoke": _revoke}[arguments.action]
    limits = (arguments.surfaces, arguments.roots, arguments.read_only)
    if arguments.action != "create" and any((*limits, arguments.sync)):
        raise Usage("--surface, --sync, --root and --read-only are for `linckia token create`")
    if arguments.sync and any(limits):
        raise Usage("--sync: such a token is for `linckia sync` alone; leave out --surface, --root and --read-only")
    if arguments.action != "create" and (arguments.expires, arguments.rate) != (None, None):
        raise Usage("--expires and --rate are for `linckia token create`")
    if (arguments.name is None) != (arguments.action == "list"):
        wants = "takes no name" if arguments.action == "list" else "needs the name of the token"
        raise Usage(f"linckia token {arguments.action} {wants}")
    try:
        return act(arguments, arguments.data_dir)
    except tokens.CannotRead as error:
        raise Failed(str(error)) from None
    except token_editing.Unfit as error:
        raise Usage(str(error) if error.field == "name" else f"--{error.field}: {error}") from None


def _create(arguments: argparse.Namespace, data_dir: Path) -> int:
    surfaces = (SYNC,) if arguments.sync else arguments.surfaces or ()
    known = SURFACES if set(surfaces) <= set(SURFACES) else (*SURFACES, *mounts(data_dir))
    made, secret = token_editing.create(
        data_dir, name=arguments.name, surfaces=surfaces, roots=arguments.roots or (), read_only=arguments.read_only,
        expires=arguments.expires, rate=arguments.rate,
        known_surfaces=(SYNC,) if arguments.sync else known,
        known_roots=partial(_roots_in_force, arguments.data, data_dir),
    )  # fmt: skip
    _take_up(data_dir, arguments)
    if arguments.json:
        show_json({**_shown(made), "token": secret})
        return 0
    say(secret)
    complain("it is shown only this once; a client sends it as `Authorization: Bearer TOKEN`")
    return 0


def _revoke(arguments: argparse.Namespace, data_dir: Path) -> int:
    token_editing.revoke(data_dir, arguments.name)
    _take_up(data_dir, arguments)
    return 0


def _list(arguments: argparse.Namespace, data_dir: Path) -> int:
    there = tokens.listed(data_dir)
    show_answer(arguments.json, [_shown(each) for each in there], _HEADERS, [_row(each) for each in there], _DROP)
    return 0


def _shown(each: Token) -> dict[str, object]:
    """Return all fields except the hash."""
    shown = msgspec.structs.asdict(each)
    del shown["sha256"]
    expires = None if each.expires is None else _at(each.expires)
    return {**shown, "created": _at(each.created), "expires": expires, "expired": token_editing.is_expired(each)}


def _row(each: Token) -> list[Cell]:
    until = (
        "never"
        if each.expires is None
        else _at(each.expires) + (" (expired)" if token_editing.is_expired(each) else "")
    )
    return [
        each.name,
        ", ".join(each.surfaces) or "all",
        ", ".join(each.roots) or "all",
        "read" if each.read_only else "read, write",
        each.rate or "",
        _at(each.created),
        until,
    ]


def _at(when: float) -> str:
    return datetime.datetime.fromtimestamp(when).astimezone().isoformat(timespec="seconds")


def _roots_in_force(data: str | None, data_dir: Path) -> list[str]:
    """Return the roots of the running kernel, or of the settings if none runs. Raises Usage, ControlError."""
    try:
        with Client(data_dir) as client:
            return client.call(KernelStatusParams()).roots
    except NoKernel:
        pass
    try:
        roots = [str(root) for root in load(Flags(data_dir=data), os.environ).roots]
    except ConfigError as error:
        raise Usage(str(error)) from None
    if not roots:
        raise Usage("--root: no roots are set and no kernel runs; start it first, `linckia serve PATH…`")
    return roots


def _take_up(data_dir: Path, arguments: argparse.Namespace) -> None:
    """Notify the running kernel, if there is one, of the change."""
    try:
        with Client(data_dir) as client:
            done = client.call(KernelTokensChanged(action=arguments.action, name=arguments.name))
    except NoKernel:
        return
    except ControlError as error:
        raise Failed(f"the change is stored, but the running kernel could not be notified: {error}") from None
    if done.message != "in force":
        complain(done.message)
