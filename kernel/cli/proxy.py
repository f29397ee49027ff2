"""`linckia proxy`: runs the recording proxy, which is part of `transcripts`."""

from __future__ import annotations

import argparse
import os
import sys

from proto.names import module

PROXY = module("services.transcripts.proxy")
"""Module to run. It is never imported here: the kernel imports no service."""


def proxy(arguments: argparse.Namespace) -> int:
    """Replace this process with the proxy. Raises OSError."""
    options = {name: getattr(arguments, name) for name in ("upstream", "listen", "agent", "project")}
    options["data"] = arguments.data_dir
    given = [f"--{name}={value}" for name, value in options.items()]
    os.execv(sys.executable, [sys.executable, "-P", "-m", PROXY, *given])
