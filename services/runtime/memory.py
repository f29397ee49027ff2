"""Memory of a process about to be forked, laid out so that its children share it for long."""

from __future__ import annotations

import ctypes
import sys

_POOL_BYTES = 16 * 1024
_SMALL_BYTES = 512
_CLASS_BYTES = 16
_MOST = 32768
"""Objects of one size that `fill_gaps` makes at most, where the allocator is not the one that it knows."""

_LARGEST_BLOCK = 65536

_fillings: list[bytes] = []


def fill_gaps() -> None:
    """Have the next objects be made on fresh pages: for a process about to be forked.

    Python makes an object where one of its size was freed, and imports leave such places on most pages.  Each child
    would write to all of them, and so take a copy of a page for every few objects.

    CPython's allocator (PEP 445's default) has pools of 16 KB for each size in steps of 16 bytes up to 512, and takes a
    fresh one when there is no place left in the others: then neighbours fill one pool from end to end.
    """
    overhead = sys.getsizeof(b"")
    for size in range(-(-overhead // _CLASS_BYTES) * _CLASS_BYTES, _SMALL_BYTES + 1, _CLASS_BYTES):
        a_pool = (_POOL_BYTES - 64) // size
        pool, there = -1, 0
        made: list[bytes] = []
        while there < a_pool and len(made) < _MOST:
            made.append(bytes(size - overhead))
            mine = id(made[-1]) // _POOL_BYTES
            pool, there = mine, there + 1 if mine == pool else 1
        _fillings.extend(made[: len(made) - there])
    _fill_heap()


class _HeapState(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def _fill_heap() -> None:
    """The same for what is larger: take every free block of the C library's heap below its end."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return
    libc.mallinfo2.restype = _HeapState
    libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_ssize_t], ctypes.c_void_p
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    end = libc.sbrk(0) - libc.mallinfo2().keepcost
    for size in (1 << power for power in range(_LARGEST_BLOCK.bit_length() - 1, 3, -1)):
        for _ in range(_MOST):
            block = libc.malloc(size)
            if block is None or block >= end:
                libc.free(block)
                break
