"""How many processor cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """The cores this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        # No control group of the second version here: then there is no quota to keep.
        return cores
    return cores
