"""Regular expressions over many stored documents, compared with ripgrep on the same files."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from functools import partial
from pathlib import Path

import trio

from services.documents.operations.find import DocumentsGrep
from services.documents.store.databases import Store
from services.documents.text import grep as grepping
from tests.bench.documents.trees import children_s, kernel_alone, make_tree, sources
from tests.system.running import RunningKernel

PATTERNS = ("class \\w+Handler\\b", "def test_\\w*cancel\\w*", "raise NotImplementedError\\(", "Copyright.*Foundation")
MATCHES = 100
SELECTIVE = (
    "ZIP64_LIMIT\\s*=",
    "def _?readinto\\w*\\(self",
    "Free Software Foundation, Inc\\., 59",
    "xmlrpc\\.(client|server)",
)
TURNS = 30


def grep(folder: Path, count: int) -> None:
    root, data = folder / "root", folder / "grep-data"
    if not (root / "done").exists():
        shutil.rmtree(root, ignore_errors=True)
        each = min(count, sum(1 for _ in zip(sources(), range(count), strict=False)))
        for copy in range(-(-count // each)):
            make_tree(root / f"copy-{copy}", min(each, count - copy * each), f"\n# copy {copy}\n" if copy else "")
        (root / "done").touch()
    with kernel_alone(data, root) as kernel:
        if kernel.call("documents_status")["total_objects"] < count:
            began = time.monotonic()
            kernel.call("documents_add", {"path": str(root), "no_ignore": True}, timeout_s=900)
            print(f"added in {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        while kernel.call("documents_status")["index_waiting"]:
            time.sleep(0.5)
        print(f"indexed after {time.monotonic() - began:.1f} s more")
        status = kernel.call("documents_status")
        whole(kernel, root)
        hostile(kernel)
    print(f"{status['total_objects']} documents, {status['total_bytes'] / 2**20:.0f} MiB")
    (packs,) = data.rglob("packs.db")
    trio.run(_measure, packs.parent, root)


def whole(kernel: RunningKernel, root: Path) -> None:
    """Find all matches of patterns that occur in few documents, as a client waits for them, and compare with
    ripgrep."""
    print(
        f"{'all matches':<40}{'matches':>8}{'p50 ms':>8}{'p99 ms':>8}{'rg':>8}{'p50 ms':>8}{'p99 ms':>8}{'ratios':>14}"
    )
    for pattern in SELECTIVE:
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(TURNS):
            began = time.monotonic()
            answer = kernel.call("documents_grep", {"pattern": pattern, "limit": 10_000})
            ours.append((time.monotonic() - began) * 1000)
            # Run it as often as ours, in turns, since the slowest of a few is not comparable with the slowest of many.
            began = time.monotonic()
            said = subprocess.run(["rg", "--no-ignore", "--hidden", "--no-filename", "--count", "-e", pattern,
                                   str(root)], capture_output=True, text=True, check=False).stdout  # fmt: skip
            theirs.append((time.monotonic() - began) * 1000)
        assert not answer["truncated"], answer["match_count"]
        mine, peer = sorted(ours), sorted(theirs)
        p50, p99, peer_p50, peer_p99 = (
            statistics.median(mine), mine[int(0.99 * TURNS)], statistics.median(peer), peer[int(0.99 * TURNS)],
        )  # fmt: skip
        print(f"{pattern:<40}{answer['match_count']:>8}{p50:>8.1f}{p99:>8.1f}{sum(map(int, said.split())):>8}"
              f"{peer_p50:>8.0f}{peer_p99:>8.0f}{peer_p50 / p50:>7.1f}{peer_p99 / p99:>7.1f}", flush=True)  # fmt: skip


HOSTILE = ("(a+)+$", "(x+x+)+y(?=z)", "(.*)\\1\\1\\1", "(?:a?){60}a{60}", "[^\\n]*(?<!b)[^\\n]*c")
HOSTILE_BYTES = 20_000_000


def hostile(kernel: RunningKernel) -> None:
    """Check that patterns made to run forever end and report their progress; over all documents, and one line of 20
    MB."""
    name = "hostile.txt"
    kernel.call("documents_add", {"name": name, "content": "a" * HOSTILE_BYTES + "!"}, timeout_s=60)
    for paths in ([], [name]):
        _hostile(kernel, paths)
    kernel.call("documents_delete", {"name": name})


def _hostile(kernel: RunningKernel, paths: list[str]) -> None:
    for pattern in HOSTILE:
        began = time.monotonic()
        answer = kernel.call("documents_grep", {"pattern": pattern, "limit": MATCHES, "paths": paths}, timeout_s=60)
        whose = "one line" if paths else "all"
        ended = "truncated" if answer["truncated"] else "complete"
        print(f"hostile, {whose}: {pattern!r:<28} {time.monotonic() - began:6.2f} s  {answer['match_count']} matches,"
              f" {ended}{'; ' if answer['degraded'] else ''}{''.join(answer['degraded'])[:120]}")  # fmt: skip


async def _measure(folder: Path, root: Path) -> None:
    store = Store(folder)
    print(f"{'the first hundred':<40}{'matches':>8}{'CPU ms':>9}{'rg CPU ms':>11}{'ratio':>8}")
    for pattern in (*PATTERNS, *SELECTIVE):
        params = DocumentsGrep(pattern=pattern, limit=MATCHES)
        taken: list[float] = []
        for _ in range(7):
            began = time.process_time()
            answer = await store.read(partial(grepping.grep, params=params))
            taken.append((time.process_time() - began) * 1000)
        ours = statistics.median(taken)
        theirs = await trio.to_thread.run_sync(_children_ms, ["rg", "--no-ignore", "-e", pattern, str(root)])
        print(f"{pattern:<40}{len(answer.matches):>8}{ours:>9.1f}{theirs:>11.0f}{theirs / ours:>8.0f}")
    store.close()


def _children_ms(command: list[str]) -> float:
    """Return the CPU time of a command."""
    before = children_s()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return (children_s() - before) * 1000
