"""The manifest of the service `events`."""

from __future__ import annotations

from proto.manifest import STALL_S, Keep, Manifest, Roots, ShortTable, Store

SCHEMA_VERSION = 1

MANIFESTS = (
    Manifest(
        name="events",
        order=165,
        stall_s=STALL_S,
        # Each client that follows the events has one call waiting.
        in_flight=256,
        # It reads no file, but checks paths as every service with roots does.
        roots=Roots.READ,
        table=ShortTable("events"),
        stores=(Store("events.db", Keep.SOURCE, schema=SCHEMA_VERSION),),
    ),
)
