"""What a service that computes on a GPU reports about it in its `info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

GPU: Final = "gpu"
"""Key of a service's `info`: `GpuFigures` as JSON, or why they are unknown."""


class GpuFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a process. Memory and utilization include those of other processes."""

    name: str
    number: int
    used_bytes: int
    total_bytes: int
    utilization: float | None = None
    celsius: float | None = None

    @staticmethod
    def of(info: Mapping[str, str]) -> GpuFigures | None:
        """Return the figures in a service's `info`, or None if there are none."""
        try:
            return msgspec.json.decode(info.get(GPU, ""), type=GpuFigures)
        except msgspec.DecodeError:
            return None
