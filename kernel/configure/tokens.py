"""Tokens for HTTP: the kernel's own, and those that the operator makes, in the data directory.

The kernel's own token is made at the first start and stored in clear text: the command line reads it and shows it only
to the operator. Other tokens are stored only as SHA-256 hashes. A token has 256 random bits, so its hash cannot be
reversed by guessing; a slow hash, as for passwords, would only slow down each request. Both files are accessible only
to their owner (0600), and are replaced atomically.
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

from proto.grants import Grant, Token, TokenTable
from proto.host.durable import replace_file
from proto.wire.front import MIN_TOKEN_CHARACTERS

TOKEN_BYTES = 32

PREFIX = "linckia_"
"""Prefix by which secret scanners can recognize tokens."""

POLL_S = 600.0
"""How long a front waits for changes before it asks again."""

APPLY_S = 5.0
"""Time allowed for fronts to apply a change. A front that is killed meanwhile starts with it."""


class CannotRead(Exception):
    """A token file is damaged or unreadable; the message names it and the remedy."""


def own_path(data_dir: Path) -> Path:
    return data_dir / "token"


def path(data_dir: Path) -> Path:
    """Return the file with the operator's tokens."""
    return data_dir / "tokens.json"


def new() -> str:
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    """Return the token as it is stored: SHA-256, in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def own(data_dir: Path) -> str:
    """Return the kernel's own token, making it if needed. The caller must hold the data directory. Raises
    CannotRead."""
    file = own_path(data_dir)
    try:
        if not file.exists():
            replace_file(file, f"{new()}\n".encode())
        file.chmod(0o600)
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRead(f"cannot read the token in {file}: {error}; remove it, and a new one is made") from error
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise CannotRead(f"{file} has fewer than {MIN_TOKEN_CHARACTERS} characters; remove it, and a new one is made")
    return token


def listed(data_dir: Path) -> list[Token]:
    """Return the operator's tokens. Raises CannotRead."""
    file = path(data_dir)
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Token])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CannotRead(f"cannot read the tokens in {file}: {error}; remove it, and make them again") from error


@contextlib.contextmanager
def editing(data_dir: Path) -> Iterator[None]:
    """Keep other commands from editing the tokens meanwhile. Raises OSError."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def store(data_dir: Path, tokens: Iterable[Token]) -> None:
    """Replace the operator's tokens. The caller must hold `editing`. Raises OSError."""
    encoded = msgspec.json.format(msgspec.json.encode(sorted(tokens, key=lambda token: token.name)))
    # A power failure must not undo a revocation that was reported as done.
    replace_file(path(data_dir), encoded + b"\n")


class LiveTokens:
    """The operator's tokens as the fronts know them. Each front waits here for changes, so they take effect at once.

    Raises CannotRead.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._now = TokenTable(1, tuple(listed(data_dir)))
        self._known: dict[str, int] = {}
        self._changed, self._applied = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()

    def of(self, grant: Grant) -> Token | None:
        """Return the token that has this grant, if there is one. Grants of earlier versions have only its name."""
        return next(
            (token for token in self._now.tokens if token.name == grant.name and grant.id in ("", token.id)), None
        )

    async def after(self, version: int, front: str) -> TokenTable:
        """Return the tokens once they differ from `version`, which this front knows, or after a while anyway."""
        self._known[front] = version
        self._applied.unpark_all()
        if version == self._now.version:
            with trio.move_on_after(POLL_S):
                await self._changed.park()
        return self._now

    async def reload(self) -> bool:
        """Reload the file; return whether every front has applied it. Raises CannotRead."""
        tokens = await trio.to_thread.run_sync(listed, self._data_dir)
        now = self._now = TokenTable(self._now.version + 1, tuple(tokens))
        self._changed.unpark_all()
        with trio.move_on_after(APPLY_S):
            # A front that was killed reports with its next generation.
            while any(known < now.version for known in self._known.values()):
                await self._applied.park()
            return True
        return False
