"""Grants: what one client may do, the name that it is known by, and how often it may call.

A front finds out whose token a request has, and names the client's grant with each call; the kernel holds every call to
it, and passes it on to the calls that are made while serving that one.  No grant at all is the operator's own: stdio,
the control socket, the kernel's own token.
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
"""Names of clients without a token of their own, by where they come from."""

MAX_NAME_CHARS = 256
MAX_SURFACES = 16
MAX_ROOTS = 64

_Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
_Path = Annotated[str, Meta(max_length=4096)]


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a client may do: an operation must be on one of the `surfaces` (all, where there are none), below one of
    the `roots` (real paths; the kernel's, where there are none), and with `read_only` must only read.  `name` is the
    token's, or the subject that an issuer of tokens names."""

    name: _Name
    surfaces: Annotated[tuple[_Name, ...], Meta(max_length=MAX_SURFACES)] = ()
    roots: Annotated[tuple[_Path, ...], Meta(max_length=MAX_ROOTS)] = ()
    read_only: bool = False


RATE_PATTERN = r"^([1-9][0-9]{0,8})/(s|min|h)(?: burst ([1-9][0-9]{0,8}))?$"
_WRITTEN = re.compile(RATE_PATTERN)
_PER_MINUTE = {"s": 60.0, "min": 1.0, "h": 1 / 60}

BURST_MINUTES = 1 / 6
"""What may come at once, where that is not said: as much as in ten seconds."""


class Rate(msgspec.Struct, frozen=True):
    """`per_minute` calls in the long run, of which `burst` may come at once."""

    per_minute: Annotated[float, Meta(gt=0)]
    burst: Annotated[int, Meta(ge=1)]


@functools.lru_cache
def parse_rate(text: str) -> Rate:
    """`600/min`, `10/s`, `5000/h`, each with ` burst 50` or not.  Raises ValueError: says how to write it."""
    written = _WRITTEN.fullmatch(text.strip())
    if written is None:
        raise ValueError(f"{text!r} is no rate; write 600/min, 10/s or 5000/h, and what may come at once: 9/s burst 50")
    per_minute = int(written[1]) * _PER_MINUTE[written[2]]
    return Rate(per_minute, int(written[3]) if written[3] else max(1, round(per_minute * BURST_MINUTES)))


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token that the operator has made, as it is kept; times are seconds since 1970."""

    name: str
    sha256: str
    created: float
    expires: float | None = None
    surfaces: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    read_only: bool = False
    rate: Annotated[str, Meta(pattern=RATE_PATTERN)] | None = None
    """How often its client may call (`parse_rate`); None: as the settings say."""

    @property
    def grant(self) -> Grant:
        return Grant(self.name, self.surfaces, self.roots, self.read_only)


class TokenTable(msgspec.Struct, frozen=True):
    """All of them, and a number that tells these from others."""

    version: int
    tokens: tuple[Token, ...] = ()


current: ContextVar[Grant | None] = ContextVar("grant", default=None)
"""Of the client that this task serves; threads that it waits for inherit it."""


@contextlib.contextmanager
def lifted() -> Iterator[None]:
    """For what a service does for itself while it serves a client."""
    before = current.set(None)
    try:
        yield
    finally:
        current.reset(before)


def roots() -> tuple[str, ...]:
    """Those that the client which is served is limited to; empty where it is not."""
    grant = current.get()
    return () if grant is None else grant.roots
