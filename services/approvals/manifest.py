"""The manifest of `approvals` for the kernel."""

from __future__ import annotations

from proto.approvals import SERVICE
from proto.manifest import STALL_S, Keep, Manifest, ShortTable, Store

SCHEMA_VERSION = 1

MANIFESTS = (
    Manifest(
        name=SERVICE,
        order=15,
        stall_s=STALL_S,
        table=ShortTable(SERVICE),
        needs_setting="require",
        # Tools of mounted servers may have to wait too.
        essential=True,
        # It starts with the first call that waits.
        lazy=True,
        rests=True,
        # Calls that wait are in flight; it refuses more than `store.MAX_PENDING` of them itself.
        in_flight=1200,
        threads=1300,
        stores=(Store("approvals.db", Keep.SOURCE, schema=SCHEMA_VERSION),),
    ),
)
