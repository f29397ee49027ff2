"""`linckia export` of many stored documents, beside tar of the same files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.documents.trees import children_s, cpu_s
from tests.system.running import running

ROUNDS = 3
WORDS = "The sea star grows back any arm it loses, for its organs reach into each of them. " * 12


def export(folder: Path, documents: int) -> None:
    """Export this many documents of a kilobyte, and print the rates of both sides by the clock and by processor time.

    Each exported content is verified by its hash in the service; tar verifies nothing.
    """
    root = folder / "root"
    for number in range(documents):
        place = root / f"{number // 400:04}" / f"{number:06}.txt"
        if not number % 400:
            place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"Document {number}. {WORDS}")
    with running(folder / "data", [root], services=["documents"]) as kernel:
        kernel.call("documents_add", {"path": str(root), "no_ignore": True}, timeout_s=900)
        for attempt in range(ROUNDS):
            target = folder / f"export-{attempt}"
            command = [sys.executable, "-P", "-m", "kernel.cli", "export", "--data", str(folder / "data"), str(target)]
            service, own = kernel.service("documents")["pid"], kernel.process.pid
            before = (children_s(), cpu_s(service), cpu_s(own))
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            took = time.perf_counter() - began
            spent = [now - then for now, then in zip((children_s(), cpu_s(service), cpu_s(own)), before, strict=True)]
            with (target / "documents" / "documents.jsonl").open() as lines:
                assert sum(1 for _ in lines) == documents
            shutil.rmtree(target)
            peer_before, began = children_s(), time.perf_counter()
            subprocess.run(["tar", "-C", str(root), "-cf", str(folder / "peer.tar"), "."], check=True)
            peer, peer_cpu = time.perf_counter() - began, children_s() - peer_before
            (folder / "peer.tar").unlink()
            parts = zip(("client", "documents", "kernel"), spent, strict=True)
            each = ", ".join(f"{name} {used / documents * 1e6:.0f}" for name, used in parts)
            print(
                f"export {documents / took:9.0f} documents/s   tar {documents / peer:9.0f}/s   {peer / took:.2f} of it"
            )
            print(f"    µs of a processor a document: {each}; tar {peer_cpu / documents * 1e6:.0f}", flush=True)
