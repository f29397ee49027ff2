"""`retrieve` as the kernel sees it."""

from __future__ import annotations

from linckia.proto.manifest import GIB, VECTORS, Keep, Manifest, Store

SCHEMA_VERSION = 4

MANIFESTS = (
    Manifest(
        name="retrieve",
        order=40,
        zygote=VECTORS,
        # A million vectors with their text are 2 GB; the page cache does not count.
        memory_limit_bytes=8 * GIB,
        # Each collection that is open has some of its own.
        threads=1024,
        open_files=8192,
        # A search is work for one core, in many small steps: more than eight at once would only make all of them late.
        # Three more wait while a collection is rebuilt.
        in_flight=11,
        models_of="embed",
        told_settings={"embedder": "embed"},
        stores=(
            # Collections of clients; all other data follows from what other services feed.
            Store("own.*.db", Keep.SOURCE, schema=SCHEMA_VERSION),
            Store("*", Keep.DERIVED),
        ),
    ),
)
