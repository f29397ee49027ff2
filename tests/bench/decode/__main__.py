"""Files decoded by the hour through the kernel, compared with the same functions in one process.

    scripts/bench decode [KIND…] [--files 200] [--at-once 8] [--keep DIR]

The kinds are PDF, DOCX, XLSX, PPTX and ODT files, whose text is read (`files_read`, `documents_add`), and JPEGs, PNGs
and PDFs, of which a thumbnail is made (`media_inspect`). The peer is one process that calls the same functions of the
service `decode` on the same files: no service, no kernel, no hash, nothing stored. `documents_add` and `media_inspect`
also hash each file and store the result on disk before they answer. Each kind has four rows:

    peer      one process, one file after the other
    one       through the kernel, one call after the other
    at once   through the kernel, --at-once calls at a time; the service decodes one file at a time
    add       documents_add of a folder, until each text is stored

Processor seconds are those of the kernel and all its services. The last columns are
the peer's wall and processor time divided by those of the row. On a busy machine, only the latter is steady.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from tests.bench.decode.corpus import Corpus
from tests.system.running import RunningKernel, connection, running, wait_until

KINDS: Final = {
    "pdf": ("text", "pdf", 1.0), "docx": ("text", "docx", 1.0), "xlsx": ("text", "xlsx", 0.5),
    "pptx": ("text", "pptx", 0.5), "odt": ("text", "odt", 0.5), "jpeg": ("picture", "jpeg", 1.0),
    "png": ("picture", "png", 0.5), "pdf-page": ("picture", "pdf", 1.0),
}  # fmt: skip
"""The work, the format, and the share of `--files`."""
SERVICES: Final = ("documents", "decode", "files", "media")
ADD_TIMEOUT_S: Final = 1800.0


class Taken(NamedTuple):
    """Seconds of a row."""

    wall_s: float
    processor_s: float


def peer(work: str, paths: Sequence[Path]) -> Taken:
    command = [sys.executable, "-m", "tests.bench.decode.peer", work, *map(str, paths)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Taken(*map(float, said.split()))


def processor_s(kernel: RunningKernel) -> float:
    """Return the processor seconds of the kernel and its descendants, with those that have ended."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[pid] = int(fields[1])
            spent[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in parents:
        at = pid
        while at in parents and at != kernel.process.pid:
            at = parents[at]
        total += spent[pid] if at == kernel.process.pid else 0.0
    return total


async def called(kernel: RunningKernel, work: str, paths: Sequence[Path], at_once: int) -> None:
    """Call the operation for each path, `at_once` at a time."""
    left = iter(paths)

    async def client() -> None:
        async with connection(kernel.data_dir) as link:
            for path in left:
                name = "files_read" if work == "text" else "media_inspect"
                answer = await link.call(name, {"path": str(path)})
                assert answer.failure is None, answer.failure
                made: dict[str, Any] = answer.result
                assert made["text"] if work == "text" else made["artifacts"], made

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(client)


def through_the_kernel(kernel: RunningKernel, work: str, paths: Sequence[Path], at_once: int) -> Taken:
    spent, began = processor_s(kernel), time.perf_counter()
    trio.run(called, kernel, work, paths, at_once)
    return Taken(time.perf_counter() - began, processor_s(kernel) - spent)


def added(kernel: RunningKernel, folder: Path) -> Taken:
    """Add a folder and wait until each text is stored; the index may be written later."""
    spent, began = processor_s(kernel), time.perf_counter()
    answer = kernel.call("documents_add", {"path": str(folder)}, timeout_s=ADD_TIMEOUT_S)
    assert not answer["failed"], answer["failed"]
    if answer["text_waiting"]:
        wait_until(lambda: not kernel.call("documents_status")["extraction_waiting"], ADD_TIMEOUT_S)
    return Taken(time.perf_counter() - began, processor_s(kernel) - spent)


def show(kind: str, row: str, count: int, size: int, taken: Taken, compared: Taken) -> None:
    an_hour, mb_s = count / taken.wall_s * 3600, size / taken.wall_s / 1e6
    ratio, spent = compared.wall_s / taken.wall_s, taken.processor_s / count * 1000
    cost = compared.processor_s / max(taken.processor_s, 0.01)
    print(
        f"{kind:<9}{row:<9}{count:>6}{an_hour:>12,.0f}{mb_s:>8.1f}{spent:>10.1f}{ratio:>9.2f} x{cost:>9.2f} x",
        flush=True,
    )


def bench(kernel: RunningKernel, kind: str, paths: Sequence[Path], at_once: int) -> None:
    work = KINDS[kind][0]
    # What `media` has once decoded it answers from its cache, so each half is decoded once.
    halves = paths[1 : 1 + len(paths) // 2], paths[1 + len(paths) // 2 :]
    through_the_kernel(kernel, work, paths[:1], 1)
    alone = [peer(work, halves[0]), peer(work, halves[1])]
    sizes = [sum(path.stat().st_size for path in half) for half in halves]
    both = Taken(*(sum(pair) for pair in zip(*alone, strict=True)))
    show(kind, "peer", len(paths) - 1, sum(sizes), both, both)
    for row, parallel, half, size, compared in zip(("one", "at once"), (1, at_once), halves, sizes, alone, strict=True):
        show(kind, row, len(half), size, through_the_kernel(kernel, work, half, parallel), compared)
    if work == "text":
        each = len(paths) / (len(paths) - 1)
        compared = Taken(both.wall_s * each, both.processor_s * each)
        show(kind, "add", len(paths), sum(sizes), added(kernel, paths[0].parent), compared)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench decode")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--keep", metavar="DIR", type=Path, help="make the files in DIR, and leave them there")
    arguments = parser.parse_args()
    kinds: list[str] = arguments.kinds or list(KINDS)
    if unknown := set(kinds).difference(KINDS):
        parser.error(f"there is no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    print(f"{'kind':<9}{'':<9}{'files':>6}{'files/h':>12}{'MB/s':>8}{'CPU ms':>10}{'wall':>9}  {'CPU':>9}", flush=True)
    with tempfile.TemporaryDirectory() as held:
        folder = arguments.keep or Path(held, "files")
        for kind in kinds:
            _, form, share = KINDS[kind]
            place = folder / kind
            if not place.exists():
                Corpus().write(place, form, max(4, int(arguments.files * share)))
        with running(Path(held, "data"), [folder], services=SERVICES) as kernel:
            for kind in kinds:
                bench(kernel, kind, sorted((folder / kind).rglob(f"*.{KINDS[kind][1]}")), arguments.at_once)


if __name__ == "__main__":
    main()
