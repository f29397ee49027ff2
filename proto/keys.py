"""Idempotency keys: calls with the same key and the same caller have one effect and one answer, for 24 hours.

A client chooses a key for each call that changes something, and repeats the call with it whenever it does not know what
became of the call. The router makes an opaque text of the caller's name and the key (`scoped`). The service that owns
the operation stores the answer together with the effect under that text (`services.runtime.keyed`).
"""

from __future__ import annotations

import hashlib
from typing import Final

from proto.errors import InvalidParams

HEADER: Final = "Idempotency-Key"
"""The HTTP header (draft-ietf-httpapi-idempotency-key-header)."""

MAX_CHARS: Final = 255
KEPT_S: Final = 24 * 3600
"""How long an answer is kept."""

UNUSABLE: Final = "\0"
"""Stands for a key that is no text, or an empty one, until it is refused where the call is made."""

_SCOPED_BYTES = 16


def given(key: object) -> str:
    """Return the key of a request as its origin has it, unchecked."""
    return key if isinstance(key, str) and key else UNUSABLE


def checked(key: object) -> str:
    """Return a client's key. Raises InvalidParams."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_CHARS or not key.isprintable():
        raise InvalidParams(f"the idempotency key must be a text of 1 to {MAX_CHARS} printable characters", field="key")
    return key


def scoped(caller: str, key: str) -> str:
    """Return the text that stands for a caller's key: hexadecimal digits."""
    return hashlib.blake2b(f"{caller}\0{key}".encode("utf-8", "surrogatepass"), digest_size=_SCOPED_BYTES).hexdigest()


def derived(key: str, part: str) -> str:
    """Return the key of a call that is part of a call with this key; "" if that has none."""
    return scoped(key, part) if key else ""
