"""Every acknowledged put is there after SIGKILL, whole, and found; an unacknowledged one is there as a whole or not at
all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.retrieve.rig import opened

CHILD = """
import sys, trio
from pathlib import Path
from services.retrieve.local_collection import LocalCollection
from tests.unit.retrieve.rig import group

async def main():
    collection = LocalCollection("notes", Path(sys.argv[1]), trio.CapacityLimiter(1))
    await collection.load()
    await collection.words.check()
    n = 0
    while True:
        # Half of the puts replace what an earlier one wrote.
        pieces = [f"round{n} piece{p}" for p in range(5)]
        await collection.put([group(f"g{n % 40}-{part}", *pieces) for part in range(3)])
        print(n, flush=True)
        n += 1

trio.run(main)
"""


def put_until_killed(folder: Path, acknowledged: int) -> int:
    """Run the child, kill it after so many puts; the number of the last put it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True
    )
    assert child.stdout is not None
    last = -1
    try:
        while last < acknowledged:
            last = int(child.stdout.readline())
    finally:
        os.kill(child.pid, signal.SIGKILL)
        # Puts acknowledged between the last line read and the kill count too.
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait()
    return int(rest[-1]) if rest else last


@pytest.mark.slow
@pytest.mark.parametrize("acknowledged", [1, 7, 60])
async def test_every_acknowledged_put_survives_a_kill(tmp_path: Path, acknowledged: int) -> None:
    last = put_until_killed(tmp_path, acknowledged)
    async with opened(tmp_path) as collection:
        expected = {f"g{n % 40}-{part}": n for n in range(last + 1) for part in range(3)}
        rows = await collection.on_reader(
            lambda db: db.execute(
                "SELECT id, text FROM items JOIN groups ON groups.group_id = items.group_id ORDER BY id, position"
            ).fetchall()
        )
        found: dict[str, list[str]] = {}
        for name, text in rows:
            found.setdefault(str(name), []).append(str(text))
        for name, n in expected.items():
            round_of = int(found[name][0].split()[0].removeprefix("round"))
            # One more put may have been on disk without its acknowledgement.
            assert round_of == n or round_of == last + 1
            assert found[name] == [f"round{round_of} piece{p}" for p in range(5)]
        assert collection.waiting == len(rows)
        assert len((await collection.find_words("piece0", 10_000, ())).hits) == len(found)
        assert await collection.on_reader(lambda db: db.execute("PRAGMA integrity_check").get) == "ok"
