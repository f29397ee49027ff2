"""The operation about sessions of `documents` that another service calls."""

from __future__ import annotations

import msgspec

from proto.operation import Access, Params, Role, operation


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """An open session."""

    session_id: str
    label: str


@operation(
    "documents_session_bound", service="documents", access=Access.READ, deadline_s=10, role=Role.INTERNAL,
    callers=("memory",),
)  # fmt: skip
class SessionBound(Params[Bound | None], frozen=True, kw_only=True):
    """Return the session that this client currently adds to: the last one it started in its MCP session."""
