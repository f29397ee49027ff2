"""`decode` as the kernel sees it."""

from __future__ import annotations

from linckia.proto.manifest import GIB, SCRATCH, Manifest, Zygote

MANIFESTS = (
    # It dies of hostile files, and is back at once; it gets their bytes, and opens none.
    Manifest(
        name="decode",
        order=180,
        # It loads in a quarter of a second, and takes 20 MB.
        zygote=Zygote(name="decode", order=50, rests_after_s=0),
        memory_limit_bytes=2 * GIB,
        disk_limit_bytes=SCRATCH,
        # The other calls wait in the kernel: its death is not the fault of a file that it had not begun, and the router
        # tells which file it died of.
        in_flight=1,
        rests=True,
    ),
)
