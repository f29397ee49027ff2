"""The file system index compared with `find -printf`, `gdu` and `ncdu`: scan, rescan, memory, sizes, filters.

    scripts/bench files [--entries 500000] [--folder DIR] [--rows 1000000]

Scans run in a separate kernel. Times are processor seconds of all its scanning processes, with wall time in brackets.
Peers that are not installed are named and left out. Sizes of 1,000 directories must equal those of `du`. Filters are
the tools themselves over a resource set of `--rows` entries, p50 and p95 in milliseconds: each as the first call after
a start, then repeatedly.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import trio

from proto.operation import Params
from services.files.main import open_service
from services.files.operations.reading import Navigate
from services.files.operations.resources import (
    ResourceFuzzyMatch,
    ResourceIs,
    ResourceMetricRange,
    ResourceSearch,
    ResourceSum,
    ResourceTimeRange,
    TextField,
    TextMode,
)
from services.files.operations.space import SpaceSummaryOf, TopFiles
from services.files.query import sets
from services.files.store import schema
from services.files.store.database import open_database
from tests.in_process import Bench, services_in_process
from tests.system.running import RunningKernel, running

FILES_EACH = 12
RESCANS = 3
SCANNERS = ("files", "compare")
EXTENSIONS = (".txt", ".jpg", ".py", ".mp4", ".JSON", "")


def make_tree(root: Path, entries: int) -> None:
    """Make directories of a dozen files, four levels deep; files have sizes but no content."""
    made = number = 0
    while made < entries:
        folder = root / f"project{number // 400}/module{number // 20 % 20}/folder number {number % 20}"
        folder.mkdir(parents=True, exist_ok=True)
        made += 1
        for each in range(FILES_EACH):
            name = f"some file {number}-{each}{EXTENSIONS[(number + each) % len(EXTENSIONS)]}"
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
            os.ftruncate(descriptor, number * each % 9999)
            os.close(descriptor)
            made += 1
        number += 1


def spent(kernel: RunningKernel) -> dict[str, float]:
    """Return the processor seconds of each of `SCANNERS` until now."""
    found = {}
    for name in SCANNERS:
        fields = Path(f"/proc/{kernel.service(name)['pid']}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def memory_of(kernel: RunningKernel, name: str) -> float:
    """Return the peak memory of a service so far, in MiB."""
    lines = Path(f"/proc/{kernel.service(name)['pid']}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


class Scanned(NamedTuple):
    """Entries, processor seconds of all processes, wall seconds, and a note."""

    entries: int
    cpu: float
    wall: float
    note: str


def scan(kernel: RunningKernel, tree: Path) -> Scanned:
    """Request a scan now, and wait for it."""
    before, began = spent(kernel), time.perf_counter()
    done = kernel.call("index", {"root": str(tree), "async": False, "force": True}, timeout_s=3600)
    wall = time.perf_counter() - began
    cpu = {name: seconds - before[name] for name, seconds in spent(kernel).items()}
    note = f"{memory_of(kernel, 'files'):.0f} MiB; " + ", ".join(f"{name} {value:.2f} s" for name, value in cpu.items())
    return Scanned(done["files"] + done["directories"], sum(cpu.values()), wall, note)


def show(name: str, entries: int, cpu: float, wall: float, note: str = "") -> None:
    """Print one line."""
    print(
        f"{name:<25} {cpu:6.2f} s ({wall:6.2f} s)  {entries / cpu:9,.0f} entries/cpu-s ({entries / wall:9,.0f}/s) ",
        note,
        flush=True,
    )


def timed(command: list[str]) -> tuple[float, float]:
    """Return the processor and wall seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def scans(tree: Path, data: Path) -> None:
    """Scan a tree in the page cache with a separate kernel and with the peers."""
    timed(["find", str(tree), "-printf", "%p %s\\n"])
    with running(data, [tree]) as kernel:
        first = scan(kernel, tree)
        again = [scan(kernel, tree) for _ in range(RESCANS)]
    show("first scan", *first)
    for each in again:
        show("rescan, nothing changed", *each)
    count, cpu, wall, _ = first
    middle_cpu, middle_wall = map(statistics.median, zip(*((each.cpu, each.wall) for each in again), strict=True))
    print(f"{'first / rescan':<25} {cpu / middle_cpu:6.2f}   ({wall / middle_wall:6.2f}), the rescan in the middle")
    peers = {
        "find -printf": ["find", str(tree), "-printf", "%p %s %b %i %n %T@ %C@\\n"],
        "gdu -n": ["gdu", "-n", "-p", "-c", str(tree)],
        "ncdu -o": ["ncdu", "-0", "-o", os.devnull, str(tree)],
    }
    for name, command in peers.items():
        if shutil.which(command[0]) is None:
            print(f"{name:<25} is not installed (apt install {command[0]})")
            continue
        its_cpu, its_wall = timed(command)
        show(name, count, its_cpu, its_wall)
        for ours, (own_cpu, own_wall) in {"first scan": (cpu, wall), "rescan": (middle_cpu, middle_wall)}.items():
            print(f"{f'  its speed / {ours}':<25} {own_cpu / its_cpu:6.2f}   ({own_wall / its_wall:6.2f})")


