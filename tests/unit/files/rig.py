"""The service `files` in this process, over real folders, and what its answers must agree with: the disk itself."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from services.files.main import open_service
from services.files.operations.index import Index, IndexResult
from services.files.paths import to_text
from tests.in_process import Bench, services_in_process


@asynccontextmanager
async def files_service(folder: Path, *roots: Path, **settings: Any) -> AsyncIterator[Bench]:
    """The service over `roots`, its data in `folder`."""
    async with services_in_process(
        {"files": open_service}, folder, roots=[root.resolve() for root in roots], settings={"files": settings}
    ) as bench:
        yield bench
        if "files" in bench.running:
            await bench.stop("files")


async def index(bench: Bench, root: Path, **options: Any) -> IndexResult:
    """Scan now, and wait."""
    return await bench.call(Index(root=str(root), async_=False, **{"force": True, **options}))


def make_tree(root: Path, chance: random.Random, entries: int) -> None:
    """Directories, files of chance sizes, symbolic and hard links."""
    folders: list[Path] = [root]
    files: list[Path] = []
    root.mkdir(exist_ok=True)
    for number in range(entries):
        folder = chance.choice(folders)
        what = chance.random()
        path = folder / f"{chance.choice(['a', 'B', 'ü', 'x_y', '100%'])}{number}"
        if what < 0.25:
            path.mkdir()
            folders.append(path)
        elif what < 0.35 and files:
            os.link(chance.choice(files), path)
        elif what < 0.45:
            path.symlink_to(chance.choice([".", "/", "nowhere"]))
        else:
            path.with_suffix(".txt").write_bytes(b"x" * chance.choice([0, 1, 4096, 10_000]))
            files.append(path.with_suffix(".txt"))


def change_tree(root: Path, chance: random.Random, changes: int) -> None:
    """Make, write, remove, rename and link in a tree that `make_tree` made.

    Nothing is written through a link of this very round: should that name be gone again before anybody looked, only
    the next reconciliation would find that the file's other names show another size.
    """
    linked: set[int] = set()
    for _ in range(changes):
        below = [Path(folder) / name for folder, folders, files in os.walk(root) for name in (*folders, *files)]
        if not below:
            return
        path = chance.choice(below)
        what = chance.randrange(6)
        is_folder = path.is_dir() and not path.is_symlink()
        if what == 0 and is_folder:
            make_tree(path / f"new{chance.getrandbits(64)}", chance, 12)
        elif what == 1 and path.is_file() and not path.is_symlink() and path.stat().st_ino not in linked:
            path.write_bytes(b"y" * chance.choice([0, 5, 20_000]))
        elif what == 2 and not is_folder:
            path.unlink()
        elif what == 3 and is_folder and not any(path.iterdir()):
            path.rmdir()
        elif what == 4:
            path.rename(path.with_name(f"renamed{chance.getrandbits(64)}"))
        elif what == 5 and path.is_file() and not path.is_symlink():
            linked.add(path.stat().st_ino)
            os.link(path, chance.choice([root, path.parent]) / f"link{chance.getrandbits(64)}")


def write(path: bytes, content: bytes) -> None:
    """A file whose name is any bytes."""
    with open(path, "wb") as file:
        file.write(content)


class OnDisk:
    """What a directory holds, as a walk of its own finds it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.entries: dict[str, os.stat_result] = {self.root: os.lstat(root)}
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                self.entries[path] = os.lstat(path)

    def folders(self) -> list[str]:
        """Yield the directories, each before its contents."""
        return [path for path, status in self.entries.items() if stat.S_ISDIR(status.st_mode)]

    def sums(self, folder: str) -> tuple[int, int, int, int]:
        """Size, disk size (each inode once, directories included), files, directories below."""
        size = disk = files = directories = 0
        seen = set()
        for path, status in self.entries.items():
            if path != folder and not path.startswith(folder + "/"):
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                disk += status.st_blocks * 512
            if stat.S_ISDIR(status.st_mode):
                directories += path != folder
            else:
                size += status.st_size
                files += stat.S_ISREG(status.st_mode)
        return size, disk, files, directories


def stored(folder: Path, *, hidden: bool = False) -> dict[str, tuple[int, ...]]:
    """All rows: inode, size, disk size, files, directories, mtime by path; with `hidden` all that is scanned."""
    # Not by Python's own sqlite3: two copies of SQLite in one process take each other's locks away.
    db = apsw.Connection(str(folder / "files/files.db"), flags=apsw.SQLITE_OPEN_READONLY)
    columns = "inode, size, disk, files, directories, mtime"
    entries = f"SELECT f.path || e.name, {columns} FROM entry e JOIN folder f ON f.id = e.parent WHERE e.scanned <> 0"
    rows = list(db.execute(entries if hidden else f"SELECT path, {columns} FROM node"))
    db.close()
    return {row[0]: row[1:] for row in rows}


def differences(folder: Path, *roots: Path, hidden: bool = False) -> list[str]:
    """Describe the differences between the index (with `hidden`, all of its rows) and the disk below `roots`."""
    found = stored(folder, hidden=hidden)
    wrong = []
    for root in roots:
        disk = OnDisk(root)
        inside = {path: row for path, row in found.items() if path == str(root) or path.startswith(f"{root}/")}
        wrong += [f"{path} is not there" for path in inside.keys() - {to_text(path) for path in disk.entries}]
        for path, status in disk.entries.items():
            row = inside.get(to_text(path))
            if row is None:
                wrong.append(f"{path} is missing")
            elif stat.S_ISDIR(status.st_mode):
                if (row[0], *row[1:5], row[5]) != (status.st_ino, *disk.sums(path), status.st_mtime_ns):
                    wrong.append(f"{path}: {row} is not {(status.st_ino, *disk.sums(path), status.st_mtime_ns)}")
            elif row != (status.st_ino, status.st_size, status.st_blocks * 512, 0, 0, status.st_mtime_ns):
                wrong.append(f"{path}: {row}")
    return wrong


def followed(data: Path) -> int:
    """Subscriptions that the watcher was not yet told the end of."""
    db = apsw.Connection(str(data / "files/files.db"), flags=apsw.SQLITE_OPEN_READONLY)
    ((count,),) = db.execute("SELECT count(*) FROM follow")
    db.close()
    return int(count)
