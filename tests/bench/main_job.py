"""The main job on a folder of 1,000 Markdown files, each step timed, from a cold start to the memory of the idle
system.

Notes are made of the words of Python's own documentation strings, so that lengths, repetitions and vocabulary are
those of real text.
"""

from __future__ import annotations

import pydoc
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel.control.client import Client
from tests.system.running import RunningKernel, running

NOTES = 1000


def make_notes(folder: Path, count: int) -> None:
    """Notes of 100 to 600 words with headings, lists and links among them."""
    rng = random.Random(7)
    text = "\n".join(pydoc.render_doc(name, renderer=pydoc.TextDoc()) for name in ("argparse", "logging", "socket"))
    sentences = [" ".join(s.split()) for s in re.split(r"(?<=[.;])\s+", text) if 30 < len(s) < 400]
    for n in range(count):
        parts = [f"# Note {n}: {' '.join(rng.choice(sentences).split()[:6])}\n"]
        for section in range(rng.randint(1, 4)):
            parts.append(f"## Part {section}\n\n{' '.join(rng.sample(sentences, rng.randint(3, 8)))}\n")
        parts.append(f"See [[note-{rng.randrange(count)}]] and [[note-{rng.randrange(count)}]].\n")
        path = folder / f"area-{n % 20}" / f"note-{n}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(parts))
    (folder / "settings.yaml").write_text("server:\n  host: example.org  # public\n  port: 8080\n")


def wait(kernel: RunningKernel, condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.02)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else NOTES
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
        make_notes(Path(folder), count)
        started = time.monotonic()

        def step(name: str, since: float, files: int = 0) -> None:
            took = time.monotonic() - since
            print(f"{name:<58} {took:8.2f} s{f', {files / took:.0f} files/s' if files else ''}", flush=True)

        with running(Path(data), [Path(folder)], all_ready=False) as kernel:
            step("start: the kernel answers", started)
            wait(kernel, lambda: kernel.call("knowledge_status")["notes"] >= count)
            step(f"start: {count} notes are found by words", started, count)
            kernel.wait_ready()
            step("start: all services are ready", started)
            wait(kernel, lambda: not kernel.call("retrieve_status", {"collection": "notes"})["vectors_waiting"])
            status = kernel.call("retrieve_status", {"collection": "notes"})
            step(f"start: all {status['vectors']} sections have their vectors", started, count)
            with Client(Path(data)) as client:
                for name, params in (
                    ("search_documents", {"query": "how to set the level of a logger"}),
                    ("read_node_content", {"id": "note-7"}),
                    ("noyalib_get", {"file": "settings.yaml", "path": "server.host"}),
                ):
                    times = []
                    for _ in range(30):
                        before = time.perf_counter()
                        client.call(name, params)
                        times.append((time.perf_counter() - before) * 1000)
                    print(f"{name + ', p50 of 30':<58} {statistics.median(times):8.2f} ms")
            unchanged = time.monotonic()
            kernel.call("knowledge_ingest", {"vectors": False})
            step("the same folder ingested again, nothing changed", unchanged)
            edited = time.monotonic()
            (Path(folder) / "area-1" / "note-1.md").write_text(
                "# Changed\n\nA wombat digs burrows at night, deep in forests.\n"
            )
            wait(kernel, lambda: _first(kernel, "wombat burrows") == "note-1")
            step("an edited note is found by its new words", edited)
            # Words that it does not have.
            wait(kernel, lambda: _first(kernel, "marsupial dwelling underground", whole=True) == "note-1")
            step("an edited note is found by its new meaning", edited)
            _print_memory(kernel)
        again = time.monotonic()
        with running(Path(data), [Path(folder)], all_ready=False) as kernel:
            wait(kernel, lambda: _first(kernel, "wombat burrows") == "note-1")
            step("second start: the first right search", again)


def _first(kernel: RunningKernel, query: str, *, whole: bool = False) -> str | None:
    answer = kernel.call("search_documents", {"query": query, "limit": 1}, timeout_s=30)
    if whole and answer["metadata"]["degraded"]:
        return None
    return answer["results"][0]["id"] if answer["results"] else None


def _print_memory(kernel: RunningKernel) -> None:
    status = kernel.status()
    rows = [("kernel", status), *((s["name"], s) for s in status["services"])]
    rows += [(f"zygote {z['name']}", z) for z in status["zygotes"]]
    print(f"\n{'idle memory, MB':<20} {'resident':>9} {'own share':>10}")
    total = 0
    for name, row in rows:
        total += row["pss_bytes"] or 0
        print(f"{name:<20} {row['rss_bytes'] / 1e6:>9.0f} {(row['pss_bytes'] or 0) / 1e6:>10.0f}")
    print(f"{'together':<20} {'':>9} {total / 1e6:>10.0f}\n")


if __name__ == "__main__":
    main()
