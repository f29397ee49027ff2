"""Mandates: calls that clients asked to have made later, sealed together with the clients' grants.

The outcomes of a plan run when no client is waiting. The service that stores the plan also stores a mandate for each
call. The kernel makes only calls that it sealed, as the client that asked for them. Since the key stays in the kernel,
a compromised service can neither forge a mandate nor widen one. A mandate outlives both processes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from proto.errors import Forbidden
from proto.grants import ISSUED, Grant, Token
from proto.later import NOT_VALID, LaterCall
from proto.operation import Params
from proto.wire import frames

KEY_FILE = "mandates.key"
"""File in the data directory, accessible only to the kernel's user."""

_MAC_BYTES = hashlib.sha256().digest_size


class Mandate(msgspec.Struct, frozen=True, array_like=True):
    """One call, what it is part of (`source`, "plan NAME"), and the client on whose behalf it is made.

    `token` is the hash of the operator-made token that the client used; empty if it had none.
    """

    source: str
    who: str
    grant: Grant | None
    token: str
    call: LaterCall
    session: str = ""
    """The client's session, so that the call counts as one of it."""


_read: Callable[[bytes], Mandate] = frames.reader(Mandate)


class Mandates:
    """Seals and opens mandates.

    Args:
        key: secret key, which stays the same across restarts.
        token_of: returns the operator-made token that has the given grant, if there is one.
    """

    def __init__(self, key: bytes, token_of: Callable[[Grant], Token | None]) -> None:
        self._key = key
        self._token_of = token_of

    def seal(
        self, asked: Params[Any], wanted: Iterable[LaterCall], who: str, grant: Grant | None, session: str = ""
    ) -> list[str]:
        """Return a mandate for each of the `wanted` calls, which client `who` requests with `asked` in a session.

        Raises:
            Forbidden: the client did not request one of them, or its token was revoked meanwhile.
        """
        token = None if grant is None else self._token_of(grant)
        if token is None and grant is not None and grant.id and not grant.id.startswith(ISSUED):
            raise Forbidden(f"the token {grant.name} is not valid now")
        digest = "" if token is None else token.sha256
        # The client's own parameters are sealed, not what the service says they were.
        calls = {frames.encode(call): call for call in asked.later_calls()}
        sealed = []
        for each in wanted:
            if (call := calls.get(frames.encode(each))) is None:
                raise Forbidden(f"{each.operation} may not be called later: the client did not ask for that call")
            body = frames.encode(Mandate(asked.later_source(), who, grant, digest, call, session))
            sealed.append(base64.b64encode(self._mac(body) + body).decode())
        return sealed

    def opened(self, sealed: str) -> Mandate:
        """Return a mandate that this kernel, or a previous one, has sealed.

        Raises:
            Forbidden: the seal is wrong, or the client's token is no longer valid.
        """
        try:
            found = base64.b64decode(sealed, validate=True)
        except ValueError:
            found = b""
        mac, body = found[:_MAC_BYTES], found[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            raise Forbidden("no client asked for this call here; have the client ask for it again")
        mandate = _read(body)
        if mandate.token and mandate.grant is not None:
            token = self._token_of(mandate.grant)
            expired = token is not None and token.expires is not None and token.expires <= time.time()
            if token is None or token.sha256 != mandate.token or expired:
                what = f"the token {mandate.grant.name}, whose client made {mandate.source}, is not valid now"
                raise Forbidden(what, field=NOT_VALID)
        return mandate

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")
