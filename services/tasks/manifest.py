"""The manifest of `tasks`."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, Keep, Manifest, ShortTable, Store

SCHEMA_VERSION = 3

MANIFESTS = (
    Manifest(
        name="tasks",
        order=155,
        stall_s=STALL_S,
        memory_limit_bytes=GIB // 2,
        rests=True,
        # Not while a task runs.
        rests_while=("working", "none"),
        table=ShortTable("tasks"),
        stores=(Store("tasks.db", Keep.SOURCE, schema=SCHEMA_VERSION),),
    ),
)
