"""The manifest of `memory` for the kernel."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, Export, Keep, Manifest, Store

SCHEMA_VERSION = 4

MANIFESTS = (
    Manifest(
        name="memory",
        order=130,
        stall_s=STALL_S,
        memory_limit_bytes=GIB,
        rests=True,
        stores=(Store("memory.db", Keep.SOURCE, schema=SCHEMA_VERSION, movable=True),),
        exports=(
            Export(
                file="memories.jsonl",
                about="memories, each with the times at which it was `said` (nanoseconds since 1970) and its sources; "
                "`conflicts_with`, `similar_to` and `superseded_by` name others by their `id`.",
                lists="memory_export",
                items="memories",
                first={"after": 0},
                takes="memory_import",
            ),
        ),
    ),
)
