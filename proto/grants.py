"""Grants: what one client may do, the name that it is known by, and how often it may call.

A front determines which token a request has, and sends the client's grant with each call. The kernel enforces it, and
passes it on to calls made while serving that call. Without a grant, a call has the operator's rights: stdio, the
control socket, the kernel's own token.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Annotated

import msgspec
from msgspec import Meta

STDIO, HTTP = "stdio", "http"
"""Names of clients without their own token, by transport."""

MAX_NAME_CHARS = 256
MAX_SURFACES = 16
MAX_ROOTS = 64

_Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
_Path = Annotated[str, Meta(max_length=4096)]


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a client may do. An operation must be on one of the `surfaces` (empty: all), act below one of the `roots`
    (real paths; empty: the kernel's roots), and, if `read_only`, only read. `name` is the token's name, or the subject
    in an issuer's token."""

    name: _Name
    surfaces: Annotated[tuple[_Name, ...], Meta(max_length=MAX_SURFACES)] = ()
    roots: Annotated[tuple[_Path, ...], Meta(max_length=MAX_ROOTS)] = ()
    read_only: bool = False


RATE_PATTERN = r"^([1-9][0-9]{0,8})/(s|min|h)(?: burst ([1-9][0-9]{0,8}))?$"
_WRITTEN = re.compile(RATE_PATTERN)
_PER_MINUTE = {"s": 60.0, "min": 1.0, "h": 1 / 60}

BURST_MINUTES = 1 / 6
"""Default burst, in minutes of the rate: as many calls as in ten seconds."""


class Rate(msgspec.Struct, frozen=True):
    """`per_minute` calls on average, of which `burst` may come at once."""

    per_minute: Annotated[float, Meta(gt=0)]
    burst: Annotated[int, Meta(ge=1)]


@functools.lru_cache
def parse_rate(text: str) -> Rate:
    """Parse `600/min`, `10/s` or `5000/h`, optionally followed by ` burst 50`. Raises ValueError, with the syntax."""
    written = _WRITTEN.fullmatch(text.strip())
    if written is None:
        raise ValueError(f"{text!r} is not a rate; write 600/min, 10/s or 5000/h, or add a burst: 9/s burst 50")
    per_minute = int(written[1]) * _PER_MINUTE[written[2]]
    return Rate(per_minute, int(written[3]) if written[3] else max(1, round(per_minute * BURST_MINUTES)))


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token made by the operator, as stored; times are seconds since 1970."""

    name: str
    sha256: str
    created: float
    expires: float | None = None
    surfaces: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    read_only: bool = False
    rate: Annotated[str, Meta(pattern=RATE_PATTERN)] | None = None
    """How often its client may call (`parse_rate`); None: as in the settings."""

    @property
    def grant(self) -> Grant:
        return Grant(self.name, self.surfaces, self.roots, self.read_only)


class TokenTable(msgspec.Struct, frozen=True):
    """All tokens, and a version number for this set."""

    version: int
    tokens: tuple[Token, ...] = ()


current: ContextVar[Grant | None] = ContextVar("grant", default=None)
"""The grant of the client that this task serves; worker threads that the task waits for inherit it."""


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """Lift the grant for work that a service does for itself while serving a client."""
    before = current.set(None)
    try:
        yield
    finally:
        current.reset(before)


def roots() -> tuple[str, ...]:
    """Return the roots to which the served client is limited; empty if it is not limited."""
    grant = current.get()
    return () if grant is None else grant.roots
