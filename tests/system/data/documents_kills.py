"""Kill the store of documents at random points of its work, and see that nothing acknowledged is lost.

Each round adds texts and a directory, deletes, and has garbage collected, all at once; somewhere in between the process
is killed.  Acknowledged documents have to be there, whole, and found; others may be there, but only whole.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import trio

from tests.system.running import Connection, RunningKernel, connection

LARGE_BYTES = 5 * 1024 * 1024
"""Long enough to be cut into chunks."""


class Acknowledged:
    """Hashes of acknowledged documents by path, and paths whose presence is uncertain."""

    def __init__(self) -> None:
        self.there: dict[str, str] = {}
        self.unknown: set[str] = set()
        self.snapshots: list[str] = []


async def kill_at_random_points(kernel: RunningKernel, root: Path, kills: int) -> Acknowledged:
    """Raises AssertionError where something is lost or damaged; `root` is one of the kernel's."""
    rng = random.Random(1)
    known = Acknowledged()
    for turn in range(kills):
        folder = root / f"tree-{turn % 3}"
        _fill(folder, rng, turn)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_texts, kernel, known, turn)
            nursery.start_soon(_directory, kernel, known, folder)
            nursery.start_soon(_delete, kernel, known, turn)
            await trio.sleep(rng.uniform(0.0, 0.25))
            await trio.to_thread.run_sync(kernel.kill, "documents")
        await trio.to_thread.run_sync(check, kernel, known)
    return known


def _fill(folder: Path, rng: random.Random, turn: int) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(60):
        if rng.random() < 0.7:
            (folder / f"file-{n}.txt").write_text(f"turn {turn} file {n} " + "word " * rng.randrange(400))
    (folder / "large.bin").write_bytes(rng.randbytes(LARGE_BYTES))


async def _call(line: Connection, name: str, params: dict[str, Any]) -> Any:
    answer = await line.call(name, params)
    assert answer.failure is None or answer.failure["kind"] in ("unavailable", "maybe_executed", "overloaded")
    return answer.result


async def _texts(kernel: RunningKernel, known: Acknowledged, turn: int) -> None:
    async with connection(kernel.data_dir) as line:
        for n in range(12):
            path, text = f"text-{n}", f"marker{turn}x{n} in turn {turn}"
            known.unknown.add(path)
            answer = await _call(line, "documents_add", {"name": path, "content": text})
            if answer is not None:
                known.there[path] = hashlib.sha256(text.encode()).hexdigest()
                assert answer["hash"] == known.there[path]
                known.unknown.discard(path)


async def _directory(kernel: RunningKernel, known: Acknowledged, folder: Path) -> None:
    paths = _hashes(folder)
    known.unknown.update(paths)
    async with connection(kernel.data_dir) as line:
        answer = await _call(line, "documents_add", {"path": str(folder)})
    if answer is not None:
        assert answer["files"] == len(paths), answer
        known.there.update(paths)
        known.unknown.difference_update(paths)
        known.snapshots.append(answer["snapshot_id"])


def _hashes(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


async def _delete(kernel: RunningKernel, known: Acknowledged, turn: int) -> None:
    """Deleting gives the collector of garbage its work."""
    gone = f"/tree-{(turn + 1) % 3}/"
    known.unknown.update(path for path in known.there if gone in path)
    async with connection(kernel.data_dir) as line:
        answer = await line.call("documents_delete", {"name": f"*{gone}*"})
        if answer.failure is None:
            for path in [path for path in known.unknown if gone in path]:
                known.unknown.discard(path)
                known.there.pop(path, None)
        while len(known.snapshots) > 2:
            await line.call("documents_delete", {"snapshot_id": known.snapshots.pop(0)})


def check(kernel: RunningKernel, known: Acknowledged) -> None:
    """Every acknowledged document is listed with its hash and found by grep; every content is what its hash says."""
    kernel.wait_ready("documents")
    listed = kernel.call("documents_list")
    held = {one["path"]: one["hash"] for one in listed["documents"]}
    for path, hash_ in known.there.items():
        if path not in known.unknown:
            assert held.get(path) == hash_, f"{path} was acknowledged with {hash_}, but is {held.get(path)}"
    verified = kernel.call("documents_verify")
    assert (verified["damaged"], verified["problems"]) == ([], []), verified
    marked = {path for path in known.there if path.startswith("text-") and path not in known.unknown}
    matches = kernel.call("documents_grep", {"pattern": r"marker\d+x\d+", "limit": 10_000})
    assert marked <= {match["file"] for match in matches["matches"]}
