"""Killed at any step of putting, embedding, compacting, saving, and taking another model's vectors: after the restart a
search finds what the database says, and no vector of a text that is gone or changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.retrieve.item_store import meta
from tests.unit.retrieve.rig import WordEmbedder, embedded, opened
from tests.unit.retrieve.vectors_rig import TINY, assert_searches_as_the_database_says, tended

CHILD = """
import itertools, json, os, signal, sys, trio
from pathlib import Path
from services.retrieve.index import segment
from services.retrieve.index.live_vectors import LiveVectors
from services.retrieve.local_collection import LocalCollection
from tests.unit.retrieve.rig import WordEmbedder, embedded, group
from tests.unit.retrieve.vectors_rig import TINY, tended

step = itertools.count(1)

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

async def work(folder):
    collection = LocalCollection("notes", Path(folder), trio.CapacityLimiter(4), TINY)
    await collection.load()
    embedder = WordEmbedder()
    for n in itertools.count():
        # Groups are replaced and deleted again and again.
        await collection.put([group(f"g{(3 * n + part) % 20}", f"round{n} piece{part}", "alpha") for part in range(3)])
        # All get vectors of another model, then and again.
        embedder.fingerprint = f"words:{1 + n // 2 % 2}"
        await collection.adopt(embedder.fingerprint, 64)
        await embedded(collection, embedder)
        await collection.delete([f"g{(7 * n) % 20}"])
        await tended(collection)
        if not last:
            print(n, flush=True)

# What was imported serves every try, each of which is a process of its own.
for line in sys.stdin:
    folder, last = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            trio.run(work, folder)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def tries() -> Iterator[subprocess.Popen[str]]:
    """A process that takes a folder and a step, kills a child that works there at that step, and prints how the child
    ended.
    """
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True
    ) as process:
        yield process


def ask(tries: subprocess.Popen[str], folder: Path, last_step: int) -> None:
    assert tries.stdin is not None
    print(json.dumps([str(folder), last_step]), file=tries.stdin, flush=True)


def child_of(tries: subprocess.Popen[str]) -> int:
    (pid,) = Path(f"/proc/{tries.pid}/task/{tries.pid}/children").read_text().split()
    return int(pid)


def answer(tries: subprocess.Popen[str]) -> int:
    """Return how the process ended; if it is not killed, the number of each of its rounds comes first."""
    assert tries.stdout is not None
    return int(tries.stdout.readline())


async def assert_right_after_restart(folder: Path) -> None:
    embedder = WordEmbedder()
    async with opened(folder, limits=TINY) as collection:
        assert collection.coming is None or len(collection.vectors), (
            "vectors of the previous model are searched meanwhile"
        )
        await assert_searches_as_the_database_says(collection)
        part = collection.vectors.index.segment if collection.vectors.index else None
        known = {part.record.name} if part else set()
        saved = await collection.on_reader(lambda db: meta(db, "segments"))
        assert bool(part) is (saved is not None and '"segment":null' not in saved), (
            "a killed process leaves whole files"
        )
        there = folder / "notes.vectors"
        assert {path.name for path in there.iterdir()} == known if there.exists() else not known
        # And it goes on from there.
        await embedded(collection, embedder)
        await tended(collection)
        await assert_searches_as_the_database_says(collection)


# The first of the steps is the database's making; some fifteen make one compaction, and as
# many a switch to another model.
@pytest.mark.slow
@pytest.mark.sample(8)
@pytest.mark.parametrize("last_step", range(2, 48))
async def test_killed_at_each_step_of_a_save(tries: subprocess.Popen[str], tmp_path: Path, last_step: int) -> None:
    ask(tries, tmp_path, last_step)
    assert answer(tries) == -signal.SIGKILL
    await assert_right_after_restart(tmp_path)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("rounds", [0, 2, 9])
async def test_killed_at_any_moment(tries: subprocess.Popen[str], tmp_path: Path, rounds: int) -> None:
    ask(tries, tmp_path, 0)
    for number in range(rounds + 1):
        assert answer(tries) == number
    os.kill(child_of(tries), signal.SIGKILL)
    # It may have come further meanwhile.
    while (code := answer(tries)) >= 0:
        pass
    assert code == -signal.SIGKILL
    await assert_right_after_restart(tmp_path)
