"""`files`, and `compare` beside it, as the kernel sees them."""

from __future__ import annotations

from linckia.proto.manifest import GIB, SCRATCH, STALL_S, Keep, Manifest, Pool, Roots, Store

SCHEMA_VERSION = 3

MANIFESTS = (
    Manifest(
        name="files",
        order=140,
        stall_s=STALL_S,
        memory_limit_bytes=2 * GIB,
        roots=Roots.WRITE,
        stores=(
            # With the tree, which follows from the disk, are sets, plans, queries and the list of the trash.
            Store("files.db", Keep.SOURCE, schema=SCHEMA_VERSION),
            Store("files.db-begun", Keep.SOURCE),
            Store("trash", Keep.ITEMS),
        ),
    ),
    Manifest(
        name="compare",
        order=150,
        module="index.comparing",
        stall_s=STALL_S,
        disk_limit_bytes=SCRATCH,
        in_flight=8,
        # One for each folder above what is copied.
        open_files=4096,
        roots=Roots.READ,
        # A rescan goes on without it, only slower.
        rests=True,
        pool=Pool(),
    ),
)
