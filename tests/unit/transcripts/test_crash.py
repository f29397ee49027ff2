"""Acknowledged turns are there after SIGKILL, once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys, trio
from pathlib import Path
from services.transcripts.operations.intake import TranscriptIngest
from services.transcripts.ingest import Ingest
from services.transcripts.messages import Stripper
from services.transcripts.redaction import Redactor
from services.transcripts.database import open_database
from tests.unit.transcripts.rig import payload, user

async def main():
    ingest = Ingest(open_database(Path(sys.argv[1])), Redactor(), Stripper())

    async def client(which):
        said = []
        for n in range(10_000):
            said.append(user(f"question {which} {n}"))
            body = json.dumps(payload(said, f"answer {which} {n}")).encode()
            kept = await ingest.post(TranscriptIngest(body=body))
            print(which, n, kept.head_hash, flush=True)
            said.append({"role": "assistant", "content": f"answer {which} {n}"})

    async with trio.open_nursery() as nursery:
        for which in range(6):
            nursery.start_soon(client, which)

trio.run(main)
"""


def ingest_until_killed(path: Path, acknowledged: int) -> list[str]:
    """Run the child, kill it after so many acknowledgements; all of them, line by line."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True
    )
    assert child.stdout is not None
    lines: list[str] = []
    try:
        while len(lines) < acknowledged:
            lines.append(child.stdout.readline())
    finally:
        os.kill(child.pid, signal.SIGKILL)
        # Turns acknowledged between the last line read and the kill count too.
        lines += child.stdout.read().splitlines()
        child.stdout.close()
        child.wait()
    return [line for line in lines if len(line.split()) == 3 and len(line.split()[2]) == 64]


@pytest.mark.slow
@pytest.mark.parametrize("acknowledged", [1, 30, 200])
def test_every_acknowledged_turn_survives_a_kill_and_is_there_once(tmp_path: Path, acknowledged: int) -> None:
    path = tmp_path / "transcripts.db"
    lines = ingest_until_killed(path, acknowledged)
    assert len(lines) >= acknowledged
    db = sqlite3.connect(path)
    heads = {hash_.hex(): depth for hash_, depth in db.execute("SELECT hash, depth FROM node")}
    for line in lines:
        _, n, head = line.split()
        assert heads[head] == 2 * int(n) + 2
    contents = [bytes(content) for (content,) in db.execute("SELECT content FROM node")]
    assert len(contents) == len(set(contents))
    # Each has its place in the outbox, so the search will receive all of them.
    assert db.execute("SELECT count(*) FROM node").fetchone() == db.execute("SELECT count(*) FROM outbox").fetchone()
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
