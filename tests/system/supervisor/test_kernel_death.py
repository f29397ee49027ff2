"""The kernel itself is killed: nothing that it started outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.running import wait_until
from tests.system.support.rig import is_alive

KERNEL = """
import json, signal, sys
from pathlib import Path
import trio
from tests.system.running import wait_until
from tests.system.support.rig import supervised, trial

async def main():
    specs = (trial(), trial("other", zygote=None))
    async with supervised(Path(sys.argv[1]), *specs) as rig:
        await rig.ready()
        await rig.ready("other")
        (zygote,) = rig.supervisor.status().zygotes
        print(json.dumps([rig.pid(), rig.pid("other"), zygote.pid]), flush=True)
        await trio.sleep_forever()

# Whoever runs the tests in the background of a shell ignores it, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
trio.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_kernel(tmp_path: Path, number: int) -> None:
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[3],
    )
    assert kernel.stdout is not None
    with kernel, kernel.stdout:
        pids = json.loads(kernel.stdout.readline())
        assert all(is_alive(pid) for pid in pids)
        os.kill(kernel.pid, number)
        kernel.wait()
        wait_until(lambda: not any(map(is_alive, pids)), said=lambda: list(filter(is_alive, pids)))
