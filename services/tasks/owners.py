"""Whose tasks and timers a client sees.

They belong to a client's id, not to its name: a token may get the name of one that was revoked. With narrower limits
than those under which a call was made, its result stays hidden even from the same client.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import msgspec

from proto.grants import Grant
from services.runtime.handlers import Context


class Owner(NamedTuple):
    """A client to whom tasks and timers belong; all clients without a token are the user of this machine, "".

    `limits` is its grant as JSON, without the name and the id.
    """

    id: str = ""
    name: str = ""
    limits: str = ""

    def may_see(self, limits: str) -> bool:
        """Return whether this client may do everything that calls made under these limits may do."""
        if not self.limits or self.limits == limits:
            return True
        return bool(limits) and _grant(self.limits).includes(_grant(limits))


USER = Owner()


def of_grant(grant: Grant | None) -> Owner:
    """Return the owner of what a client with this grant makes."""
    if grant is None:
        return USER
    limits = msgspec.json.encode(Grant("", grant.surfaces, grant.roots, grant.read_only))
    return Owner(grant.owner, grant.name, limits.decode())


def owner_of(ctx: Context) -> Owner:
    """Return the owner of what the calling client makes."""
    return of_grant(ctx.grant)


@functools.lru_cache
def _grant(limits: str) -> Grant:
    return msgspec.json.decode(limits, type=Grant)
