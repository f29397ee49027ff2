"""What the hostile service can be told to do."""

from __future__ import annotations

from typing import Any

import msgspec

from proto.operation import OPERATOR, Family, Params, Role

hostile = Family("hostile", role=Role.INTERNAL, callers=(OPERATOR,))


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages were sent, or what came of a call."""

    n: int = 0
    failure: str = ""


@hostile.write("hostile_send", idempotent=False, deadline_s=300)
class Send(Params[Sent], frozen=True, kw_only=True):
    """Send so many messages that may be sent, whatever nonsense is in them."""

    seed: int
    count: int


@hostile.write("hostile_break", idempotent=False, deadline_s=10)
class Break(Params[Sent], frozen=True, kw_only=True):
    """Break the protocol in a way that has a name."""

    how: str


@hostile.write("hostile_call", idempotent=False, deadline_s=10)
class Invoke(Params[Sent], frozen=True, kw_only=True):
    """Call an operation of another service."""

    op: str
    params: dict[str, Any]


@hostile.write("hostile_lie", idempotent=False, deadline_s=10)
class Lie(Params[Sent], frozen=True, kw_only=True):
    """Answer what is no result."""
