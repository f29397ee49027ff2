"""Killed in the middle of its work and restarted: nothing is lost, nothing is there twice, every id is unchanged."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from proto.ops.retrieve import Group
from services.knowledge.ids import ids_of
from services.knowledge.notes.files import Place
from tests.unit.knowledge.rig import MemorySearch, notes_service, settled, write

NOTES = 400
REPOSITORY = Path(__file__).parents[3]

_decoder = msgspec.json.Decoder(Group)


class LoggedSearch(MemorySearch):
    """A search whose every put and delete is on disk before it is answered, as the true one's is."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log
        for entry in replay(log):
            if isinstance(entry, Group):
                self.groups[entry.id] = entry
            else:
                self.groups.pop(entry, None)
        outer = self

        class Recorder(dict[str, Group]):
            def update(self, groups: dict[str, Group]) -> None:  # type: ignore[override]  # only as the rig calls it
                outer._append([msgspec.json.encode(group) for group in groups.values()])
                super().update(groups)

            def pop(self, key: str) -> Group:  # type: ignore[override]  # only as the rig calls it
                outer._append([msgspec.json.encode({"deleted": key})])
                return super().pop(key)

        self.groups = Recorder(self.groups)

    def _append(self, lines: list[bytes]) -> None:
        with self._log.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        # Who waits to kill this process right after it acknowledged so much, reads along.
        print(len(lines), flush=True)


def replay(log: Path) -> Iterator[Group | str]:
    if not log.exists():
        return
    for line in log.read_bytes().split(b"\n")[:-1]:
        yield msgspec.json.decode(line)["deleted"] if line.startswith(b'{"deleted"') else _decoder.decode(line)


async def _serve(folder: Path, root: Path) -> None:
    async with notes_service(folder, root, search=LoggedSearch(folder / "log")):
        await trio.sleep_forever()


def ids_by_path(folder: Path) -> dict[str, str]:
    with sqlite3.connect(folder / "knowledge/notes.db") as connection:
        found = dict(connection.execute("SELECT path, id FROM node").fetchall())
    connection.close()
    return found


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(2))
def test_ingest_that_is_killed_again_and_again_ends_complete(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root, folder = tmp_path / "root", tmp_path / "data"
    folder.mkdir()
    texts: dict[str, str] = {}

    def change(path: str, text: str | None) -> None:
        if text is None:
            (root / path).unlink()
            del texts[path]
        else:
            write(root, path, text)
            texts[path] = text

    for number in range(NOTES):
        change(f"d{number % 7}/n{number % (NOTES // 2)}.md", f"# N\n\nfirst {number} [[n{number + 1}]]")
    log = folder / "log"
    for kill in range(4):
        command = [sys.executable, "-m", __name__, str(folder), str(root)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
        assert child.stdout is not None
        watchdog = threading.Timer(30, child.kill)
        watchdog.start()
        with child.stdout:
            if kill < 3:
                left = chance.choice([1, 60, 110])
                while left > 0 and (line := child.stdout.readline()):
                    left -= int(line)
                assert left <= 0, "the child died by itself"
            else:
                # The later ones are killed at any moment at all.
                trio.run(trio.sleep, chance.uniform(0.5, 1.5))
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
        watchdog.cancel()
        for path in chance.sample(sorted(texts), 40):
            change(path, chance.choice([None, f"# N\n\nedited {kill} {path}"]))
        for number in range(20):
            change(f"new{kill}/m{number}.md", f"# M\n\nnew {kill} {number}")

    search = LoggedSearch(log)

    async def finish() -> None:
        async with notes_service(folder, root, search=search) as bench:
            await settled(bench, len(texts), within_s=30)
            await settled(bench, len(texts), within_s=30)

    trio.run(finish)
    final = ids_by_path(folder)
    assert final == {place.path: id_ for place, id_ in ids_of([Place(str(root), path) for path in texts], []).items()}
    assert {str(group.metadata["path"]): group.id for group in search.groups.values()} == final
    for group in search.groups.values():
        assert group.items[-1].text == texts[str(group.metadata["path"])]


def test_the_double_s_log_keeps_everything_it_acknowledged(tmp_path: Path) -> None:
    """The double itself must keep everything it acknowledged, or the test above would prove nothing."""
    search = LoggedSearch(tmp_path / "log")
    search.groups.update({"a": Group(id="a", items=[]), "b": Group(id="b", items=[])})
    search.groups.pop("a")
    assert sorted(LoggedSearch(tmp_path / "log").groups) == ["b"]


if __name__ == "__main__":
    trio.run(_serve, Path(sys.argv[1]), Path(sys.argv[2]))
