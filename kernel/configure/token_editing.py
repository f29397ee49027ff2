"""Creates and revokes the operator's tokens, for the command line and for the operator's page."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from kernel.configure import tokens
from kernel.configure.catalog import ENTRIES
from kernel.configure.config import seconds
from proto.grants import HTTP, MAX_ROOTS, STDIO, Token, parse_rate
from proto.operation import ALL, CLIENT, COMPACT, OPERATOR
from proto.suggestions import nearest

RESERVED: Final = frozenset({STDIO, HTTP, CLIENT, OPERATOR, *(entry.service for entry in ENTRIES), "kernel"})
"""Other names that appear in the audit log."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Unfit(Exception):
    """A token cannot be created or revoked as asked. `field` is the parameter at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def create(
    data_dir: Path,
    *,
    name: str,
    surfaces: Sequence[str] = (),
    roots: Sequence[str] = (),
    read_only: bool = False,
    expires: str | None = None,
    rate: str | None = None,
    known_surfaces: Collection[str],
    known_roots: Callable[[], Collection[str]],
) -> tuple[Token, str]:
    """Store a new token, and return it with its secret. `known_roots` is called if there are `roots`.

    Raises:
        Unfit: a parameter is wrong; nothing was stored.
        tokens.CannotRead, OSError: the file of tokens cannot be read or written.
    """
    if not _NAME.fullmatch(name):
        valid = "use letters, digits, '.', '_' and '-', 64 at most"
        raise Unfit("name", f"{name!r} is not a valid token name: {valid}")
    if name in RESERVED:
        raise Unfit("name", f"the name {name} has another meaning in the audit log; choose another name")
    if rate is not None:
        try:
            parse_rate(rate)
        except ValueError as error:
            raise Unfit("rate", str(error)) from None
    secret = tokens.new()
    made = Token(
        name=name, sha256=tokens.hash_of(secret), created=time.time(),
        surfaces=_surfaces(surfaces, known_surfaces), roots=_roots(roots, known_roots) if roots else (),
        expires=None if expires is None else expiry(expires, time.time()), read_only=read_only, rate=rate,
    )  # fmt: skip
    with tokens.editing(data_dir):
        there = tokens.listed(data_dir)
        if any(each.name == made.name for each in there):
            raise Unfit("name", f"the token {name} already exists; revoke it first, or choose another name")
        tokens.store(data_dir, [*there, made])
    return made, secret


def revoke(data_dir: Path, name: str) -> None:
    """Remove a token from the file. Raises Unfit, tokens.CannotRead, OSError."""
    with tokens.editing(data_dir):
        there = tokens.listed(data_dir)
        if all(each.name != name for each in there):
            known = nearest(name, [each.name for each in there]) if there else "; there are none"
            raise Unfit("name", f"there is no token {name}{known}")
        tokens.store(data_dir, [each for each in there if each.name != name])


def is_expired(each: Token) -> bool:
    return each.expires is not None and each.expires <= time.time()


def expiry(text: str, now: float) -> float:
    """Convert `30d`, `12h`, `4w`, a day (its start, local time) or a time to seconds since 1970. Raises Unfit."""
    if (span := seconds(text)) is not None:
        return now + span
    try:
        at = datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise Unfit("expires", f"{text}: write a time span (30d, 12h, 4w) or a date (2027-01-31)") from None
    if at <= now:
        raise Unfit("expires", f"{text}: this is in the past")
    return at


def _surfaces(given: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    for name in given:
        if name not in known:
            raise Unfit("surface", f"there is no surface {name!r}{nearest(name, known)}")
    if ALL in given:
        return ()
    if set(given) == {COMPACT}:
        raise Unfit(
            "surface",
            f"{COMPACT} gives access to operations of other surfaces, but none is named; add some, such as documents, "
            f"or use {ALL}",
        )
    return tuple(dict.fromkeys(given))


def _roots(given: Sequence[str], known_roots: Callable[[], Collection[str]]) -> tuple[str, ...]:
    if len(given) > MAX_ROOTS:
        raise Unfit("root", f"{len(given)} of them; a token has at most {MAX_ROOTS}")
    known = known_roots()
    found = []
    for path in given:
        try:
            real = Path(path).expanduser().resolve(strict=True)
        except OSError as error:
            raise Unfit("root", f"{path}: {error.strerror}") from None
        if not real.is_dir():
            raise Unfit("root", f"{path}: it is not a folder")
        if not any(real.is_relative_to(root) for root in known):
            roots = ", ".join(known)
            raise Unfit("root", f"{path}: it is neither a root of Linckia nor below one; the roots are: {roots}")
        found.append(str(real))
    return tuple(dict.fromkeys(found))
