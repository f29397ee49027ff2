"""The manifest of the service `knowledge`."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, Keep, Manifest, Roots, Store

SCHEMA_VERSION = 4

MANIFESTS = (
    Manifest(
        name="knowledge",
        order=90,
        stall_s=STALL_S,
        memory_limit_bytes=2 * GIB,
        roots=Roots.WRITE,
        models_of="embed",
        told_settings={"embedder": "embed", "changes": "files"},
        # Derived, except for the ids of notes with the same name.
        stores=(
            Store("notes.db", Keep.SOURCE, schema=SCHEMA_VERSION, rebuilt=True),
            Store("changes.log", Keep.SOURCE),
        ),
    ),
)
