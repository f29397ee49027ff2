"""Grants: what one client may do, by what it is known, and how often it may call.

A front determines which token a request has, and sends the client's grant with each call. The kernel enforces it, and
passes it on to calls made while serving that call. Without a grant, a call has the operator's rights: stdio, the
control socket, the kernel's own token.

People see a client's `name`. Whatever is kept for a client (tasks, timers, answers to idempotency keys) belongs to its
`id`, since a token may get the name of one that was revoked.
"""

from __future__ import annotations

import functools
import hashlib
import re
from contextvars import ContextVar
from typing import Annotated

import msgspec
from msgspec import Meta

STDIO, HTTP = "stdio", "http"
"""Names of clients without their own token, by transport."""

MAX_NAME_CHARS = 256
MAX_ID_CHARS = 64
MAX_SURFACES = 16
MAX_ROOTS = 64

ISSUED = "oauth:"
"""Prefix of names and ids of clients with tokens of an issuer, so that they never equal those of other tokens."""

_TOKEN_ID_CHARS = 16

_Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
_Path = Annotated[str, Meta(max_length=4096)]


class Grant(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a client may do. An operation must be on one of the `surfaces` (empty: all), act below one of the `roots`
    (real paths; empty: the kernel's roots), and, if `read_only`, only read. `name` is the token's name, or the subject
    in an issuer's token; `id` identifies the token, or the issuer and the subject."""

    name: _Name
    surfaces: Annotated[tuple[_Name, ...], Meta(max_length=MAX_SURFACES)] = ()
    roots: Annotated[tuple[_Path, ...], Meta(max_length=MAX_ROOTS)] = ()
    read_only: bool = False
    id: Annotated[str, Meta(max_length=MAX_ID_CHARS)] = ""

    @property
    def owner(self) -> str:
        """What owns the things that are kept for this client; never empty."""
        return self.id or f"name:{self.name}"

    def identity(self) -> str:
        """Return a hash of the owner and all limits: hexadecimal digits."""
        whole = msgspec.msgpack.encode((self.owner, self.surfaces, self.roots, self.read_only))
        return hashlib.blake2b(whole, digest_size=16).hexdigest()

    def includes(self, other: Grant) -> bool:
        """Return whether this grant allows everything that the other one allows."""
        return (
            (not self.surfaces or (bool(other.surfaces) and set(other.surfaces) <= set(self.surfaces)))
            and (not self.roots or (bool(other.roots) and all(map(self._covers, other.roots))))
            and (not self.read_only or other.read_only)
        )

    def _covers(self, path: str) -> bool:
        return any(path == root or path.startswith(f"{root.rstrip('/')}/") for root in self.roots)


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


def token_id(sha256: str) -> str:
    """Return the id of the token with this hash. It is no secret: tokens are random, so it reveals nothing."""
    return sha256[:_TOKEN_ID_CHARS]


def issuer_id(issuer: str, subject: str) -> str:
    """Return the id of the clients whose tokens an issuer made for a subject."""
    return ISSUED + hashlib.blake2b(msgspec.msgpack.encode((issuer, subject)), digest_size=16).hexdigest()


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
        return Grant(self.name, self.surfaces, self.roots, self.read_only, self.id)

    @property
    def id(self) -> str:
        return token_id(self.sha256)


class TokenTable(msgspec.Struct, frozen=True):
    """All tokens, and a version number for this set."""

    version: int
    tokens: tuple[Token, ...] = ()


current: ContextVar[Grant | None] = ContextVar("grant", default=None)
"""The grant of the client that this task serves; worker threads that the task waits for inherit it."""


def roots() -> tuple[str, ...]:
    """Return the roots to which the served client is limited; empty if it is not limited."""
    grant = current.get()
    return () if grant is None else grant.roots
