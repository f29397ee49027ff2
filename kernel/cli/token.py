"""`linckia token`: tokens for clients over HTTP, each with its client's permissions.

Tokens are stored in the data directory, so no kernel needs to run. A running kernel applies each change before the
command ends.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from linckia.kernel import tokens
from linckia.kernel.catalog import ENTRIES
from linckia.kernel.cli import Failed, Usage
from linckia.kernel.cli.mcp_settings import mounts
from linckia.kernel.cli.terminal import Cell, complain, say, show_answer, show_json
from linckia.kernel.config import load
from linckia.kernel.settings import ConfigError, Flags, seconds
from linckia.proto.control.client import Client, ControlError, NoKernel
from linckia.proto.grants import HTTP, MAX_ROOTS, STDIO, Token, parse_rate
from linckia.proto.operation import ALL, CLIENT, COMPACT, OPERATOR, SURFACES
from linckia.proto.suggestions import nearest

RESERVED = frozenset({STDIO, HTTP, CLIENT, OPERATOR, *(entry.service for entry in ENTRIES), "kernel"})
"""Other names that appear in the audit log."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEADERS = ("NAME", "SURFACES", "ROOTS", "MAY", "RATE", "CREATED", "EXPIRES")


def token(arguments: argparse.Namespace) -> int:
    """Create, list or revoke tokens. Raises Usage, Failed, ControlError, OSError."""
    act = {"create": _create, "list": _list, "revoke": _revoke}[arguments.action]
    if arguments.action != "create" and any((arguments.surfaces, arguments.roots, arguments.read_only)):
        raise Usage("--surface, --root and --read-only are for `linckia token create`")
    if arguments.action != "create" and (arguments.expires, arguments.rate) != (None, None):
        raise Usage("--expires and --rate are for `linckia token create`")
    if (arguments.name is None) != (arguments.action == "list"):
        wants = "takes no name" if arguments.action == "list" else "needs the name of the token"
        raise Usage(f"linckia token {arguments.action} {wants}")
    try:
        return act(arguments, arguments.data_dir)
    except tokens.CannotRead as error:
        raise Failed(str(error)) from None


def _create(arguments: argparse.Namespace, data_dir: Path) -> int:
    if not _NAME.fullmatch(arguments.name):
        raise Usage(f"{arguments.name!r} is not a valid token name: use letters, digits, '.', '_' and '-', 64 at most")
    if arguments.name in RESERVED:
        raise Usage(f"the name {arguments.name} has another meaning in the audit log; choose another name")
    if arguments.rate is not None:
        try:
            parse_rate(arguments.rate)
        except ValueError as error:
            raise Usage(f"--rate: {error}") from None
    surfaces = _surfaces(arguments.surfaces or (), data_dir)
    roots = _roots(arguments.roots or (), arguments.data, data_dir)
    expires = None if arguments.expires is None else expiry(arguments.expires, time.time())
    secret = tokens.new()
    made = Token(
        name=arguments.name, sha256=tokens.hash_of(secret), created=time.time(), expires=expires, surfaces=surfaces,
        roots=roots, read_only=arguments.read_only, rate=arguments.rate,
    )  # fmt: skip
    with tokens.editing(data_dir):
        there = tokens.listed(data_dir)
        if any(each.name == made.name for each in there):
            raise Usage(f"the token {made.name} already exists; revoke it first, or choose another name")
        tokens.store(data_dir, [*there, made])
    _take_up(data_dir, arguments)
    if arguments.json:
        show_json({**_shown(made), "token": secret})
        return 0
    say(secret)
    complain("it is shown only this once; a client sends it as `Authorization: Bearer TOKEN`")
    return 0


def _revoke(arguments: argparse.Namespace, data_dir: Path) -> int:
    with tokens.editing(data_dir):
        there = tokens.listed(data_dir)
        if all(each.name != arguments.name for each in there):
            known = nearest(arguments.name, [each.name for each in there]) if there else "; there are none"
            raise Usage(f"there is no token {arguments.name}{known}")
        tokens.store(data_dir, [each for each in there if each.name != arguments.name])
    _take_up(data_dir, arguments)
    return 0


