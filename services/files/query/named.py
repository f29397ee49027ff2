"""Lookup of saved queries, sources, plans and resource sets by name, and change notifications for clients."""

from __future__ import annotations

import urllib.parse

import apsw

from proto.errors import InvalidParams
from proto.mcp import RESOURCE_UPDATED, ResourceUpdated
from proto.suggestions import did_you_mean
from proto.vocabulary import current_name
from services.files.store.sql import Row, fetch_all, fetch_one
from services.runtime.handlers import Environment

NAMED_IN_ERRORS = 20
LOOKED_AT = 5000

TABLES = {"query": "saved_query", "source": "source", "plan": "plan", "resource-set": "resource_set"}
"""Table names, by the kind that clients name."""


def _named(kind: str, verb: str) -> str:
    """Return the name of an operation on things of this kind."""
    return current_name(f"{kind}-{verb}")


def find(db: apsw.Connection, kind: str, name: str, field: str = "name") -> Row:
    """Return the row of a name. Raises InvalidParams, which lists the existing names, if it is missing."""
    table = TABLES[kind]
    row = fetch_one(db, f"SELECT * FROM {table} WHERE name = ?", (name,))
    if row is None:
        names = [row[0] for row in fetch_all(db, f"SELECT name FROM {table} ORDER BY name LIMIT {LOOKED_AT}")]
        more = ", …" if len(names) > NAMED_IN_ERRORS else ""
        there = (
            ", ".join(names[:NAMED_IN_ERRORS]) + more if names else f"none; create one with {_named(kind, 'create')}"
        )
        near = did_you_mean(name, names)
        raise InvalidParams(f"`{field}`: {kind} not found: {name[:200]!r}{near}; there are: {there}", field=field)
    return row


def require_free(db: apsw.Connection, kind: str, name: str) -> None:
    """Raises InvalidParams if the name is taken."""
    if fetch_one(db, f"SELECT 1 FROM {TABLES[kind]} WHERE name = ?", (name,)) is not None:
        raise InvalidParams(
            f"`name`: {kind} {name[:200]!r} already exists; see {_named(kind, 'get')} and {_named(kind, 'delete')}",
            field="name",
        )


def notify(env: Environment, *resources: str) -> None:
    """Notify subscribed clients that resources (`plans/NAME` of `synthesis://`) have changed."""
    for resource in resources:
        env.publish(RESOURCE_UPDATED, ResourceUpdated(uri=f"synthesis://{urllib.parse.quote(resource)}"))
