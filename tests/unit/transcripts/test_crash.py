"""Whatever was acknowledged is there after SIGKILL, once; and what shares a commit does not share its failures."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from proto.errors import OperationError
from services.transcripts.store.database import Store

CHILD = """
import json, sys, trio
from pathlib import Path
from services.transcripts.intake.ingest import Ingest
from services.transcripts.search.passages import Stripper
from services.transcripts.intake.redaction import Redactor
from services.transcripts.store.database import Store
from tests.unit.transcripts.rig import payload, user

async def main():
    store = Store(Path(sys.argv[1]))
    ingest = Ingest(store, Redactor(), Stripper())

    async def client(which):
        said = []
        for n in range(10_000):
            said.append(user(f"question {which} {n}"))
            kept = await ingest.post(json.dumps(payload(said, f"answer {which} {n}")).encode(), batch=False)
            print(which, n, kept.head_hash, flush=True)
            said.append({"role": "assistant", "content": f"answer {which} {n}"})

    async with trio.open_nursery() as nursery:
        store.begin(nursery)
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
        # What was acknowledged between the last line read and the kill counts too.
        lines += child.stdout.read().splitlines()
        child.stdout.close()
        child.wait()
    return [line for line in lines if len(line.split()) == 3 and len(line.split()[2]) == 64]


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
    # Each has its place in the outbox: the search will be told of all.
    assert db.execute("SELECT count(*) FROM node").fetchone() == db.execute("SELECT count(*) FROM outbox").fetchone()
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_changes_that_arrive_together_share_a_commit_and_not_their_failures(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        store = Store(tmp_path / "t.db")
        failed: list[int] = []

        async def write(n: int) -> None:
            def change(db: sqlite3.Connection) -> None:
                db.execute("INSERT INTO setting VALUES(?, '')", (f"name {n}",))
                if n % 10 == 3:
                    raise OperationError("not this one")

            try:
                await store.write(change)
            except OperationError:
                failed.append(n)

        async with trio.open_nursery() as writers:
            for n in range(100):
                writers.start_soon(write, n)
            await trio.testing.wait_all_tasks_blocked()
            store.begin(nursery)
        assert sorted(failed) == list(range(3, 100, 10))
        kept = await store.read(lambda db: db.execute("SELECT count(*) FROM setting").fetchone()[0])
        assert kept == 90
        assert store.commits < 10
        await store.close()


async def test_a_full_disk_fails_the_change_and_changes_nothing(tmp_path: Path) -> None:
    def fill(db: sqlite3.Connection, size: int) -> None:
        db.execute("INSERT INTO setting VALUES('big', ?)", ("x" * size,))

    async with trio.open_nursery() as nursery:
        store = Store(tmp_path / "t.db")
        store.begin(nursery)
        await store.write(lambda db: db.execute("PRAGMA max_page_count=60").fetchall())
        with pytest.raises(
            OperationError, match=r"cannot be written \(database or disk is full\); nothing was changed"
        ):
            await store.write(lambda db: fill(db, 10_000_000))
        assert await store.read(lambda db: db.execute("SELECT count(*) FROM setting").fetchone()) == (0,)
        await store.write(lambda db: fill(db, 10))
        await store.close()


async def test_a_database_that_is_damaged_is_said_to_be_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "transcripts.db"
    path.write_bytes(b"this is no database, but it is somebody's" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        Store(path)
    assert path.read_bytes().startswith(b"this is no database")
