"""Mandates: calls that clients asked to have made later, sealed together with the clients' grants.

A plan's outcomes run when no client waits for them.  The service that keeps the plan keeps a mandate for each call as
well, and the kernel makes only the call that it sealed, as the client who asked for it: the key stays in the kernel, so
a service that was taken over can neither make a mandate up nor widen one, and a mandate outlives both processes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from linckia.proto import frames
from linckia.proto.errors import Forbidden
from linckia.proto.grants import Grant, Token
from linckia.proto.later import LaterCall
from linckia.proto.operation import Params

KEY_FILE = "mandates.key"
"""In the data directory, for the kernel's user alone."""

_MAC_BYTES = hashlib.sha256().digest_size


class Mandate(msgspec.Struct, frozen=True, array_like=True):
    """One call, what it is part of (`source`, "plan NAME"), and the client it is made for.

    `token` is the hash of the operator's token that the client had; empty where it had none.
    """

    source: str
    who: str
    grant: Grant | None
    token: str
    call: LaterCall


_read: Callable[[bytes], Mandate] = frames.reader(Mandate)


class Mandates:
    """Seals mandates and opens them.

    Args:
        key: secret, and the same after a restart.
        token_of: the operator's token of that name, if there is one.
    """

    def __init__(self, key: bytes, token_of: Callable[[str], Token | None]) -> None:
        self._key = key
        self._token_of = token_of

    def seal(self, asked: Params[Any], wanted: Iterable[LaterCall], who: str, grant: Grant | None) -> list[str]:
        """A mandate for each of the `wanted` calls, which the client `who` asks for with `asked`.

        Raises:
            Forbidden: the client does not ask for one of them.
        """
        token = None if grant is None else self._token_of(grant.name)
        digest = "" if token is None else token.sha256
        # What the client sent is sealed, not what the service says it was.
        calls = {frames.encode(call): call for call in asked.later_calls()}
        sealed = []
        for each in wanted:
            if (call := calls.get(frames.encode(each))) is None:
                raise Forbidden(f"{each.operation} may not be called later: the client did not ask for that call")
            body = frames.encode(Mandate(asked.later_source(), who, grant, digest, call))
            sealed.append(base64.b64encode(self._mac(body) + body).decode())
        return sealed

    def opened(self, sealed: str) -> Mandate:
        """A mandate that this kernel, or one before it, has sealed.

        Raises:
            Forbidden: it is no such mandate, or its client's token is no longer valid.
        """
        try:
            found = base64.b64decode(sealed, validate=True)
        except ValueError:
            found = b""
        mac, body = found[:_MAC_BYTES], found[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            raise Forbidden("the call is not one that a client asked for here; have the client ask for it again")
        mandate = _read(body)
        if mandate.token and mandate.grant is not None:
            token = self._token_of(mandate.grant.name)
            expired = token is not None and token.expires is not None and token.expires <= time.time()
            if token is None or token.sha256 != mandate.token or expired:
                raise Forbidden(f"the token {mandate.grant.name}, whose client made {mandate.source}, is not valid now")
        return mandate

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")
