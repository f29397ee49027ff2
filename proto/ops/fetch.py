"""The operations of `fetch` that the front and the kernel call."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role

internal = Family("fetch", role=Role.INTERNAL)


class IssuerKeySet(msgspec.Struct, frozen=True):
    """The public keys of an issuer of tokens, each a JSON Web Key (RFC 7517)."""

    keys: Annotated[list[dict[str, Any]], Meta(max_length=100)]


@internal.read("issuer_keys", deadline_s=30, callers=("front",))
class IssuerKeys(Params[IssuerKeySet], frozen=True, kw_only=True):
    """Read the keys of the one issuer in the settings (`[http.oauth]`). There are no parameters, so the caller cannot
    choose the address."""


# Declared as a read: a write would get an audit line, for each attempt.
@internal.read("alert_post", deadline_s=60, idempotent=False, callers=(OPERATOR,))
class AlertPost(Params[None], frozen=True, kw_only=True):
    """Send an alert to the operator's webhook. Fails unless the answer has a status of success."""

    hook: Annotated[str, Meta(max_length=4096, description="URL; not shown anywhere, as its path may be a secret")]
    body: Annotated[bytes, Meta(max_length=65_536, description="JSON")]
