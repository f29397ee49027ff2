"""`python -m tests.fuzz.frames.live COUNT SEED`: messages of a hostile service to a real kernel, over a real link.

Between the lots, the service breaks the protocol, each time in another way.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proto.control.client import CallFailed
from tests.fuzz.frames.hostile import VIOLATIONS
from tests.system.running import RunningKernel, running

OPTIONS = ("--no-http", "--with", "tests.hostile")

NUMBERS = 14
"""Calls after which every number that the messages name has been that of a call."""

LOT = 20_000

WAYS = sorted(VIOLATIONS.keys() - {"two calls of one number"})
"""All but those that need an operation of the tests."""


def fuzz(kernel: RunningKernel, count: int, seed: int, ways: Iterable[str], lot: int = LOT) -> dict[str, Any]:
    """Send the messages in lots, and break the protocol after each; the hostile service's status at the end.

    Raises AssertionError where anything but the hostile service came to harm.
    """
    before = {service["name"]: service["restarts"] for service in kernel.status()["services"]}
    for start, way in zip(range(0, count, lot), itertools.cycle(ways), strict=False):
        tell(kernel, "hostile_send", {"seed": 0, "count": 0}, times=NUMBERS)
        tell(kernel, "hostile_send", {"seed": seed + start, "count": min(lot, count - start)})
        tell(kernel, "hostile_break", {"how": way})
        assert kernel.call("mcp.echo", {"message": "still there?"})["message"] == "still there?"
    after = kernel.status()["services"]
    assert kernel.process.poll() is None
    assert [one["name"] for one in after if one["restarts"] != before[one["name"]]] == ["hostile"]
    return kernel.service("hostile")


def tell(kernel: RunningKernel, name: str, params: dict[str, Any], times: int = 1) -> None:
    """Whatever comes of it; a service that died too often is started again."""
    if kernel.service("hostile")["state"] == "failed":
        kernel.call("kernel_start", {"service": "hostile"})
    for _ in range(times):
        try:
            kernel.call(name, params)
        except CallFailed as error:
            if error.failure["kind"] not in ("maybe_executed", "unavailable"):
                raise


if __name__ == "__main__":
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), options=OPTIONS) as live:
        status = fuzz(live, int(sys.argv[1]), int(sys.argv[2]), WAYS)
        print(f"{sys.argv[1]} messages in {time.perf_counter() - begun:.0f} s; it died of {status['deaths']}")
        print([line for line in live.log("kernel").splitlines() if "defect" in line][:5])
