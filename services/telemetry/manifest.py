"""The manifest of `telemetry`."""

from __future__ import annotations

from proto.manifest import SCRATCH, STALL_S, Keep, Manifest, ShortTable, Store
from proto.ops.observation import TELEMETRY

MANIFESTS = (
    Manifest(
        name=TELEMETRY,
        order=900,
        stall_s=STALL_S,
        disk_limit_bytes=SCRATCH,
        network=True,
        reads_environment=("headers_env",),
        table=ShortTable(TELEMETRY),
        needs_setting="endpoint",
        stores=(Store("", Keep.PASSING),),
    ),
)
