"""Operations of `mounts`, the registry of what mounted MCP servers offer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.mounts import PREFIX, REGISTRY, Flag, MountName, MountNames, Offered, Taken, Wanted
from proto.operation import OPERATOR, Family, Params, Role
from proto.wire.front import SERVICE as FRONT


class _Adapters(Collection[str]):
    """The services of mounts, whatever mounts there are."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(PREFIX)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class MountsStored(msgspec.Struct, frozen=True, kw_only=True):
    """Which lists the definitions changed: `tools`, `resources`, `prompts`."""

    changed: list[str] = []


adapters = Family(REGISTRY, role=Role.INTERNAL, callers=_Adapters())
operator = Family(REGISTRY, role=Role.INTERNAL, callers=(OPERATOR,))


@adapters.write("mounts_put", idempotent=True, deadline_s=30)
class MountsPut(Params[MountsStored], frozen=True, kw_only=True):
    """Store what the calling mount's server offers now."""

    mount: MountName
    pin: bool = False
    definitions: Annotated[bytes, Meta(description="`proto.mounts.Definitions` as JSON")]


@Family(REGISTRY, role=Role.INTERNAL, callers=(FRONT, OPERATOR)).read("mounts_offered", deadline_s=30)
class MountsOffered(Params[Offered], frozen=True, kw_only=True):
    """Return what clients may see of a mount."""

    mount: MountName


@Family(REGISTRY, role=Role.INTERNAL, callers=(FRONT,)).write("mounts_name", idempotent=True, deadline_s=30)
class MountsName(Params[MountNames], frozen=True, kw_only=True):
    """Give the tools and prompts of all mounts names beside Linckia's own. A name belongs to whoever had it first; if
    nobody had it, to the first in `wanted`."""

    wanted: list[Wanted] = []
    released: list[Taken] = []
    """Names that nobody keeps any more."""


class MountDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that changed. `before` and `after` are indented JSON; empty if it was added or removed."""

    what: str
    """Such as `tool create_issue`."""
    before: str = ""
    after: str = ""


class MountDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between the approved definitions and the latest ones."""

    changes: list[MountDifference] = []
    flags: list[Flag] = []


@operator.read("mounts_diff", deadline_s=30)
class MountsDiff(Params[MountDifferences], frozen=True, kw_only=True):
    """Compare what a mount's server offers now with what was approved, or first seen."""

    mount: MountName


@operator.write("mounts_approve", idempotent=True, deadline_s=30)
class MountsApprove(Params[MountsStored], frozen=True, kw_only=True):
    """Approve what a mount's server offers now."""

    mount: MountName


@operator.destroy("mounts_forget", idempotent=True, deadline_s=30)
class MountsForget(Params[None], frozen=True, kw_only=True):
    """Delete the definitions of a mount that was removed."""

    mount: MountName
