"""The manifest of the service `documents`."""

from __future__ import annotations

from proto.manifest import GIB, Keep, Manifest, Roots, Store

PACKS_VERSION = 5
INDEX_VERSION = 8

MANIFESTS = (
    Manifest(
        name="documents",
        order=110,
        # The store is on disk, and large files are processed in pieces.
        memory_limit_bytes=2 * GIB,
        roots=Roots.WRITE,
        models_of="embed",
        told_settings={"embedder": "embed"},
        stores=(
            Store("packs.db", Keep.SOURCE, schema=PACKS_VERSION, movable=True),
            Store("index.db", Keep.DERIVED, schema=INDEX_VERSION),
        ),
    ),
)
