"""The operation of `fetch` that the front calls."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import Family, Params, Role

internal = Family("fetch", role=Role.INTERNAL)


class IssuerKeySet(msgspec.Struct, frozen=True):
    """The public keys of an issuer of tokens, each a JSON Web Key (RFC 7517)."""

    keys: Annotated[list[dict[str, Any]], Meta(max_length=100)]


@internal.read("issuer_keys", deadline_s=30, callers=("front",))
class IssuerKeys(Params[IssuerKeySet], frozen=True, kw_only=True):
    """Read the keys of the one issuer in the settings (`[http.oauth]`). There are no parameters, so the caller cannot
    choose the address."""
