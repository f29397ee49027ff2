"""The front's manifest: how the kernel starts and supervises it."""

from __future__ import annotations

from proto.manifest import GIB, MCP, SCRATCH, Manifest, Pool, Roots
from proto.wire.front import SERVICE

MANIFESTS = (
    Manifest(
        name=SERVICE,
        order=10,
        essential=True,
        zygote=MCP,
        # Clients may send long messages.
        memory_limit_bytes=2 * GIB,
        disk_limit_bytes=SCRATCH,
        in_flight=256,
        # Enough for thousands of clients.
        open_files=8192,
        handoff=True,
        standby_first_s=4.0,
        roots=Roots.READ,
        connections=True,
        # A call over HTTP takes 0.55 ms of a core in a front, 0.17 in the kernel and 0.14 in the service: a busy front
        # keeps one and a half cores busy, and more than three of them keep the kernel busy, which is one process.
        pool=Pool(cores_each=2, most=4),
    ),
)
