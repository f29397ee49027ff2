"""The manifest of `yaml`."""

from __future__ import annotations

from proto.manifest import GIB, SCRATCH, Keep, Manifest, Roots, Store

MANIFESTS = (
    Manifest(
        name="yaml",
        order=30,
        # 64 MB files are edited as trees of Python objects.
        memory_limit_bytes=4 * GIB,
        disk_limit_bytes=SCRATCH,
        roots=Roots.WRITE,
        rests=True,
        # Answers to calls with idempotency keys.
        stores=(Store("keys.db", Keep.SOURCE), Store("changes.log", Keep.SOURCE)),
        told_settings={"changes": "files"},
    ),
)