def _list(arguments: argparse.Namespace, data_dir: Path) -> int:
    there = tokens.listed(data_dir)
    show_answer(arguments.json, [_shown(each) for each in there], _HEADERS, [_row(each) for each in there])
    return 0


def _shown(each: Token) -> dict[str, object]:
    """Return all fields except the hash."""
    shown = msgspec.structs.asdict(each)
    del shown["sha256"]
    expires = None if each.expires is None else _at(each.expires)
    return {**shown, "created": _at(each.created), "expires": expires, "expired": is_expired(each)}


def _row(each: Token) -> list[Cell]:
    until = "never" if each.expires is None else _at(each.expires) + (" (expired)" if is_expired(each) else "")
    return [
        each.name,
        ", ".join(each.surfaces) or "all",
        ", ".join(each.roots) or "all",
        "read" if each.read_only else "read, write",
        each.rate or "",
        _at(each.created),
        until,
    ]


def is_expired(each: Token) -> bool:
    return each.expires is not None and each.expires <= time.time()


def _at(when: float) -> str:
    return datetime.datetime.fromtimestamp(when).astimezone().isoformat(timespec="seconds")


def _surfaces(given: Sequence[str], data_dir: Path) -> tuple[str, ...]:
    known = SURFACES if set(given) <= set(SURFACES) else (*SURFACES, *mounts(data_dir))
    for name in given:
        if name not in known:
            raise Usage(f"--surface: there is no surface {name!r}{nearest(name, known)}")
    if ALL in given:
        return ()
    if set(given) == {COMPACT}:
        raise Usage(
            f"--surface {COMPACT}: it gives access to operations of other surfaces, but none is named; add some, as in "
            f"--surface {COMPACT} --surface documents, or give --surface {ALL}"
        )
    return tuple(dict.fromkeys(given))


def _roots(given: Sequence[str], data: str | None, data_dir: Path) -> tuple[str, ...]:
    if not given:
        return ()
    if len(given) > MAX_ROOTS:
        raise Usage(f"--root: {len(given)} of them; a token has at most {MAX_ROOTS}")
    known = _roots_in_force(data, data_dir)
    found = []
    for path in given:
        try:
            real = Path(path).expanduser().resolve(strict=True)
        except OSError as error:
            raise Usage(f"--root {path}: {error.strerror}") from None
        if not real.is_dir():
            raise Usage(f"--root {path}: it is not a folder")
        if not any(real.is_relative_to(root) for root in known):
            roots = ", ".join(known)
            raise Usage(f"--root {path}: it is neither a root of Linckia nor below one; the roots are: {roots}")
        found.append(str(real))
    return tuple(dict.fromkeys(found))


def _roots_in_force(data: str | None, data_dir: Path) -> list[str]:
    """Return the roots of the running kernel, or of the settings if none runs. Raises Usage, ControlError."""
    try:
        with Client(data_dir) as client:
            return list(client.call("kernel_status", {})["roots"])
    except NoKernel:
        pass
    try:
        roots = [str(root) for root in load(Flags(data_dir=data), os.environ).roots]
    except ConfigError as error:
        raise Usage(str(error)) from None
    if not roots:
        raise Usage("--root: no roots are set and no kernel runs; start it first, `linckia serve PATH…`")
    return roots


def expiry(text: str, now: float) -> float:
    """Convert `30d`, `12h`, `4w`, a day (its start, local time) or a time to seconds since 1970. Raises Usage."""
    if (span := seconds(text)) is not None:
        return now + span
    try:
        at = datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise Usage(f"--expires {text}: write a time span (30d, 12h, 4w) or a date (2027-01-31)") from None
    if at <= now:
        raise Usage(f"--expires {text}: this is in the past")
    return at


def _take_up(data_dir: Path, arguments: argparse.Namespace) -> None:
    """Notify the running kernel, if there is one, of the change."""
    try:
        with Client(data_dir) as client:
            done = client.call("kernel_tokens_changed", {"action": arguments.action, "name": arguments.name})
    except NoKernel:
        return
    except ControlError as error:
        raise Failed(f"the change is stored, but the running kernel could not be notified: {error}") from None
    if done["message"] != "in force":
        complain(done["message"])