def sizes(tree: Path, data: Path, chance: random.Random) -> None:
    """Compare the sizes of 1,000 directories with `du`."""
    db = apsw.Connection(str(data / "services/files/files.db"), flags=apsw.SQLITE_OPEN_READONLY)
    rows = list(db.execute("SELECT path, size, disk FROM node WHERE kind = 1 AND path >= ?", (str(tree),)))
    some = chance.sample(rows, min(1000, len(rows)))
    wrong = 0
    for path, size, disk in some:
        # `du` counts the directories themselves in the apparent size too.
        folders = sum(os.lstat(folder).st_size for folder, _, _ in os.walk(path))
        for option, ours in (("--apparent-size", size + folders), ("--disk", disk)):
            options = ["--apparent-size"] if option == "--apparent-size" else []
            found = subprocess.run(["du", "-s", "-B1", *options, path], check=True, capture_output=True, text=True)
            wrong += int(found.stdout.split("\t")[0]) != ours
    print(f"{f'du -sb and du -s of {len(some)} directories':<38} {wrong} differ")
    db.close()


def fill(database: Path, rows: int) -> None:
    """Insert entries into the tables, without files, for the filters to work on."""
    db = open_database(database)
    with db.transaction() as connection:
        now = time.time_ns()
        folders = rows // (FILES_EACH + 1)
        connection.execute("INSERT INTO folder(id, parent, path, own_disk) VALUES(2, 1, '/bench/', 0)")
        connection.execute("INSERT INTO entry VALUES(2, 1, 'bench', 1, 0,0,0,0,?,?,2,1,1,'',?)", (now, now, now))
        for number in range(folders):
            id_ = 3 + number * (FILES_EACH + 1)
            name = f"folder number {number}"
            connection.execute(
                "INSERT INTO folder(id, parent, path, own_disk) VALUES(?,2,?,0)", (id_, f"/bench/{name}/")
            )
            made = [(id_, 2, name, schema.DIRECTORY, 0, 0, 0, 0, now, now, id_, 1, 1, "", now)]
            for each in range(FILES_EACH):
                extension = EXTENSIONS[(number + each) % len(EXTENSIONS)]
                file = f"{'Übung' if each == 3 else 'some file'} {number}-{each}{extension}"
                size = number * each % 99_999
                at = now - number * 1_000_000_000
                made.append(
                    (id_ + each + 1, id_, file, 0, size, size, 0, 0, at, at, id_ + each + 1, 1, 1,
                     extension[1:].lower(), now)
                )  # fmt: skip
            connection.executemany("INSERT INTO entry VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", made)
        # This makes the directory count as large.
        connection.execute("UPDATE entry SET files = ?, directories = ? WHERE id = 2", (folders * FILES_EACH, folders))
        set_id = sets.make(connection, "all")
        connection.execute("INSERT INTO member SELECT ?, id, ? FROM entry WHERE id > 2", (set_id, now))
    db.close()


