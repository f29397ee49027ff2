"""The bound that the system sets to a service's memory, beyond the limit that the supervisor looks at once a second.

A burst outruns any look: here the allocation fails that would pass the bound, at once and in this process alone, which
ends of it with a code of its own. What is private and can be written to counts (RLIMIT_DATA of setrlimit(2)): heaps
and stacks, used or not; not files that are mapped, and not addresses that are only reserved, as torch, FAISS and
allocators do. Where a GPU's driver maps what it likes, there is none.
"""

from __future__ import annotations

import logging
import os
import resource
from typing import Final, NoReturn

from proto.birth import EXIT_OUT_OF_MEMORY, Birth

RESERVE_BYTES: Final = 512 * 1024**2
RESERVE_A_CORE_BYTES: Final = 32 * 1024**2
"""What is counted and not used: stacks of worker threads, and heaps that were given room to grow."""

_log = logging.getLogger("linckia.service")


def bound_memory(birth: Birth) -> None:
    """Set the bound for this process and all that it starts, for good."""
    if birth.memory_limit_bytes is None or birth.mode == "cuda":
        return
    reserve = RESERVE_BYTES + RESERVE_A_CORE_BYTES * (os.cpu_count() or 1)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = birth.memory_limit_bytes * 5 // 4 + reserve
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def bound_files(birth: Birth) -> None:
    """No file is to be larger than the disk that the service may hold; those of roots are not its own."""
    if birth.disk_limit_bytes is not None and len(birth.read_only) == len(birth.roots):
        resource.setrlimit(resource.RLIMIT_FSIZE, (birth.disk_limit_bytes, birth.disk_limit_bytes))


def end_out_of_memory(doing: str) -> NoReturn:
    """End at once: what else is in hand would fail of it as well, here and there."""
    _log.error("%s needed more memory than the system allows this process", doing)
    os._exit(EXIT_OUT_OF_MEMORY)
