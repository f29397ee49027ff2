"""Operations of `hostile`: a service that was taken over, and does what it is told against the others.

    linckia serve --with tests.hostile

An attack is a function of `tests.hostile.attacks`, by its name.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import Access, Params, operation

SERVICE = "hostile"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an attack went: what it got, or which refusal it met (`EPERM`, …)."""

    got: Any = None
    refused: str | None = None


# One that its service dies of is not tried on the next one.
@operation("hostile_attack", service=SERVICE, access=Access.WRITE, idempotent=False, deadline_s=20)
class Attack(Params[Outcome], frozen=True, kw_only=True):
    """Try one attack, and answer how it went."""

    name: Annotated[str, Meta(description="A function of tests.hostile.attacks")]
    arguments: Annotated[dict[str, Any], Meta(description="Its arguments")] = msgspec.field(default_factory=dict)
