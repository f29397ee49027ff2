"""The report of a run."""

from __future__ import annotations

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from proto.mounts import CHANGE
from tests.chaos.mounted.kills import KINDS
from tests.chaos.mounted.load import Made
from tests.chaos.mounted.storm import Storm

SLACK_S = 0.5
"""A server may take this much longer than a start of its own."""
SHOWN = 20

_QUICK = {kind.name for kind in KINDS if kind.is_quick}


def quantile(values: Sequence[float], part: float) -> float:
    """Return a quantile; 0 without values."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def lines(storm: Storm) -> Iterator[str]:
    """Yield the lines of the report."""
    ledger, made = storm.ledger, storm.ledger.made
    yield f"{_processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    yield f"{len(ledger.outages)} kills in {storm.took_s:.0f} s, {len(made)} calls"
    yield (
        "server        kills  back p50   p99   max | own start p50   p99 | calls"
        " read,repeatable: ok failed | changing: ok maybe not_executed other"
    )
    for server in storm.servers:
        mine = [each for each in ledger.outages if each.server == server.name]
        back = [each.lasted_s for each in mine if each.lasted_s is not None and each.kind in _QUICK]
        starts = storm.starts.get(server.name, [])
        calls = [each for each in made if each.server == server.name]
        safe = Counter(each.outcome.ok for each in calls if each.call.kind != CHANGE)
        risky = Counter(_fate(each) for each in calls if each.call.kind == CHANGE)
        yield (
            f"{server.name:12} {len(mine):6} {quantile(back, 0.5):9.3f} {quantile(back, 0.99):6.3f}"
            f" {max(back, default=0):5.2f} | {quantile(starts, 0.5):13.3f} {quantile(starts, 0.99):6.3f} |"
            f" {safe[True]} {safe[False]} | {risky['ok']} {risky['maybe']} {risky['no']} {risky['error']}"
            f"{_verdict(back, starts)}"
        )
    kinds: dict[str, list[float]] = defaultdict(list)
    for each in ledger.outages:
        kinds[each.kind].append(each.lasted_s or float("inf"))
    yield "time back by kind of kill: number, p50, p99"
    for kind, took in sorted(kinds.items()):
        yield f"  {kind:48} {len(took):4} {quantile(took, 0.5):7.3f} {quantile(took, 0.99):7.3f}"
    yield from _others(storm)
    yield f"wrong: {len(storm.wrong)}"
    yield from (f"  {each}" for each in storm.wrong[:SHOWN])


def _fate(made: Made) -> str:
    if made.outcome.ok:
        return "ok"
    return "error" if made.outcome.kind == "error" else made.outcome.executed


def _verdict(back: Sequence[float], starts: Sequence[float]) -> str:
    if not starts:
        return ""
    over = quantile(back, 0.99) - quantile(starts, 0.99)
    return f" | p99 back - p99 start {over:+.3f} s" + ("" if over <= SLACK_S else " TOO LATE")


def _others(storm: Storm) -> Iterator[str]:
    """Yield how long calls of other servers took while one was down, and while none was."""
    outages = [each for each in storm.ledger.outages if each.ended is not None]
    down: list[float] = []
    up: list[float] = []
    for made in storm.ledger.made:
        overlapping = {each.server for each in outages if each.began <= made.ended and made.began <= (each.ended or 0)}
        if made.server not in overlapping:
            (down if overlapping else up).append(made.ended - made.began)
    for what, took in (("while another server was down", down), ("while none was", up)):
        p50, p99 = (quantile(took, part) * 1000 for part in (0.5, 0.99))
        yield f"calls {what}: {len(took)}, p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def _processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()
