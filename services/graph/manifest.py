"""The manifest of `graph`."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, Keep, Manifest, Store

SCHEMA_VERSION = 1

MANIFESTS = (
    Manifest(
        name="graph",
        order=70,
        stall_s=STALL_S,
        memory_limit_bytes=4 * GIB,
        rests=True,
        stores=(Store("", Keep.DERIVED, schema=SCHEMA_VERSION),),
    ),
)
