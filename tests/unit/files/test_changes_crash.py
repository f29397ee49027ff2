"""Killed in the middle of moves and deletions: at the next start the index is what the disk is, and sets are whole."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest
import trio

from services.files.operations.changes import DeleteFiles, ListTrash, MoveFiles, Relocation, RestoreFiles, RestoreItem
from services.files.operations.reading import DbDiagnose
from services.files.query import sets
from tests.unit.files.rig import OnDisk, differences, files_service, index, make_tree

REPOSITORY = Path(__file__).parents[3]
KILLS = 2
ITEMS = 25


async def _change(data: Path, root: Path, seed: int) -> None:
    """Move and delete without end; a line for each call that was answered."""
    chance = random.Random(seed)
    async with files_service(data, root, trash=True) as bench:
        print("ready", flush=True)
        while True:
            there = list(OnDisk(root).entries)[1:]
            moves = [
                Relocation(from_=source, to=f"{root}/m{chance.getrandbits(60)}")
                for source in chance.sample(there, min(ITEMS, len(there)))
            ]
            await bench.call(MoveFiles(moves=moves))
            gone = await bench.call(DeleteFiles(paths=[chance.choice(list(OnDisk(root).entries)[1:])], force=True))
            trash_id = gone.results[0].trash_id
            assert trash_id is not None
            await bench.call(RestoreFiles(items=[RestoreItem(trash_id=trash_id)]))
            print("done", flush=True)


@pytest.mark.slow
async def test_changes_that_are_killed_are_in_the_index_at_the_next_start(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    data.mkdir()
    make_tree(root, random.Random(21), 200)
    async with files_service(data, root, trash=True) as bench:
        await index(bench, root)
    for round_ in range(KILLS):
        await trio.to_thread.run_sync(_kill_after, data, root, round_)
        async with files_service(data, root, trash=True) as bench:
            assert differences(data, root) == []
            assert (await bench.call(DbDiagnose())).wrong_sums == 0
            in_trash = (await bench.call(ListTrash())).items
            if in_trash:
                await bench.call(RestoreFiles(items=[RestoreItem(trash_id=item.trash_id) for item in in_trash]))
                assert differences(data, root) == []


@pytest.mark.slow
async def test_members_of_a_set_stay_in_it_through_moves_that_are_killed(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    data.mkdir()
    make_tree(root, random.Random(22), 150)
    async with files_service(data, root) as bench:
        await index(bench, root)
    database = apsw.Connection(str(data / "files/files.db"))
    with database:
        set_id = sets.make(database, "all")
        database.execute("INSERT INTO member SELECT ?, id, 0 FROM node", (set_id,))
    members = database.execute("SELECT count(*) FROM member").get
    database.close()
    for round_ in range(2):
        await trio.to_thread.run_sync(_kill_after, data, root, 100 + round_, "moves")
        async with files_service(data, root):
            assert differences(data, root) == []
        database = apsw.Connection(str(data / "files/files.db"))
        assert database.execute("SELECT count(*) FROM member").get == members
        database.close()


async def _move(data: Path, root: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with files_service(data, root) as bench:
        print("ready", flush=True)
        while True:
            there = list(OnDisk(root).entries)[1:]
            sources = chance.sample(there, min(ITEMS, len(there)))
            moves = [Relocation(from_=source, to=f"{root}/m{chance.getrandbits(60)}") for source in sources]
            await bench.call(MoveFiles(moves=moves))
            print("done", flush=True)


def _kill_after(data: Path, root: Path, seed: int, what: str = "changes") -> None:
    """Run the service over a folder and kill it amid its changes."""
    command = [sys.executable, "-m", __name__, str(data), str(root), str(seed), what]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    assert child.stdout is not None
    watchdog = threading.Timer(30, child.kill)
    watchdog.start()
    with child.stdout:
        for _ in range(2 + seed % 3):
            assert child.stdout.readline(), "the child died by itself"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    watchdog.cancel()


if __name__ == "__main__":
    trio.run(_move if sys.argv[4] == "moves" else _change, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
