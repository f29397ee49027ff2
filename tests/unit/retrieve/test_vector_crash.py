"""Killed at any step of putting, embedding, compacting and saving: after the restart a search finds what the database
says, and no vector of a text that is gone or changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.retrieve.rig import WordEmbedder, embedded, opened
from tests.unit.retrieve.vectors_rig import TINY, assert_searches_as_the_database_says, tended

CHILD = """
import itertools, os, signal, sys, trio
from pathlib import Path
from services.retrieve import segment
from services.retrieve.live_vectors import LiveVectors
from services.retrieve.collection import Collection
from tests.unit.retrieve.rig import WordEmbedder, embedded, group
from tests.unit.retrieve.vectors_rig import TINY, tended

step = itertools.count(1)
last = int(sys.argv[2])

def dies_at_its_turn(work):
    def instead(*arguments, **named):
        if next(step) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **named)
    return instead

# Before each of these something is on disk that was not before.
os.fsync = dies_at_its_turn(os.fsync)
Path.rename = dies_at_its_turn(Path.rename)
LiveVectors.load = dies_at_its_turn(LiveVectors.load)
segment.remove_others = dies_at_its_turn(segment.remove_others)

async def main():
    collection = Collection("notes", Path(sys.argv[1]), trio.CapacityLimiter(4), TINY)
    await collection.load()
    embedder = WordEmbedder()
    for n in itertools.count():
        # Groups are replaced and deleted again and again.
        await collection.put([group(f"g{(3 * n + part) % 20}", f"round{n} piece{part}", "alpha") for part in range(3)])
        await embedded(collection, embedder)
        await collection.delete([f"g{(7 * n) % 20}"])
        await tended(collection)
        print(n, flush=True)

trio.run(main)
"""


def start(folder: Path, last_step: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(last_step)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        text=True,
    )


async def assert_right_after_restart(folder: Path) -> None:
    embedder = WordEmbedder()
    async with opened(folder, limits=TINY) as collection:
        assert collection.vectors.behind == "", "a crash of ours leaves whole files"
        await assert_searches_as_the_database_says(collection)
        part = collection.vectors.index.segment if collection.vectors.index else None
        known = {part.record.name} if part else set()
        there = folder / "notes.vectors"
        assert {path.name for path in there.iterdir()} == known if there.exists() else not known
        # And it goes on from there.
        await embedded(collection, embedder)
        await tended(collection)
        await assert_searches_as_the_database_says(collection)


# The first of the steps is the database's making; some fifteen make one compaction.
@pytest.mark.slow
@pytest.mark.parametrize("last_step", range(2, 24))
async def test_killed_at_each_step_of_a_save(tmp_path: Path, last_step: int) -> None:
    child = start(tmp_path, last_step)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    await assert_right_after_restart(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [0, 2, 9])
async def test_killed_at_any_moment(tmp_path: Path, rounds: int) -> None:
    child = start(tmp_path, 0)
    assert child.stdout is not None
    try:
        for _ in range(rounds + 1):
            assert child.stdout.readline()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    await assert_right_after_restart(tmp_path)
