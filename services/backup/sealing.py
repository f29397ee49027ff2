"""The key of encrypted backups, and what is done with it.

Contents are encrypted with AES-256-GCM of `cryptography`, which is installed anyway for tokens of OAuth issuers. The
name of an object is authenticated with its content, so that no object passes for another. A chunk is named by a keyed
hash of its SHA-256: without the key, nobody can tell whether a known file is in the backup.

A passphrase does not replace the key: it encrypts a copy of the key that is kept with the backup.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proto.backup import Access, BackupFailed
from proto.host.durable import sync_folder
from services.backup.places import Damaged

KEY_FILE: Final = "backup.key"
"""File in the data directory."""

PASSPHRASE: Final = "LINCKIA_BACKUP_PASSPHRASE"
"""Environment variable."""

_VERSION: Final = b"\1"
_NONCE_BYTES, _SALT_BYTES, KEY_BYTES = 12, 16, 32
_TEXT: Final = re.compile(r"linckia-backup-([0-9a-f]{64})-([0-9a-f]{8})")
_SCRYPT: Final = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 128 << 20}
MIN_PASSPHRASE: Final = 12


class WrongKey(BackupFailed):
    """The key does not belong to the backup."""


class Key:
    """The key of a data directory's backups; its text is never part of an error."""

    def __init__(self, master: bytes) -> None:
        self._master = master
        self._names = _derived(master, b"names")
        self._cipher = AESGCM(_derived(master, b"contents"))
        self.id = _derived(master, b"id").hex()[:32]
        """Tells keys apart, and reveals nothing of them."""

    @property
    def text(self) -> str:
        """The key, as users keep it."""
        return f"linckia-backup-{self._master.hex()}-{_check(self._master)}"

    def name_of(self, sha256: str) -> str:
        """Return the name of the object with a chunk."""
        return hashlib.blake2b(bytes.fromhex(sha256), key=self._names, digest_size=32).hexdigest()

    def seal(self, name: str, content: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, content, _VERSION + name.encode())

    def unseal(self, name: str, content: bytes) -> bytes:
        """Return what was sealed under this name. Raises Damaged."""
        version, nonce, sealed = content[:1], content[1 : 1 + _NONCE_BYTES], content[1 + _NONCE_BYTES :]
        if version > _VERSION:
            raise Damaged(f"{name} is damaged, or was made by a newer version of Linckia")
        try:
            return self._cipher.decrypt(nonce, sealed, version + name.encode())
        except (InvalidTag, ValueError):
            raise Damaged(f"{name} is damaged: it is not what was stored under this name") from None

    def wrapped(self, passphrase: str) -> bytes:
        """Return the key, encrypted with a passphrase."""
        salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
        sealed = AESGCM(_stretched(passphrase, salt)).encrypt(nonce, self._master, _VERSION + self.id.encode())
        return _VERSION + salt + nonce + sealed


def unwrapped(content: bytes, key_id: str, passphrase: str) -> Key | None:
    """Return the key that a passphrase encrypts, or None if it does not."""
    salt, nonce, sealed = content[1:17], content[17:29], content[29:]
    try:
        return Key(AESGCM(_stretched(passphrase, salt)).decrypt(nonce, sealed, _VERSION + key_id.encode()))
    except (InvalidTag, ValueError):
        return None


def _derived(master: bytes, purpose: bytes) -> bytes:
    return hmac.digest(master, b"linckia backup 1 " + purpose, "sha256")


def _stretched(passphrase: str, salt: bytes) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=salt, dklen=KEY_BYTES, **_SCRYPT)


def _check(master: bytes) -> str:
    return hashlib.sha256(master).hexdigest()[:8]


def key_in(path: Path) -> Key:
    """Read a key from a file. Raises BackupFailed."""
    try:
        with path.open("rb") as file:
            text = file.read(4096).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BackupFailed(f"cannot read the key of backups in {path}: {error}") from None
    found = _TEXT.fullmatch(text.strip())
    if found is None or _check(bytes.fromhex(found[1])) != found[2]:
        raise BackupFailed(f"{path} does not contain a key of backups as `linckia backup --key` prints it")
    return Key(bytes.fromhex(found[1]))


def own_key(data_dir: Path) -> Key:
    """Return the key of a data directory, which is made if there is none. Raises BackupFailed or OSError."""
    path = data_dir / KEY_FILE
    if not path.exists():
        made = data_dir / f"{KEY_FILE}.{secrets.token_hex(4)}.new"
        try:
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(f"{Key(secrets.token_bytes(KEY_BYTES)).text}\n")
                file.flush()
                os.fsync(file.fileno())
            # Another process may have made one meanwhile, which stays.
            if not path.exists():
                os.link(made, path)
        except FileExistsError:
            pass
        finally:
            made.unlink(missing_ok=True)
        sync_folder(data_dir)
    return key_in(path)


def passphrase_of(access: Access) -> str:
    """Return the passphrase in the file that is named, or in the environment; "" if there is none. Raises
    BackupFailed."""
    text = os.environ.get(PASSPHRASE, "")
    if access.passphrase_file is not None:
        try:
            text = access.passphrase_file.read_text("utf-8").partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise BackupFailed(f"cannot read the passphrase in {access.passphrase_file}: {error}") from None
        if not text:
            raise BackupFailed(f"there is no passphrase in {access.passphrase_file}")
    if text and len(text) < MIN_PASSPHRASE:
        raise BackupFailed(f"the passphrase of the backup is shorter than {MIN_PASSPHRASE} characters")
    return text
