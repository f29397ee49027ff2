"""The manifest of the service `retrieve`."""

from __future__ import annotations

from proto.manifest import GIB, VECTORS, Keep, Manifest, ShortTable, Store

SCHEMA_VERSION = 4

MANIFESTS = (
    Manifest(
        name="retrieve",
        order=40,
        zygote=VECTORS,
        # A million vectors with their text take 2 GB. The page cache does not count.
        memory_limit_bytes=8 * GIB,
        # Each open collection has threads of its own.
        threads=1024,
        open_files=8192,
        # A search keeps one core busy in many small steps, so more than eight at once would only delay each other.
        # Three more may wait while a collection is rebuilt.
        in_flight=11,
        models_of="embed",
        table=ShortTable("retrieve"),
        # The variable that says where a PostgreSQL server is.
        network_by="dsn_env",
        reads_environment=("dsn_env",),
        told_settings={"embedder": "embed"},
        stores=(
            # Client collections. All other data is derived from what other services feed.
            Store("own.*.db", Keep.SOURCE, schema=SCHEMA_VERSION),
            # By which a server knows the collections of this data directory.
            Store("owner", Keep.SOURCE),
            Store("*", Keep.DERIVED),
        ),
    ),
)
