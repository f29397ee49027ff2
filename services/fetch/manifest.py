"""The manifest of `fetch`."""

from __future__ import annotations

from proto.manifest import GIB, STALL_S, Keep, Manifest, ShortTable, Store

MANIFESTS = (
    Manifest(
        name="fetch",
        order=80,
        stall_s=STALL_S,
        disk_limit_bytes=32 * GIB,
        # Each call uses a connection and a file of up to 4 GiB; more calls would only share the same bandwidth.
        in_flight=16,
        network=True,
        # It fetches the issuer's keys: the front, which checks the tokens, has no network access.
        told_issuer=True,
        # Hosts and networks that are not on the public Internet.
        table=ShortTable("fetch", lists=("allow",)),
        rests=True,
        stores=(Store("", Keep.PASSING),),
    ),
)
