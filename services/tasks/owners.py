"""Whose tasks and timers a client sees."""

from __future__ import annotations

from linckia.services.runtime.handlers import Context


def owner_of(ctx: Context) -> str:
    """Return the name of the client's token; all clients without one are the user of this machine."""
    return "" if ctx.grant is None else ctx.grant.name
