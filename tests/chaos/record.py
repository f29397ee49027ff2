"""The record of a run: calls by operation, lost, wrong and hung ones, and the effect of each fault."""

from __future__ import annotations

import enum
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.chaos.clients import CallOutcome

EXAMPLES = 12

AFTER_S = 2.0
"""How long after a window a failure is still attributed to it, since recovery must be complete by then."""

SERVICES = {"mcp.echo": "echo", "yaml_get": "yaml", "yaml_set": "yaml", "graph_neighbors": "graph"}
"""Services behind the operations whose frames are dropped on purpose."""


class Window(enum.StrEnum):
    """A period in which failures are excused."""

    NONE = "-"
    FULL = "full disk"
    """Writes may fail; reads may not."""
    DROPPED = "its frame was dropped"
    DOWN = "nothing can be written, and no kernel starts"


@dataclass
class Calls:
    """The calls of one operation: outcomes by window."""

    reads: bool
    repeatable: bool
    """True if the system may retry the call by itself: failures are then excused only in a window."""
    kinds: dict[Window, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


@dataclass
class Fault:
    kind: str
    targets: Sequence[str]
    at_s: float
    recovery_s: float | None = None
    """Time from the fault until all its targets answered; None if that was not in time."""


@dataclass
class Record:
    """The record of one run; `at_s` are seconds since its start."""

    began: float = field(default_factory=time.monotonic)
    calls: dict[str, Calls] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """What changed by itself after an uncertain answer, once its client had looked."""
    looked: int = 0
    """How often a client looked after an uncertain answer."""
    hung: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Texts of failures, by kind."""
    took_s: list[float] = field(default_factory=list)
    """The duration of each call."""
    acknowledged: int = 0
    maybe: Counter[str] = field(default_factory=Counter)
    """How many uncertain writes had executed, and how many had not."""
    frames_lost: Counter[str] = field(default_factory=Counter)
    """Calls and answers dropped on purpose, by service: each causes one call to time out."""
    lasted_s: float = 0.0
    """Duration of the load, without the comparison."""
    open: Window = Window.NONE
    closed: tuple[Window, float] = (Window.NONE, 0.0)

    @property
    def at_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def failed(self) -> bool:
        return bool(self.lost or self.wrong or self.late or self.hung or self.orphans)

    @contextmanager
    def opened(self, window: Window) -> Iterator[None]:
        self.open = window
        try:
            yield
        finally:
            self.open, self.closed = Window.NONE, (window, time.monotonic())

    @property
    def window(self) -> Window:
        """The current window, including the two seconds after it."""
        if self.open is Window.NONE and time.monotonic() - self.closed[1] < AFTER_S:
            return self.closed[0]
        return self.open

    def took(
        self, name: str, said: CallOutcome, *, reads: bool, repeatable: bool, window: Window, since: float
    ) -> CallOutcome:
        """Count an outcome; `window` is the one at the time of the call, `since` its start on the monotonic clock."""
        calls = self.calls.setdefault(name, Calls(reads, repeatable))
        service = SERVICES.get(name, "")
        if said.kind == "timeout" and self.frames_lost[service] > 0:
            self.frames_lost[service] -= 1
            window = Window.DROPPED
        calls.kinds[window if window is not Window.NONE else self.window][said.kind] += 1
        self.took_s.append(time.monotonic() - since)
        if said.kind == "hung":
            self.hung.append(f"{self.at_s:.1f} s: {name}")
        if not said.ok:
            known = self.examples[f"{name}: {said.kind}"]
            if len(known) < EXAMPLES:
                known.append(f"{self.at_s:.1f} s: {said.text[:200]}")
        elif not reads:
            self.acknowledged += 1
        return said

    def availability(self, window: Window) -> float:
        """Return the share of calls with the expected outcome: of repeatable calls, or of reads while the disk is
        full."""
        counted = [
            calls.kinds[window]
            for calls in self.calls.values()
            if (calls.reads if window is Window.FULL else calls.repeatable)
        ]
        every = sum(kinds.total() for kinds in counted)
        return sum(kinds["ok"] for kinds in counted) / every if every else 1.0


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of values in any order; 0 if there are no values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def report(record: Record, further: Sequence[str]) -> str:
    """Format the report for people."""
    lines = [
        f"{len(record.faults)} faults in {record.lasted_s:.0f} s; {record.acknowledged} writes acknowledged",
        f"lost {len(record.lost)}, wrong {len(record.wrong)}, late {len(record.late)}, "
        f"hung {len(record.hung)}, orphans {len(record.orphans)}",
        f"availability of repeatable calls {record.availability(Window.NONE):.4%}; "
        f"of reads while the disk is full {record.availability(Window.FULL):.4%}",
        f"may have executed: {record.maybe['done']} had, {record.maybe['not done']} had not; "
        f"{record.looked} were looked at",
        f"calls: p50 {quantile(record.took_s, 0.5):.3f} s, p99 {quantile(record.took_s, 0.99):.3f} s",
        *("", *_of_operations(record), "", *_of_faults(record.faults), "", *further),
    ]
    found = (
        ("LOST", record.lost),
        ("WRONG", record.wrong),
        ("LATE", record.late),
        ("HUNG", record.hung),
        ("ORPHAN", record.orphans),
    )
    for title, texts in found:
        lines += [f"{title}: {text}" for text in texts[:EXAMPLES]]
    for kind, examples in sorted(record.examples.items()):
        lines += [f"{kind}", *(f"    {text}" for text in examples[:3])]
    return "\n".join(lines)


def _of_operations(record: Record) -> Iterator[str]:
    yield f"{'operation':<24} {'calls':>7} {'ok':>8}   other answers (answers within a window)"
    for name, calls in sorted(record.calls.items()):
        ordinary = calls.kinds[Window.NONE]
        share = f"{ordinary['ok'] / ordinary.total():8.3%}" if ordinary else "       -"
        other = ", ".join(f"{kind} {n}" for kind, n in ordinary.most_common() if kind != "ok")
        for window in (Window.FULL, Window.DROPPED, Window.DOWN):
            if kinds := calls.kinds[window]:
                other += f" ({window.name.lower()}: {', '.join(f'{kind} {n}' for kind, n in kinds.most_common())})"
        yield f"{name:<24} {ordinary.total():>7} {share}   {other}"


def _of_faults(faults: Sequence[Fault]) -> Iterator[str]:
    yield f"{'fault':<28} {'times':>5} {'p50 s':>7} {'p99 s':>7} {'none':>5}   recovery: to the next answer"
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
    for kind, found in sorted(by_kind.items()):
        took = [fault.recovery_s for fault in found if fault.recovery_s is not None]
        none = len(found) - len(took)
        yield f"{kind:<28} {len(found):>5} {quantile(took, 0.5):>7.2f} {quantile(took, 0.99):>7.2f} {none:>5}"
    slow = sorted((fault for fault in faults if fault.recovery_s), key=lambda fault: fault.recovery_s or 0)[-5:]
    for fault in [fault for fault in faults if fault.recovery_s is None] + slow[::-1]:
        took_s = "no answer" if fault.recovery_s is None else f"{fault.recovery_s:.2f} s"
        yield f"    {fault.at_s:.1f} s: {took_s} after {fault.kind} of {', '.join(fault.targets)}"
