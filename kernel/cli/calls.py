"""What commands share that call operations: parameters from the command line, patience, and answers as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable

from kernel.control.address import find_data_dir
from kernel.control.client import CallFailed, Client
from kernel.json_types import JsonObject

OnProgress = Callable[[JsonObject], None]

_NO_PARAMETERS = frozenset({"command", "module", "function", "data", "json"})


def connect(arguments: argparse.Namespace) -> Client:
    """A connection to the kernel of the data directory that was named.  Raises ControlError."""
    return Client(find_data_dir(arguments.data, os.environ))


def params_of(arguments: argparse.Namespace, *apart: str) -> JsonObject:
    """The options that were given, as parameters of the operation, without those `apart`."""
    left_out = _NO_PARAMETERS.union(apart)
    return {name: value for name, value in vars(arguments).items() if value is not None and name not in left_out}


def patiently(
    client: Client, name: str, params: JsonObject, on_progress: OnProgress | None = None, *, patience_s: float = 60.0
) -> JsonObject:
    """Call an operation that may be repeated, again and again while its service is being started.

    Raises:
        CallFailed: another failure, or `patience_s` are over.
    """
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            answer: JsonObject = client.call(name, params, on_progress=on_progress)
            return answer
        except CallFailed as error:
            wait_ms = error.failure.get("retry_after_ms")
            passing = error.failure.get("kind") in ("unavailable", "overloaded")
            if not passing or wait_ms is None or time.monotonic() > give_up_at:
                raise
            time.sleep(wait_ms / 1000)


def show_json(answer: object) -> None:
    """Indented on a terminal, on one line elsewhere."""
    print(json.dumps(answer, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def complain(text: object) -> None:
    """A line on stderr."""
    print(f"linckia: {text}", file=sys.stderr)
