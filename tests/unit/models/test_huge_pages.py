"""Memory that is in use comes onto huge pages, as it is; memory that is not stays empty."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import time
from pathlib import Path

import pytest

from services.runtime.models.huge_pages import HUGE_PAGE_BYTES, own_memory, use_huge_pages

_ATTEMPTS = 20
_MADV_HUGEPAGE, _MADV_NOHUGEPAGE = 14, 15


def _on_huge_pages(address: int) -> int:
    """Bytes of the mapping that holds an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(span[1], 16) <= address < int(span[2], 16)
        elif here and (figure := re.match(r"AnonHugePages: +(\d+) kB", line)):
            return int(figure[1]) * 1024
    raise AssertionError("no such mapping")


def _in_memory(address: int, size: int) -> int:
    """Pages of a range that take memory."""
    pages = ctypes.create_string_buffer(size // mmap.PAGESIZE)
    start = ctypes.c_void_p(address)
    assert ctypes.CDLL(None).mincore(start, ctypes.c_size_t(size), pages) == 0
    return sum(byte & 1 for byte in pages.raw)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux alone has it")
def test_what_is_in_use_is_put_on_huge_pages_and_what_is_not_stays_empty() -> None:
    size = 8 * HUGE_PAGE_BYTES
    own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with (
        mmap.mmap(-1, size, flags=own) as full,
        mmap.mmap(-1, size, flags=own) as empty,
    ):
        for each in (full, empty):
            each.madvise(_MADV_NOHUGEPAGE)
        content = os.urandom(size)
        full[:] = content
        for place in range(0, size, 4 * mmap.PAGESIZE):
            empty[place] = 1
        for each in (full, empty):
            each.madvise(_MADV_HUGEPAGE)
        at = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in (full, empty)]
        others = [span for span in own_memory() if not any(span[0] <= place < span[1] for place in at)]
        if not use_huge_pages(others):
            pytest.skip("this kernel does not collapse")
        # It refuses where it has no huge page free at the moment; what is on one already stays there.
        for _ in range(_ATTEMPTS):
            if _on_huge_pages(at[0]) >= size - 2 * HUGE_PAGE_BYTES:
                break
            time.sleep(0.2)
            use_huge_pages(others)
        assert _on_huge_pages(at[0]) >= size - 2 * HUGE_PAGE_BYTES
        assert full[:] == content
        # But for the two at its ends, which it may share with what is in use.
        assert _in_memory(at[1], size) <= (size // 4 + 2 * HUGE_PAGE_BYTES) // mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux alone has it")
def test_memory_of_before_stays_as_it_is() -> None:
    assert use_huge_pages(own_memory()) <= HUGE_PAGE_BYTES
