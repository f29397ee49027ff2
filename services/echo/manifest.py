"""The manifest of `echo`."""

from __future__ import annotations

from proto.manifest import SCRATCH, STALL_S, Manifest

MANIFESTS = (Manifest(name="echo", order=20, stall_s=STALL_S, disk_limit_bytes=SCRATCH, rests=True, stateless=True),)
