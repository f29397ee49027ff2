"""Kills in the middle of `files_edit` and `files_write`: a process changes one file again and again, with the code that
these two use, and is killed at a random moment; the next process continues from the state left behind. At the end the
service starts, and heals what all of them have left.

    python -m tests.faults.text_kills [--kills 1000] [--seed 0]

Printed as JSON: how many kills and acknowledged changes, and all that was wrong, which should be nothing: a file or an
item of the trash that is no whole content, an acknowledged change that is gone, a replaced content that is not in the
trash, an index out of step with the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import stat
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path

import trio
import trio.lowlevel

from services.files.changes.writing import Writing
from services.files.index.tree import Invalidations, Tree
from services.files.operations.index import ListJobs
from services.files.paths import FileRoots
from services.files.store.database import open_database
from services.runtime.roots import Roots
from tests.unit.files.rig import differences, files_service, index

LINES = 4_000
ACK = struct.Struct("qqq")
"""A generation that is on disk, the one before it, and its number in the trash (0: it is not there)."""


def content(generation: int) -> bytes:
    return b"%d\n" % generation * LINES


def generation_of(data: bytes) -> int:
    """Raises AssertionError where it is not one whole content."""
    first = data.partition(b"\n")[0]
    assert first.isdigit(), f"it begins with {first[:40]!r}"
    assert data == content(int(first)), f"it is an incomplete version {int(first)}, or a mixture of several"
    return int(first)


def change_forever(data: Path, root: Path, acknowledged: int) -> None:
    """Change one file until the process is killed."""
    database = open_database(data / "files.db")
    tree = Tree(database, Invalidations(), None)
    # Unfinished work is recorded and repaired at the next start.
    writing = Writing(tree, FileRoots(Roots([root])), data, lambda intent: None)
    path = str(root / "file.txt")
    generation = generation_of(Path(path).read_bytes())
    while True:
        before, generation = generation, generation + 1
        new, keep = content(generation), generation % 2 == 0
        if generation % 5 == 0:
            writing.create(f"{root}/made/{generation}/{os.getpid()}.txt", new, lambda: None)
        _, trash_id = writing.rewrite(path, lambda _: new, if_match=None, keep=keep, answer=lambda *_: None)  # noqa: B023  # called at once
        os.write(acknowledged, ACK.pack(generation, before, trash_id or 0))


def torment(data: Path, root: Path, kills: int, seed: int) -> tuple[list[str], dict[int, int]]:
    """Kill the process `kills` times; return the errors found, and the generations in the trash by number."""
    chance = random.Random(seed)
    wrong: list[str] = []
    kept: dict[int, int] = {}
    last = 0
    for kill in range(kills):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            try:
                change_forever(data, root, writing)
            except BaseException:  # noqa: BLE001  # it ends here, whatever it is, and not in what its parent holds
                traceback.print_exc()
                os._exit(1)
        os.close(writing)
        with open(reading, "rb") as acks:
            # Once it is at work, or has yet to open its database.
            wanted = chance.randrange(4)
            told = b"".join(acks.read(ACK.size) for _ in range(wanted))
            time.sleep(chance.random() * 0.02)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if not os.WIFSIGNALED(status):
                wrong.append(f"before kill {kill} it had failed")
            told += acks.read()
        for generation, before, trash_id in ACK.iter_unpack(told[: len(told) // ACK.size * ACK.size]):
            last = generation
            if trash_id:
                kept[trash_id] = before
        try:
            found = generation_of((root / "file.txt").read_bytes())
            assert last <= found <= last + 1, f"its version is {found}, but {last} was acknowledged"
            assert stat.S_IMODE((root / "file.txt").stat().st_mode) == 0o640, "its mode has changed"
            last = found
        except (AssertionError, OSError) as error:
            wrong.append(f"after kill {kill}: {error}")
    return wrong, kept


async def audit(data: Path, root: Path, trash: Path, kept: dict[int, int]) -> list[str]:
    """Return the errors found after the next start."""
    wrong: list[str] = []
    async with files_service(data, root) as bench:
        # Paths that were created together with their directories are scanned in parallel with the start.
        while (await bench.call(ListJobs(active_only=True))).jobs:
            await trio.lowlevel.checkpoint()
    wrong += differences(data, root)
    found = await trio.to_thread.run_sync(lambda: [*root.rglob("*.txt"), *trash.iterdir()])
    for path in (each for each in found if each.suffix != ".json"):
        try:
            generation = generation_of(path.read_bytes())
            assert kept.pop(int(path.name) if path.parent == trash else -1, generation) == generation, "it is another"
        except AssertionError as error:
            wrong.append(f"{path}: {error}")
    return wrong + [f"{generation} is not in the trash as {id_}" for id_, generation in kept.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data, root = Path(folder) / "data", Path(folder).resolve() / "root"
        root.mkdir()
        file = root / "file.txt"
        file.write_bytes(content(0))
        file.chmod(0o640)

        async def begin() -> Path:
            async with files_service(data, root) as bench:
                await index(bench, root)
            return next(data.rglob("files.db")).parent

        own = trio.run(begin)
        wrong, kept = torment(own, root, given.kills, given.seed)
        count = len(kept)
        (own / "trash").mkdir(exist_ok=True)
        wrong += trio.run(audit, data, root, own / "trash", kept)
    print(json.dumps({"kills": given.kills, "kept in the trash": count, "wrong": wrong[:20]}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
