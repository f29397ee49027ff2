"""Pending vectors, with real processes: their number is reported everywhere, searched texts are embedded first, and a
search waits a moment for an embedder that has not answered yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from kernel.cli import status
from proto.ops.kernel import ServiceStatus
from services.embed import weights
from services.retrieve.ranking.queries import Patience
from tests.system.running import HTTP, RunningKernel, running, wait_until

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")

NOTES = 160
PROSE = "A note is embedded where it says enough to have a meaning; so this one goes on for some words. " * 3
SERVICES = ("embed", "graph", "knowledge", "llm", "rerank", "retrieve", "watch")


def await_counts(kernel: RunningKernel, **wanted: int) -> None:
    """Until `notes_status` says so."""
    wait_until(
        lambda: {name: kernel.call("notes_status")[name] for name in wanted} == wanted,
        120,
        said=lambda: kernel.call("notes_status"),
    )


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    """A kernel whose notes have no vectors and whose embedder is stopped."""
    folder = tmp_path_factory.mktemp("backlog")
    root = folder / "notes"
    root.mkdir()
    with running(folder / "data", [root], options=HTTP, services=SERVICES) as started:
        started.call("kernel_stop", {"service": "embed"})
        for n in range(NOTES):
            (root / f"note-{n:03}.md").write_text(f"# Note {n:03}\n\nOnly this one tells of mark{n:03}. {PROSE}\n")
        await_counts(started, notes=NOTES, pending=0, vectors_waiting=NOTES)
        yield started


def search(kernel: RunningKernel, word: str) -> dict[str, Any]:
    found: dict[str, Any] = kernel.call("notes_search", {"query": word, "limit": 3}, timeout_s=60)
    return found


def test_the_backlog_is_reported_everywhere_and_searched_items_are_embedded_first(kernel: RunningKernel) -> None:
    assert kernel.call("notes_status")["vectors_backlog"] == {
        "done": 0, "total": NOTES, "per_s": None, "left_s": None
    }  # fmt: skip
    # The backlog is reported with the next pong.
    wait_until(lambda: kernel.service("retrieve")["backlogs"].get("vectors of notes", {}).get("total") == NOTES)
    told = kernel.service("retrieve")
    assert f"vectors of notes: 0 of {NOTES}" in str(status.row(msgspec.convert(told, ServiceStatus))[-1])
    url = kernel.status()["http_url"].rsplit("/", 1)[0]
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        metrics = answer.read().decode()
    assert f'linckia_backlog_waiting{{of="vectors of notes",service="retrieve"}} {NOTES}.0' in metrics

    # In the order of arrival, or in the reverse, no batch would begin with all of these.
    searched = [search(kernel, f"mark{n:03}")["results"][0]["id"] for n in (0, NOTES // 2, NOTES - 1)]
    kernel.call("kernel_start", {"service": "embed"})
    wait_until(lambda: kernel.call("retrieve_status", {"collection": "notes"})["vectors"], 90)
    for note in searched:
        assert kernel.call("retrieve_similar", {"collection": "notes", "group": note})["has_vector"], note


def test_a_search_waits_a_moment_for_an_embedder_that_has_not_answered_it_yet(kernel: RunningKernel) -> None:
    await_counts(kernel, vectors_waiting=0)
    assert kernel.call("notes_status")["vectors_backlog"] is None
    kernel.wait_ready("embed", "rerank")
    took_s: list[float] = []
    # A service that has just started has had no answer.
    kernel.kill("retrieve")
    kernel.wait_ready("retrieve")
    held = kernel.kill("embed", signal.SIGSTOP)
    with ThreadPoolExecutor(1) as beside:
        began = time.monotonic()
        searching = beside.submit(search, kernel, "what tells of mark007")
        searching.add_done_callback(lambda _: took_s.append(time.monotonic() - began))
        try:
            wait_until(lambda: kernel.service("embed")["in_flight"] or searching.done())
        finally:
            # The kernel replaces a service that stands still, on a busy machine before this.
            with contextlib.suppress(ProcessLookupError):
                os.kill(held, signal.SIGCONT)
        stages = searching.result()["metadata"]["stages"]
    assert "lexical" in stages
    # On a busy machine the embedder may need longer than a search waits.
    assert "vector" in stages or took_s[0] >= Patience.FIRST_S
