"""A model's weights on huge pages: one entry of the processor's address cache for 2 MB of them instead of 4 KB.

A query reads every weight once, in pages of 4 KB some ten thousand of them, and looks each one up; on a virtual machine
through the tables of both systems. On huge pages a query through a small model takes up to a tenth less time.

Asked of the kernel for what lies in memory already (`MADV_COLLAPSE`, Linux 6.1): which allocator took it, torch's,
oneDNN's or the C library's, does not matter, and no setting of the machine needs to be changed. Where the kernel
cannot, everything stays as it is.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import trio

HUGE_PAGE_BYTES = 2 * 1024 * 1024

_MADV_COLLAPSE = 25
_HALF = HUGE_PAGE_BYTES // mmap.PAGESIZE // 2

_log = logging.getLogger("linckia.models")


Span = tuple[int, int]
"""Addresses, from the first to the one behind the last."""


def begin(background: trio.Nursery, device: str, before: Sequence[Span]) -> None:
    """Have `use_huge_pages` done for a model on this device, beside what the service does: it is ready without.

    Cancellation of the nursery leaves the rest undone and waits for nothing.

    Args:
        before: `own_memory` before the model was loaded, which is not the model: a process that was forked shares it
            with others, and would have to take a copy.
    """
    if device == "cpu":
        background.start_soon(partial(trio.to_thread.run_sync, use_huge_pages, before, abandon_on_cancel=True))


def own_memory() -> list[Span]:
    """Where this process's own memory is; nothing where that cannot be told."""
    if sys.platform != "linux":
        return []
    spans: list[Span] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, access, _offset, _device, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and not (name and name[0].startswith("[stack")):
            start, end = (int(part, 16) for part in place.split("-"))
            spans.append((start, end))
    return spans


def use_huge_pages(before: Sequence[Span] = ()) -> int:
    """Put this process's memory on huge pages where half of such a page is in use at least, and answer how many bytes.

    Blocks, about a second for half a gigabyte; what is computed meanwhile goes on, and may wait for a page of it.

    Args:
        before: what stays as it is.
    """
    if sys.platform != "linux" or mmap.PAGESIZE != 4096:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    present = ctypes.create_string_buffer(HUGE_PAGE_BYTES // mmap.PAGESIZE)
    done = refused = 0
    for address in _places(before):
        # Gone since the list was read, or little of it in use: what is empty is not to become full of zeros.
        if libc.mincore(address, HUGE_PAGE_BYTES, present) or sum(byte & 1 for byte in present.raw) < _HALF:
            continue
        if libc.madvise(address, HUGE_PAGE_BYTES, _MADV_COLLAPSE):
            refused += 1
        else:
            done += HUGE_PAGE_BYTES
    _log.info("%d MB on huge pages; %d MB were refused", done >> 20, refused * HUGE_PAGE_BYTES >> 20)
    return done


def _places(before: Sequence[Span]) -> Iterator[int]:
    """The addresses at which a huge page of this process's own memory may stand, and nothing of `before`."""
    for start, end in own_memory():
        aligned = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        for address in range(aligned, end - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES):
            if not any(first < address + HUGE_PAGE_BYTES and address < last for first, last in before):
                yield address
