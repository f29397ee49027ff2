"""The files that the benchmarks store, and the kernel that stores them."""

from __future__ import annotations

import contextlib
import os
import random
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from tests.system.running import RunningKernel, running

LARGEST = 512 * 1024


def sources() -> Iterator[Path]:
    """Yield files of this installation, except compiled and very large ones."""
    for place in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), "/usr/share", "/usr/lib")):
        for folder, folders, names in os.walk(place):
            folders.sort()
            folders[:] = [one for one in folders if one not in ("__pycache__", "site-packages", "node_modules")]
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in (".so", ".pyc", ".a") or path.is_symlink() or not path.is_file():
                    continue
                if 0 < path.stat().st_size <= LARGEST:
                    yield path


def make_tree(tree: Path, count: int, note: str = "") -> int:
    """Copy `count` files; returns their total size."""
    size = 0
    for number, path in enumerate(sources()):
        if number == count:
            break
        place = tree / f"{number // 400:03}" / f"{number:06}-{path.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() + note.encode()
        place.write_bytes(data)
        size += len(data)
    return size


def change(tree: Path, seed: int) -> None:
    """Make the next version: some files changed, some new, some deleted."""
    rng = random.Random(seed)
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    for path in rng.sample(files, len(files) // 15):
        data = path.read_bytes()
        at = rng.randrange(len(data) + 1)
        path.write_bytes(data[:at] + f"changed in version {seed}\n".encode() + data[at:])
    for path in rng.sample(files, len(files) // 60):
        path.unlink(missing_ok=True)
    for path in rng.sample(files, len(files) // 60):
        if path.exists():
            path.with_name(f"new-{seed}-{path.name}").write_bytes(path.read_bytes() + f"version {seed}\n".encode())


def extent(tree: Path) -> tuple[int, int]:
    """Return the number of files and bytes."""
    sizes = [path.stat().st_size for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    return len(sizes), sum(sizes)


def on_disk(folder: Path) -> int:
    """Return the bytes that the file system allocates to the files."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def kernel_alone(data: Path, root: Path) -> Iterator[RunningKernel]:
    """Run a kernel without the services that would embed the stored files at the same time."""
    with running(data, [root], all_ready=False) as kernel:
        kernel.wait_ready("documents")
        for name in kernel.services():
            if name not in ("documents", "echo"):
                kernel.call("kernel_stop", {"service": name})
        yield kernel


def until_idle(kernel: RunningKernel, at_most_s: float = 300.0) -> None:
    """Wait until the service has no background work left."""
    give_up = time.monotonic() + at_most_s
    pid = kernel.service("documents")["pid"]
    quiet = 0
    while quiet < 2 and time.monotonic() < give_up:
        before = cpu_s(pid)
        time.sleep(0.4)
        quiet = quiet + 1 if cpu_s(pid) - before < 0.03 else 0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    """Return the CPU time of the commands that have ended."""
    now = os.times()
    return now.children_user + now.children_system
