"""Successive versions of a tree, stored here, in restic and in borg."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.bench.documents.trees import change, children_s, cpu_s, extent, kernel_alone, make_tree, on_disk


def versions(folder: Path, files: int) -> None:
    root = folder / "root"
    tree = root / "tree"

    first = folder / f"first-{files}"
    if not (first / "done").exists():
        shutil.rmtree(first, ignore_errors=True)
        make_tree(first / "tree", files)
        (first / "done").touch()

    def source_tree(version: int) -> None:
        if version:
            change(tree, version)
        else:
            subprocess.run(["cp", "-r", str(first / "tree"), str(tree)], check=True)

    def manuals(version: int) -> None:
        if not version:
            shutil.copytree("/usr/share/doc", tree, symlinks=True, ignore_dangling_symlinks=True)

    _compare(folder, tree, "source tree", source_tree, 3)
    _compare(folder, tree, "/usr/share/doc", manuals, 2)


@dataclass(slots=True)
class _Taken:
    """The cost of each version in one store."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def _compare(folder: Path, tree: Path, name: str, make: Callable[[int], None], count: int) -> None:
    """Add each version to one store after the other, while nothing else runs and from the page cache."""
    work = folder / "stores"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    # Services get their roots when they start, so the folder stays and only its content changes.
    tree.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    taken: dict[str, _Taken] = {}

    def timed(one: str, add: Callable[[], object], used_s: Callable[[], float]) -> None:
        subprocess.run(f"find '{tree}' -type f -exec cat {{}} + > /dev/null; sync", shell=True, check=True)
        began, used = time.monotonic(), used_s()
        add()
        figures = taken.setdefault(one, _Taken())
        figures.wall_s.append(time.monotonic() - began)
        figures.cpu_s.append(used_s() - used)
        print(f"  {one}: {figures.wall_s[-1]:.2f} s, {figures.cpu_s[-1]:.2f} s of CPU", flush=True)

    with kernel_alone(work / "data", tree.parent) as kernel, tempfile.TemporaryFile() as said:
        peers = dict(_peers(work))
        for version in range(count):
            make(version)
            files, size = extent(tree)
            print(f"{name}, version {version + 1}: {files} files, {size / 2**20:.0f} MiB", flush=True)
            kernel.call("kernel_restart", {"service": "documents"})
            kernel.wait_ready("documents")
            timed(
                "linckia",
                lambda: kernel.call("documents_add", {"path": str(tree), "no_ignore": True}, timeout_s=600),
                lambda: cpu_s(kernel.process.pid) + cpu_s(kernel.service("documents")["pid"]),
            )
            # Its remaining indexing waits until the others have had the machine to themselves.
            kernel.call("kernel_stop", {"service": "documents"})
            for peer, command in peers.items():
                place = [f"{work}/borg::v{version}"] if peer == "borg" else []
                timed(
                    peer,
                    partial(subprocess.run, [*command, *place, "."], check=True, cwd=tree, env=_environment(),
                            stdout=said, stderr=said),
                    children_s,
                )  # fmt: skip
        sizes = {"linckia": _packs(work / "data"), **{peer: on_disk(work / peer) for peer in peers}}
        kernel.call("kernel_restart", {"service": "documents"})
        kernel.wait_ready("documents")
        status = kernel.call("documents_status")
        assert status["total_objects"] >= files, status
    for one, figures in taken.items():
        print(f"{one}: {sizes[one] / 2**20:.1f} MiB stored", end="")
        if one != "linckia":
            ours = taken["linckia"]
            wall = " / ".join(f"{a / b:.2f}" for a, b in zip(figures.wall_s, ours.wall_s, strict=True))
            cpu = " / ".join(f"{a / b:.2f}" for a, b in zip(figures.cpu_s, ours.cpu_s, strict=True))
            size_ratio = sizes[one] / sizes["linckia"]
            print(f"; {one} : linckia   time {wall}   CPU time {cpu}   size {size_ratio:.2f}", end="")
        print()
    print(f"of {status['total_bytes'] / 2**20:.0f} MiB, {status['dedup_ratio']:.1%} already existed\n", flush=True)


def _peers(work: Path) -> Iterator[tuple[str, list[str]]]:
    subprocess.run(["restic", "init", "-r", str(work / "restic")], check=True, env=_environment(),
                   stdout=subprocess.DEVNULL)  # fmt: skip
    yield "restic", ["restic", "backup", "-q", "-r", str(work / "restic"), "--compression", "auto"]
    subprocess.run(["borg", "init", "-e", "none", str(work / "borg")], check=True, env=_environment(),
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    yield "borg", ["borg", "create", "-C", "zstd,3"]


def _environment() -> dict[str, str]:
    cache = os.path.join(tempfile.gettempdir(), "linckia-bench")
    return {
        **os.environ,
        "RESTIC_PASSWORD": "bench",
        "RESTIC_CACHE_DIR": f"{cache}-restic",
        "BORG_BASE_DIR": f"{cache}-borg",
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }


def _packs(data: Path) -> int:
    """Return the size of the store without its search index."""
    return sum(path.stat().st_blocks * 512 for path in data.rglob("packs.db*"))
