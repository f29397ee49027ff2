"""What was seen: every call by operation, what was lost, wrong or hung, and what the faults did."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.chaos.clients import Said

EXAMPLES = 12


@dataclass
class Calls:
    """The calls of one operation."""

    reads: bool
    repeatable: bool
    """Whether the system may repeat it by itself: nothing but a full disk excuses a failure."""
    kinds: Counter[str] = field(default_factory=Counter)
    full_disk: Counter[str] = field(default_factory=Counter)
    """Those that were answered while the disk was full, or just after."""


@dataclass
class Fault:
    kind: str
    target: str
    at_s: float
    recovery_s: float | None = None
    """From the fault to an answer of what it struck; None where there was none in time."""


@dataclass
class Record:
    """Of one run; `at_s` are seconds since its beginning."""

    began: float = field(default_factory=time.monotonic)
    calls: dict[str, Calls] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Failures by kind, as they were said."""
    acknowledged: int = 0
    maybe: Counter[str] = field(default_factory=Counter)
    """Of the writes that *may have executed*: how many had, and how many had not."""
    room_made: float = 0.0
    is_full: bool = False

    @property
    def at_s(self) -> float:
        return time.monotonic() - self.began

    @contextmanager
    def disk_is_full(self) -> Iterator[None]:
        self.is_full = True
        try:
            yield
        finally:
            self.is_full = False
            self.room_made = time.monotonic()

    @property
    def excused(self) -> bool:
        """Whether the disk is full, or has been within the last two seconds."""
        return self.is_full or time.monotonic() - self.room_made < 2.0

    def took(self, name: str, said: Said, *, reads: bool, repeatable: bool, excused: bool) -> Said:
        """Count an answer; `excused` is what it was when the call was made."""
        calls = self.calls.setdefault(name, Calls(reads, repeatable))
        (calls.full_disk if excused or self.excused else calls.kinds)[said.kind] += 1
        if said.kind == "hung":
            self.hung.append(f"{self.at_s:.1f} s: {name}")
        if not said.ok:
            known = self.examples[f"{name}: {said.kind}"]
            if len(known) < EXAMPLES:
                known.append(f"{self.at_s:.1f} s: {said.text[:200]}")
        elif not reads:
            self.acknowledged += 1
        return said

    def availability(self, *, full_disk: bool, names: Sequence[str] | None = None) -> float:
        """Share of calls answered as they should be: of repeatable ones outside, of reads inside full-disk windows."""
        good = every = 0
        for name, calls in self.calls.items():
            counted = calls.full_disk if full_disk else calls.kinds
            if (calls.reads if full_disk else calls.repeatable) and (names is None or name in names):
                good += counted["ok"]
                every += counted.total()
        return good / every if every else 1.0


def quantile(values: Sequence[float], share: float) -> float:
    """Of values in any order; 0 of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def report(record: Record, further: Sequence[str]) -> str:
    """For people."""
    lines = [
        f"{len(record.faults)} faults in {record.at_s:.0f} s; {record.acknowledged} writes acknowledged",
        f"lost {len(record.lost)}, wrong {len(record.wrong)}, hung {len(record.hung)}",
        f"availability of repeatable calls {record.availability(full_disk=False):.4%}; "
        f"of reads while the disk is full {record.availability(full_disk=True):.4%}",
        f"may have executed: {record.maybe['done']} had, {record.maybe['not done']} had not",
        "",
        f"{'operation':<24} {'calls':>7} {'ok':>8}   other answers (while the disk was full)",
    ]
    for name, calls in sorted(record.calls.items()):
        total = calls.kinds.total()
        share = f"{calls.kinds['ok'] / total:8.3%}" if total else "       -"
        other = ", ".join(f"{kind} {n}" for kind, n in calls.kinds.most_common() if kind != "ok")
        full = ", ".join(f"{kind} {n}" for kind, n in calls.full_disk.most_common())
        lines.append(f"{name:<24} {total:>7} {share}   {other}{f' ({full})' if full else ''}")
    lines += ["", f"{'fault':<28} {'times':>5} {'p50 s':>7} {'p99 s':>7} {'none':>5}   recovery: to the next answer"]
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in record.faults:
        by_kind[fault.kind].append(fault)
    for kind, faults in sorted(by_kind.items()):
        took = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
        none = len(faults) - len(took)
        lines.append(f"{kind:<28} {len(faults):>5} {quantile(took, 0.5):>7.2f} {quantile(took, 0.99):>7.2f} {none:>5}")
    lines += [
        f"    {fault.at_s:.1f} s: no answer after {kind} of {fault.target}"
        for kind, faults in sorted(by_kind.items())
        for fault in faults
        if fault.recovery_s is None
    ]
    lines += ["", *further]
    for title, found in (("LOST", record.lost), ("WRONG", record.wrong), ("HUNG", record.hung)):
        lines += [f"{title}: {text}" for text in found[:EXAMPLES]]
    for kind, found in sorted(record.examples.items()):
        lines += [f"{kind}", *(f"    {text}" for text in found[:3])]
    return "\n".join(lines)
