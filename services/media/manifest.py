"""The manifest of `media`."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, Keep, Manifest, Roots, Store

SCHEMA_VERSION = 1

MANIFESTS = (
    Manifest(
        name="media",
        order=170,
        stall_s=STALL_S,
        memory_limit_bytes=GIB,
        disk_limit_bytes=8 * GIB,
        # The decoder requests the bytes of each file that waits for it.
        in_flight=256,
        roots=Roots.READ,
        rests=True,
        stores=(Store("", Keep.DERIVED, schema=SCHEMA_VERSION),),
    ),
)
