"""`linckia restart`, `start` and `stop`: control of the services, and of the kernel itself."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from kernel.cli import Failed
from kernel.cli.calls import connect
from kernel.control.address import find_data_dir
from kernel.control.client import Client, NoKernel
from kernel.json_types import JsonObject

END_TIMEOUT_S = 30.0
"""Services are given their shutdown time-outs, one after the other where they depend on each other."""

POLL_S = 0.02


def _operate(arguments: argparse.Namespace) -> int:
    """Call the kernel's operation of the command's name for one service.  Raises ControlError."""
    with connect(arguments) as client:
        result: JsonObject = client.call(f"kernel_{arguments.command}", {"service": arguments.service})
    print(result["message"])
    return 0


restart = start = _operate


def stop(arguments: argparse.Namespace) -> int:
    """Raises ControlError, Failed."""
    if arguments.service:
        return _operate(arguments)
    data_dir = find_data_dir(arguments.data, os.environ)
    with Client(data_dir) as client:
        client.call("kernel_shutdown", {})
    _wait_until_gone(data_dir)
    print("The kernel has ended.")
    return 0


def _wait_until_gone(data_dir: Path) -> None:
    give_up_at = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < give_up_at:
        try:
            Client(data_dir).close()
        except NoKernel:
            return
        time.sleep(POLL_S)
    raise Failed(f"the kernel was told to end and still runs after {END_TIMEOUT_S:.0f} s; see `linckia logs`")
