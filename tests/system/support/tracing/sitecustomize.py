"""Has a Python process note which of our files its calls enter; the interpreter loads this through PYTHONPATH.

Each call of a function, and each continuation of a coroutine, appends a line to the file that `PYTHONTRACEFILE` names:
the time on the monotonic clock in ns, the process, the file and the function.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

_FIRST_FD = 900
"""No process has so many files open that it would use this number again after its fork has closed it."""

_OTHERS = ("<module>", "__post_init__", "before_io_wait", "after_io_wait")
"""Imports, and functions that msgspec and trio's event loop call by themselves."""


def _open(path: str) -> int:
    opened = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        return fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)
    finally:
        os.close(opened)


def _follow(path: str) -> None:
    root = os.path.abspath(__file__).removesuffix("tests/system/support/tracing/sitecustomize.py")
    folders = tuple(root + folder for folder in ("kernel/", "proto/", "services/"))
    fd = _open(path)

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal fd
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(folders) or code.co_name in _OTHERS:
            return
        line = f"{time.monotonic_ns()} {os.getpid()} {code.co_filename[len(root) :]} {code.co_name}\n".encode()
        try:
            os.write(fd, line)
        except OSError:
            # A zygote's child closes all files, and is not confined yet.
            fd = _open(path)
            os.write(fd, line)

    sys.setprofile(note)
    threading.setprofile(note)


if "PYTHONTRACEFILE" in os.environ:
    _follow(os.environ["PYTHONTRACEFILE"])
