"""Operations of the test service, which can be made to misbehave in every way that the supervisor must survive."""

from __future__ import annotations

import msgspec

from proto.operation import Access, Params, operation


class Said(msgspec.Struct, frozen=True):
    """What the service said."""

    text: str


@operation("trial_echo", service="trial", access=Access.READ, idempotent=True, deadline_s=10)
class Echo(Params[Said], frozen=True, kw_only=True):
    """Say it again."""

    text: str


@operation("trial_misbehave", service="trial", access=Access.WRITE, idempotent=False, deadline_s=10)
class Misbehave(Params[Said], frozen=True, kw_only=True):
    """Do something bad: `spin` (hold the interpreter), `deaf`, `leak`, `exit`, `segfault`, `spawn`, `daemon`;
    or let `threads` work at once, which is not.

    `amount` is MiB for `leak`, the code for `exit`, a number of `threads`.
    """

    how: str
    amount: int = 0
