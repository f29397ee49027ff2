"""Ids of HTTP sessions: the result of the handshake, signed, so that any front can serve the session.

The id itself holds the revision, the client's capabilities and the surface, so a session does not depend on the front
that opened it.  Ids are signed with a key that the kernel stores in its data directory and gives to every front, so
forged ids are rejected.  An id is not a credential: access is checked before (`services.front.transport.access`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Container, Mapping
from time import time as now
from typing import Any

import msgspec

MAX_CHARACTERS = 768
"""Longest id; clients send it with each request."""

LIFETIME_S = 30 * 24 * 3600
"""How long an id is valid after its issue, if no front holds the session any more."""

_MAX_NAME = 48
_KNOWN = ("roots", "sampling", "elicitation", "tasks")


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """The content of an id.  `name` is the session's name among fronts and services; it is not a secret."""

    name: str
    surface: str
    version: str
    issued: int
    # As the client sent them, unchecked.
    capabilities: dict[str, Any] = {}
    client: dict[str, str] = {}
    owner: str = ""
    """Hash of the key of the client's token; empty for the kernel's own token."""


_read = msgspec.json.Decoder(Claims).decode


class SessionIds:
    """Issues and verifies ids; all fronts use the same `key`."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(
        self, surface: str, version: str, capabilities: Mapping[str, Any], client: Mapping[str, Any], token_key: str
    ) -> str:
        """Issue an id for a new session of the client with this token.

        If the capabilities are too long, those not in the protocol are dropped, then all but the names.
        """
        who = {name: str(client.get(name, ""))[:_MAX_NAME] for name in ("name", "version")}
        known = {name: capabilities[name] for name in _KNOWN if name in capabilities}
        forms: tuple[dict[str, Any], ...] = (dict(capabilities), known, {name: {} for name in known})
        for shortened in forms:
            claims = Claims(secrets.token_hex(12), surface, version, int(now()), shortened, who, _owner(token_key))
            text = _text(msgspec.json.encode(claims))
            session_id = f"{text}.{self._signature(text)}"
            if len(session_id) <= MAX_CHARACTERS:
                break
            who = {name: value if value.isascii() else "" for name, value in who.items()}
        return session_id

    def verify(self, session_id: str, token_key: str, held: Container[str] = ()) -> Claims | None:
        """Return the claims of an id; None if it is forged, belongs to another client's token, or has expired.

        Sessions whose names are in `held` do not expire.
        """
        text, _, signature = session_id.partition(".")
        if len(session_id) > MAX_CHARACTERS or not session_id.isascii():
            return None
        if not hmac.compare_digest(signature, self._signature(text)):
            return None
        try:
            claims = _read(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (binascii.Error, msgspec.DecodeError):
            return None
        is_fresh = now() - claims.issued < LIFETIME_S or claims.name in held
        return claims if is_fresh and claims.owner == _owner(token_key) else None

    def _signature(self, text: str) -> str:
        return _text(hashlib.blake2b(text.encode(), key=self._key, digest_size=18, person=b"linckia-session").digest())


def _owner(key: str) -> str:
    return key and hashlib.blake2b(key.encode(), digest_size=9).hexdigest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
