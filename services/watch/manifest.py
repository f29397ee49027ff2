"""The manifest of `watch`."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, Keep, Manifest, Roots, Store

SCHEMA_VERSION = 1

MANIFESTS = (
    Manifest(
        name="watch",
        order=160,
        stall_s=STALL_S,
        memory_limit_bytes=GIB,
        # Each reader has one call waiting for changes.
        in_flight=256,
        roots=Roots.READ,
        watches=True,
        stores=(Store("", Keep.DERIVED, schema=SCHEMA_VERSION),),
    ),
)
