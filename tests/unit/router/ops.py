"""Operations of a service that exists only in these tests."""

from __future__ import annotations

import msgspec

from proto.operation import Access, Params, operation


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text, and who heard it."""

    text: str
    generation: int
    caller: str
    grant: str = ""


@operation(
    "test.say", service="speaker", access=Access.READ, idempotent=True, deadline_s=10, callers=("client", "relay")
)
class Say(Params[Said], frozen=True, kw_only=True):
    """Say it back."""

    text: str


@operation("test.write", service="speaker", access=Access.WRITE, idempotent=False, deadline_s=10)
class Write(Params[Said], frozen=True, kw_only=True):
    """Something that must not be done twice."""

    text: str


@operation("test.relay", service="relay", access=Access.READ, idempotent=True, deadline_s=10)
class Relay(Params[Said], frozen=True, kw_only=True):
    """Have the speaker say it."""

    text: str


@operation("test.secret", service="speaker", access=Access.READ, idempotent=True, deadline_s=10, callers=("relay",))
class Secret(Params[Said], frozen=True, kw_only=True):
    """Callable by the relay alone."""

    text: str


@operation(
    "test.put", service="speaker", access=Access.WRITE, idempotent=True, deadline_s=10, once_with=("if_match",),
    callers=("client", "relay"),
)  # fmt: skip
class Put(Params[Said], frozen=True, kw_only=True):
    """Safe to repeat, unless it names the state that it was meant for."""

    text: str
    if_match: str | None = None


@operation("test.frail", service="frail", access=Access.READ, idempotent=True, deadline_s=10)
class Frail(Params[Said], frozen=True, kw_only=True):
    """An operation of a service that may fail for good."""

    text: str
