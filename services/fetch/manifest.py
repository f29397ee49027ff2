"""`fetch` as the kernel sees it."""

from __future__ import annotations

from linckia.proto.manifest import GIB, STALL_S, Keep, Manifest, ShortTable, Store

MANIFESTS = (
    Manifest(
        name="fetch",
        order=80,
        stall_s=STALL_S,
        disk_limit_bytes=32 * GIB,
        # Each call holds a connection and a file, of up to 4 GiB; more at once would only share one line.
        in_flight=16,
        network=True,
        # It fetches the issuer's keys: the front, which takes the tokens, has no network.
        told_issuer=True,
        # Hosts and networks on this side of the Internet.
        table=ShortTable("fetch", lists=("allow",)),
        rests=True,
        stores=(Store("", Keep.PASSING),),
    ),
)
