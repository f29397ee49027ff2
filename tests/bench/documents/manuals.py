"""A folder of manuals, beside the figures that another store of documents gives of itself on one of the same kind.

Those are of Debian's documentation folder (4,236 files, 111 MB), on another machine: the ratio says whether this one is
in the same class, and no more than that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from kernel.control.client import Client
from tests.bench.documents.trees import until_idle
from tests.system.running import RunningKernel, running

SERVICES = ("documents", "retrieve", "embed", "graph")
ADDED_PER_S, REGEX_MS, HYBRID_MS, KEYWORD_MS, RESIDENT_MB = 137.0, 1029.0, 30.0, 6.9, 353.0
QUERIES = ("how to configure the package manager", "licence of the shared library", "upgrade notes for users",
           "regular expression syntax", "environment variables that are read")  # fmt: skip
PATTERNS = ("[Cc]opyright \\(c\\) 20\\d\\d", "Bug[- ]?#?\\d{6}", "GPL-[23]\\+?", "https?://bugs\\.debian\\.org/\\d+")
TURNS = 20


def manuals(folder: Path, directory: Path, wait_s: float) -> None:
    """Print the figures; waits at most so long for the vectors."""
    with running(folder / "manuals-data", [directory], all_ready=False) as kernel:
        kernel.wait_ready(*SERVICES)
        began = time.monotonic()
        added = kernel.call("documents_add", {"path": str(directory), "no_ignore": True}, timeout_s=600)
        took = time.monotonic() - began
        print(f"{directory}: {added['files']} files, {added['size'] / 1e6:.0f} MB")
        rate = added["files"] / took
        print(f"ingest, on disk and found by grep: {rate:.0f} documents/s, the peer {ADDED_PER_S:.0f}"
              f" (ratio {rate / ADDED_PER_S:.1f})", flush=True)  # fmt: skip
        _wait(kernel, "index_waiting", began, 120)
        _wait(kernel, "search_waiting", began, 300)
        _wait(kernel, "vectors_waiting", began, wait_s)
        until_idle(kernel, 5)
        for pattern in PATTERNS:
            answer = kernel.call("documents_grep", {"pattern": pattern, "limit": 10_000})
            cut = ", cut and says so" if answer["truncated"] else ", complete"
            _told(kernel, f"grep {pattern} ({answer['match_count']} matches{cut})", REGEX_MS, "documents_grep",
                  [{"pattern": pattern, "limit": 10_000}])  # fmt: skip
        for kind, peer in (("hybrid", HYBRID_MS), ("keyword", KEYWORD_MS)):
            first = kernel.call("documents_search", {"query": QUERIES[0], "type": kind})
            stages = ", ".join(str(stage.get("name", stage)) if isinstance(stage, dict) else str(stage)
                               for stage in first["stages"])  # fmt: skip
            _told(kernel, f"{kind} search ({stages}{'; degraded' if first['degraded'] else ''})", peer,
                  "documents_search", [{"query": query, "type": kind} for query in QUERIES])  # fmt: skip
        total = 0.0
        for name, pid in [("kernel", kernel.process.pid), *((one, kernel.service(one)["pid"]) for one in SERVICES)]:
            resident = _resident_mb(pid)
            total += resident
            print(f"resident: {name} {resident:.0f} MB")
        print(f"resident together: {total:.0f} MB, the peer {RESIDENT_MB:.0f} (ratio {RESIDENT_MB / total:.2f})")


def _wait(kernel: RunningKernel, what: str, began: float, at_most_s: float) -> None:
    give_up = time.monotonic() + at_most_s
    while (left := kernel.call("documents_status")[what]) and time.monotonic() < give_up:
        time.sleep(0.25)
    print(f"{what} {left or 0} {time.monotonic() - began:.1f} s after the beginning", flush=True)


def _told(kernel: RunningKernel, what: str, peer_ms: float, name: str, params: Sequence[dict[str, object]]) -> None:
    taken: list[float] = []
    with Client(kernel.data_dir) as client:
        for turn in range(-len(params), TURNS):
            began = time.monotonic()
            client.call(name, params[turn % len(params)])
            if turn >= 0:
                taken.append((time.monotonic() - began) * 1000)
    p50 = statistics.median(taken)
    print(f"{what}: p50 {p50:.1f} ms, p95 {sorted(taken)[int(0.95 * TURNS)]:.1f} ms, the peer {peer_ms:.1f} ms"
          f" (ratio {peer_ms / p50:.1f})", flush=True)  # fmt: skip


def _resident_mb(pid: int) -> float:
    (line,) = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024 / 1e6
