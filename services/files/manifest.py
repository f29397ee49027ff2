"""Manifests of the services `files` and `compare`."""

from __future__ import annotations

from proto.manifest import GIB, SCRATCH, STALL_S, Keep, Manifest, Pool, Roots, Store

SCHEMA_VERSION = 3
JOURNAL_VERSION = 1

MANIFESTS = (
    Manifest(
        name="files",
        order=140,
        stall_s=STALL_S,
        memory_limit_bytes=2 * GIB,
        roots=Roots.WRITE,
        stores=(
            # Apart from the tree, which can be rebuilt from the disk, it holds sets, plans, queries and the trash list.
            Store("files.db", Keep.SOURCE, schema=SCHEMA_VERSION),
            Store("files.db-begun", Keep.SOURCE),
            Store("trash", Keep.ITEMS),
            # Former contents of files, for undo.
            Store("changes.db", Keep.SOURCE, schema=JOURNAL_VERSION),
            Store("changes.log", Keep.SOURCE),
        ),
    ),
    Manifest(
        name="compare",
        order=150,
        module="index.comparing",
        stall_s=STALL_S,
        disk_limit_bytes=SCRATCH,
        in_flight=8,
        # One for each folder above the one being copied.
        open_files=4096,
        roots=Roots.READ,
        # Rescans work without it, only more slowly.
        rests=True,
        pool=Pool(),
    ),
)
