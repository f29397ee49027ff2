"""`linckia proxy`: becomes the recording proxy, which belongs to `transcripts`."""

from __future__ import annotations

import argparse
import os
import sys

PROXY = "linckia.services.transcripts.proxy"
"""A module that is run, never imported here: nothing of the kernel imports a service."""


def proxy(arguments: argparse.Namespace) -> int:
    """Does not return.  Raises OSError."""
    options = {name: getattr(arguments, name) for name in ("upstream", "listen", "agent", "project")}
    options["data"] = arguments.data_dir
    given = [f"--{name}={value}" for name, value in options.items()]
    os.execv(sys.executable, [sys.executable, "-P", "-m", PROXY, *given])
