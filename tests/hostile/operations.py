"""The operations of `hostile`, a compromised service that attacks others on request.

    linckia serve --with tests.hostile

An attack is a function of `tests.hostile.attacks`, by its name; everything else bypasses the service's own loop.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from tests.hostile import front

front.take_over()

hostile = Family("hostile", role=Role.INTERNAL, callers=(OPERATOR,))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attack or a call: the data it obtained, or the refusal it met (`EPERM`, …)."""

    got: Any = None
    refused: str | None = None


# An attack that kills its service is not retried on the next one.
@hostile.write("hostile_attack", idempotent=False, deadline_s=20)
class Attack(Params[Outcome], frozen=True, kw_only=True):
    """Try one attack, and return its result."""

    name: Annotated[str, Meta(description="A function of tests.hostile.attacks")]
    arguments: Annotated[dict[str, Any], Meta(description="Its arguments")] = msgspec.field(default_factory=dict)


@hostile.write("hostile_send", idempotent=False, deadline_s=300)
class Send(Params[Outcome], frozen=True, kw_only=True):
    """Send messages of valid form with nonsensical content."""

    seed: int
    count: int


@hostile.write("hostile_break", idempotent=False, deadline_s=10)
class Break(Params[Outcome], frozen=True, kw_only=True):
    """Break the protocol in a named way."""

    how: str


@hostile.write("hostile_call", idempotent=False, deadline_s=10)
class Invoke(Params[Outcome], frozen=True, kw_only=True):
    """Call an operation of another service."""

    op: str
    params: dict[str, Any]


@hostile.write("hostile_lie", idempotent=False, deadline_s=10)
class Lie(Params[Outcome], frozen=True, kw_only=True):
    """Return an invalid result."""
