"""The manifest of `llm`."""

from __future__ import annotations

from proto.manifest import SCRATCH, STALL_S, Manifest, ShortTable

MANIFESTS = (
    Manifest(
        name="llm",
        order=100,
        stall_s=STALL_S,
        disk_limit_bytes=SCRATCH,
        network=True,
        stateless=True,
        reads_files=("key_file",),
        reads_environment=("key_env",),
        table=ShortTable("llm"),
        rests=True,
    ),
)
