"""The manifest of `decode`."""

from __future__ import annotations

from proto.manifest import GIB, SCRATCH, Manifest, Zygote

MANIFESTS = (
    # Hostile files may crash it, and it restarts at once; it receives their bytes and opens no files itself.
    Manifest(
        name="decode",
        order=180,
        stateless=True,
        # Loading takes a quarter of a second and 20 MB.
        zygote=Zygote(name="decode", order=50, rests_after_s=0),
        memory_limit_bytes=2 * GIB,
        disk_limit_bytes=SCRATCH,
        # The other calls wait in the kernel: a crash is not blamed on a file that had not been started, and the router
        # can name the file that caused it.
        in_flight=1,
        rests=True,
    ),
)