def memory_mib() -> float:
    """Return the memory of this process without file pages, which the system can reclaim."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


async def filters(folder: Path, rows: int, rounds: int) -> None:
    """Run the tools on one set of all rows."""
    (folder / "files").mkdir(parents=True)
    fill(folder / "files/files.db", rows)
    asked: dict[str, Params[Any]] = {
        "sets_sum size": ResourceSum(name="all", metric="size"),
        "sets_sum count": ResourceSum(name="all", metric="count"),
        "sets_match extension": ResourceIs(name="all", field="extension", value="jpg"),
        "sets_metric_range size": ResourceMetricRange(name="all", metric="size", min=90_000),
        "sets_time_range mtime": ResourceTimeRange(name="all", field="mtime", min="2020-01-01"),
        "sets_fuzzy_match contains": match("name", "FILE 77", "contains"),
        "sets_fuzzy_match not ASCII": match("name", "übung 77", "contains"),
        "sets_fuzzy_match regex": match("path", "7+-1\\.txt$", "regex"),
        "sets_fuzzy_match glob": match("path", "*/some*77*.py", "glob"),
        "sets_search by size": ResourceSearch(name="all", kind="file", extension="py"),
        "sets_search by name": ResourceSearch(name="all", kind="file", sort_by="name", sort_desc=False),
        "navigate a large directory by name": Navigate(path="/bench"),
        "disk_top_files": TopFiles(path="/bench"),
        "disk_summary": SpaceSummaryOf(path="/bench"),
    }  # fmt: skip
    async with services_in_process({"files": open_service}, folder, roots=[folder]) as bench:
        print(f"memory {memory_mib():.0f} MiB")
        for name, params in asked.items():
            await bench.stop("files")
            await bench.start("files")
            show_times(f"first after a start: {name}", [await timed_call(bench, params)])
            await show_calls(bench, name, params, rounds)
        print(f"memory {memory_mib():.0f} MiB")


def match(field: TextField, pattern: str, mode: TextMode) -> ResourceFuzzyMatch:
    return ResourceFuzzyMatch(name="all", field=field, pattern=pattern, mode=mode)


async def show_calls(bench: Bench, name: str, params: Params[Any], rounds: int) -> None:
    """Print the times of several calls of one kind."""
    show_times(name, [await timed_call(bench, params) for _ in range(rounds)])


async def timed_call(bench: Bench, params: Params[Any]) -> float:
    """Return the milliseconds of a call."""
    began = time.perf_counter()
    await bench.call(params, timeout_s=120)
    return (time.perf_counter() - began) * 1000


def show_times(name: str, times: list[float]) -> None:
    """Print the times of calls in milliseconds."""
    p95 = statistics.quantiles(times, n=20)[18] if len(times) > 1 else times[0]
    print(f"{name:<60} p50 {statistics.median(times):9.1f}   p95 {p95:9.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=500_000, help="entries of the scanned tree")
    parser.add_argument("--rows", type=int, default=1_000_000, help="entries of the filtered set; 0: none")
    parser.add_argument("--rounds", type=int, default=20, help="calls of each filter")
    parser.add_argument("--folder", help="where the tree is made, and removed again (default: a temporary folder)")
    parser.add_argument("--tree", help="scan this tree instead of making one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name).resolve()
        if arguments.entries:
            tree = Path(arguments.tree).resolve() if arguments.tree else folder / "tree"
            if not arguments.tree:
                make_tree(tree, arguments.entries)
            data = folder / "data"
            scans(tree, data)
            sizes(tree, data, random.Random(1))
        if arguments.rows:
            trio.run(filters, folder / "filters", arguments.rows, arguments.rounds)


if __name__ == "__main__":
    main()
