"""A folder of manuals, compared with the published figures of another document store for a similar folder.

Those figures are for Debian's documentation folder (4,236 files, 111 MB) on another machine, so the ratio only shows
whether this store is in the same class.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from proto.control.client import Client
from tests.bench.documents.trees import until_idle
from tests.system.running import RunningKernel, running

SERVICES = ("documents", "retrieve", "embed", "graph")
ADDED_PER_S, REGEX_MS, HYBRID_MS, KEYWORD_MS, RESIDENT_MB = 137.0, 1029.0, 30.0, 6.9, 353.0
QUERIES = ("how to configure the package manager", "licence of the shared library", "upgrade notes for users",
           "regular expression syntax", "environment variables that are read")  # fmt: skip
PATTERNS = ("[Cc]opyright \\(c\\) 20\\d\\d", "Bug[- ]?#?\\d{6}", "GPL-[23]\\+?", "https?://bugs\\.debian\\.org/\\d+")
TURNS = 20


class KernelSettings(NamedTuple):
    """The settings of the kernel.

    `backend` is the embedder's; with onnx there is no reranker, so that nothing loads torch. Services rest after
    `rest_s` without a call. `tokens` is the number of tokens read of each passage; None means as many as the model
    reads.
    """

    backend: str
    rest_s: float
    tokens: int | None

    def environment(self) -> dict[str, str]:
        said = {"LINCKIA_REST_AFTER_S": f"{self.rest_s}", "LINCKIA_SERVICES__EMBED__BACKEND": self.backend}
        for service in ("EMBED", "RERANK"):
            said[f"LINCKIA_SERVICES__{service}__UNLOAD_AFTER_S"] = f"{self.rest_s}"
        if self.backend == "onnx":
            said["LINCKIA_SERVICES__RERANK__MODEL"] = "none"
        if self.tokens is not None:
            said["LINCKIA_SERVICES__EMBED__MAX_TOKENS"] = f"{self.tokens}"
        return said


def manuals(folder: Path, directory: Path, wait_s: float, settings: KernelSettings) -> None:
    """Print the figures; waits at most `wait_s` for the vectors."""
    environment = settings.environment()
    with running(folder / "manuals-data", [directory], environment=environment, all_ready=False) as kernel:
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
        left = kernel.call("documents_status")["vectors_waiting"]
        beside = f" beside the embedding of {left} passages" if left else ""
        for kind, peer in (("hybrid", HYBRID_MS), ("keyword", KEYWORD_MS)):
            _search(kernel, kind, peer, beside)
        resident(kernel, "just after")
        at_rest(kernel, settings.rest_s)
        kernel.call("kernel_stop", {"service": "embed"})
        _search(kernel, "keyword", KEYWORD_MS, " without the embedder")


def _search(kernel: RunningKernel, kind: str, peer_ms: float, beside: str) -> None:
    first = kernel.call("documents_search", {"query": QUERIES[0], "type": kind})
    said = f"{kind} search{beside} ({', '.join(first['stages'])}{'; degraded' if first['degraded'] else ''})"
    _told(kernel, said, peer_ms, "documents_search", [{"query": query, "type": kind} for query in QUERIES])


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
            client.call_named(name, params[turn % len(params)])
            if turn >= 0:
                taken.append((time.monotonic() - began) * 1000)
    p50 = statistics.median(taken)
    print(f"{what}: p50 {p50:.1f} ms, p95 {sorted(taken)[int(0.95 * TURNS)]:.1f} ms, the peer {peer_ms:.1f} ms"
          f" (ratio {peer_ms / p50:.1f})", flush=True)  # fmt: skip


SETTLES_S = 30.0
"""Time after the beginning of a rest for memory to be returned, and for services woken by the last check to end."""
AT_MOST_S = 1800.0
STEADY_MB = 5.0
LONG_PAUSE = 6
"""Factor on the rest time after which the zygotes rest too."""


def at_rest(kernel: RunningKernel, rest_s: float) -> None:
    """Print the figures again once no more memory is returned, and the cost of the first search after that."""
    began = time.monotonic()
    while kernel.call("documents_status")["vectors_waiting"] and time.monotonic() - began < AT_MOST_S:
        time.sleep(2)
    print(f"all vectors after {time.monotonic() - began:.0f} s more", flush=True)
    rests_from = time.monotonic()
    before, now = math.inf, _own(kernel)
    # Wait until memory has stopped shrinking for long enough that a service called once more could have come to rest.
    while before - now > STEADY_MB and time.monotonic() - rests_from < AT_MOST_S:
        time.sleep(LONG_PAUSE * rest_s + SETTLES_S)
        before, now = now, _own(kernel)
    resident(kernel, f"at rest for {time.monotonic() - rests_from:.0f} s")
    with Client(kernel.data_dir) as client:
        for what in ("first", "second"):
            asked = time.monotonic()
            found = client.call_named(
                "documents_search", {"query": f"the {what} question of the day", "type": "hybrid"}
            )
            print(f"{what} hybrid search after it: {(time.monotonic() - asked) * 1000:.0f} ms"
                  f" ({', '.join(found['stages'])}{'; degraded' if found['degraded'] else ''})")  # fmt: skip


class _Share(NamedTuple):
    """The memory of one process in MB; shared pages are counted once."""

    name: str
    own: float
    files: float


def _shares(kernel: RunningKernel) -> list[_Share]:
    """Return the memory of each process of the system, largest first."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    pids = [kernel.process.pid]
    for pid in pids:
        pids += children.get(pid, [])
    names = {kernel.process.pid: "kernel"}
    status = kernel.status()
    for service in status["services"]:
        names |= {service["pid"]: service["name"], service["standby_pid"]: f"standby of {service['name']}"}
    names |= {zygote["pid"]: f"zygote {zygote['name']}" for zygote in status["zygotes"]}
    found: list[_Share] = []
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
            of = {kind: int(value.split()[0]) * 1024 / 1e6 for kind, value in lines.items()}
            found.append(_Share(names.get(pid, f"process {pid}"), of["Pss"] - of["Pss_File"], of["Pss_File"]))
    return sorted(found, key=lambda share: -share.own)


def _own(kernel: RunningKernel) -> float:
    return sum(share.own for share in _shares(kernel))


def resident(kernel: RunningKernel, when: str) -> None:
    """Print the memory of each process, counting shared pages once, because the peer is one process.

    `own` is memory that only these processes hold; file pages are dropped as soon as the machine needs them.
    """
    shares = _shares(kernel)
    for name, own, of_files in shares:
        print(f"memory, {when}: {name} {own:.0f} MB own, {of_files:.0f} MB of files")
    own, of_files = sum(share.own for share in shares), sum(share.files for share in shares)
    together = own + of_files
    print(f"memory of {len(shares)} processes together, {when}: {own:.0f} MB own and {of_files:.0f} MB of files,"
          f" {together:.0f} MB; the peer {RESIDENT_MB:.0f} MB (ratio {RESIDENT_MB / own:.2f} of its own,"
          f" {RESIDENT_MB / together:.2f} of all)", flush=True)  # fmt: skip
