"""Tokens for HTTP: the kernel's own, and those that the operator makes, in the data directory.

The kernel's own is made at the first start and kept as it is: the command line reads it, and shows it to the operator
alone.  Of the others only SHA-256 hashes are kept: a token is 256 random bits, which no guesses at a hash find, so a
slow hash, as passwords need one, would only make each request slow.  Both files are for their owner alone (0600), and
are replaced whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import trio

from linckia.proto.durable import replace_file
from linckia.proto.front import MIN_TOKEN_CHARACTERS
from linckia.proto.grants import Token, TokenTable

TOKEN_BYTES = 32

PREFIX = "linckia_"
"""What a scanner for secrets in files can look for."""

POLL_S = 25.0
"""How long a front waits for news before it asks again."""

TAKE_UP_S = 5.0
"""For the fronts to take up a change; one that is killed meanwhile starts with it."""


class CannotRead(Exception):
    """A file of tokens is not as it should be; the message names it and the remedy."""


def own_path(data_dir: Path) -> Path:
    return data_dir / "token"


def path(data_dir: Path) -> Path:
    """Of the tokens that the operator has made."""
    return data_dir / "tokens.json"


def new() -> str:
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    """As it is kept: SHA-256, in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def own(data_dir: Path) -> str:
    """The kernel's own token, made if there is none.  The caller holds the data directory.  Raises CannotRead."""
    file = own_path(data_dir)
    try:
        if not file.exists():
            replace_file(file, f"{new()}\n".encode())
        file.chmod(0o600)
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRead(f"cannot read the token in {file}: {error}; remove it, and another is made") from error
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise CannotRead(f"{file} holds fewer than {MIN_TOKEN_CHARACTERS} characters; remove it, and another is made")
    return token


def listed(data_dir: Path) -> list[Token]:
    """The operator's tokens.  Raises CannotRead."""
    file = path(data_dir)
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Token])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CannotRead(f"cannot read the tokens in {file}: {error}; remove it, and make them again") from error


@contextlib.contextmanager
def editing(data_dir: Path) -> Iterator[None]:
    """Keep other commands from editing the tokens.  Raises OSError."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def store(data_dir: Path, tokens: Iterable[Token]) -> None:
    """Replace the operator's tokens; the caller is `editing`.  Raises OSError."""
    encoded = msgspec.json.format(msgspec.json.encode(sorted(tokens, key=lambda token: token.name)))
    # A revocation that is told must not be undone by a power cut.
    replace_file(path(data_dir), encoded + b"\n")


class Announced:
    """The operator's tokens as the fronts know them: each waits here for news, so a change is in force at once.

    Raises CannotRead.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._now = TokenTable(1, tuple(listed(data_dir)))
        self._known: dict[str, int] = {}
        self._changed, self._taken_up = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()

    def named(self, name: str) -> Token | None:
        """The token of that name, if there is one."""
        return next((token for token in self._now.tokens if token.name == name), None)

    async def after(self, version: int, front: str) -> TokenTable:
        """The tokens once they are others than those of `version`, which this front knows; after a while anyway."""
        self._known[front] = version
        self._taken_up.unpark_all()
        if version == self._now.version:
            with trio.move_on_after(POLL_S):
                await self._changed.park()
        return self._now

    async def read_again(self) -> bool:
        """Take up what the file holds by now; whether every front has done so, too.  Raises CannotRead."""
        tokens = await trio.to_thread.run_sync(listed, self._data_dir)
        now = self._now = TokenTable(self._now.version + 1, tuple(tokens))
        self._changed.unpark_all()
        with trio.move_on_after(TAKE_UP_S):
            # One that was killed says so with its next generation.
            while any(known < now.version for known in self._known.values()):
                await self._taken_up.park()
            return True
        return False
