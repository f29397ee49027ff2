"""Every acknowledged put is there after SIGKILL; an unacknowledged one is there as a whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.graph.rig import database, stored

CHILD = """
import sys, trio
from pathlib import Path
from services.graph import tables
from tests.unit.graph.rig import state

async def main():
    database = tables.open_database(Path(sys.argv[1]))
    n = 0
    while True:
        # Later rounds replace what earlier ones stated.
        nodes = [state(f"n{n % 30}-{part}", *(f"round{n}-{part}-{e}" for e in range(6))) for part in range(3)]
        await database.write(lambda db: tables.put(db, "notes", nodes, 0))
        print(n, flush=True)
        n += 1

trio.run(main)
"""


def put_until_killed(path: Path, acknowledged: int) -> int:
    """Run the child, kill it after so many puts; the number of the last put it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True
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


@pytest.mark.parametrize("acknowledged", [1, 20, 90])
def test_every_acknowledged_put_survives_a_kill(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "graph.db"
    last = put_until_killed(path, acknowledged)
    db = database(path)
    by_source: dict[str, set[str]] = {}
    for source, _, target in stored(db):
        by_source.setdefault(source, set()).add(target)
    for n in range(max(0, last - 29), last + 1):
        rounds = set()
        for part in range(3):
            targets = by_source[f"n{n % 30}-{part}"]
            (round_of,) = {int(target.split("-")[0].removeprefix("round")) for target in targets}
            assert targets == {f"round{round_of}-{part}-{e}" for e in range(6)}
            rounds.add(round_of)
        # One more put may have been on disk without its acknowledgement.
        assert rounds in ({n}, {last + 1})
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
