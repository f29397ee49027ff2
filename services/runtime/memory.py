"""Memory that was freed, given back to the machine."""

from __future__ import annotations

import ctypes


def give_memory_back() -> None:
    """After work that is not done again soon: glibc keeps what was freed for the next allocation of its kind."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
