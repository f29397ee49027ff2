"""Ids of sessions over HTTP, which any front can take up: what the handshake agreed on, signed.

A front that dies, or that another connection of the client does not lead to, is then no matter: the id itself says
which revision the session speaks, what its client can do, and which surface it is of.  It is signed with a key that the
kernel keeps in its data directory and gives to every front, so that only what was given here is taken.  An id is no
credential: who may talk at all is settled before (`services.front.transport.access`).
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

from linckia.services.front.protocol.session import current_key

MAX_CHARACTERS = 768
"""Of an id; a client sends it with each request."""

LIFETIME_S = 30 * 24 * 3600
"""An id that no front knows any more is taken up for so long."""

_MAX_NAME = 48
_KNOWN = ("roots", "sampling", "elicitation", "tasks")


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """What an id says.  `name` is what the session is known by among fronts and to services, and no secret."""

    name: str
    surface: str
    version: str
    issued: int
    # As the client sent them, by MCP.
    capabilities: dict[str, Any] = {}
    client: dict[str, str] = {}
    owner: str = ""
    """Whose session it is: a mark of the client's token, if that is not the kernel's own."""


_read = msgspec.json.Decoder(Claims).decode


class SessionIds:
    """Gives ids and reads them; all fronts have the same `key`."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def give(self, surface: str, version: str, capabilities: Mapping[str, Any], client: Mapping[str, Any]) -> str:
        """An id for a new session.  Of a client that says very much of itself, what is not in the protocol is left
        out, and then all but the names of its capabilities."""
        who = {name: str(client.get(name, ""))[:_MAX_NAME] for name in ("name", "version")}
        known = {name: capabilities[name] for name in _KNOWN if name in capabilities}
        forms: tuple[dict[str, Any], ...] = (dict(capabilities), known, {name: {} for name in known})
        for said in forms:
            claims = Claims(secrets.token_hex(12), surface, version, int(now()), said, who, _owner())
            text = _text(msgspec.json.encode(claims))
            session_id = f"{text}.{self._signature(text)}"
            if len(session_id) <= MAX_CHARACTERS:
                break
            who = {name: value if value.isascii() else "" for name, value in who.items()}
        return session_id

    def read(self, session_id: str, held: Container[str] = ()) -> Claims | None:
        """What an id says; None where it was not given here, or to another token's client, was altered, or is too
        old and none of those that are `held`."""
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
        return claims if is_fresh and claims.owner == _owner() else None

    def _signature(self, text: str) -> str:
        return _text(hashlib.blake2b(text.encode(), key=self._key, digest_size=18, person=b"linckia-session").digest())


def _owner() -> str:
    key = current_key.get()
    return key and hashlib.blake2b(key.encode(), digest_size=9).hexdigest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
