"""What a storm found: counts by kind of storm, faults with examples, and what was not tried."""

from __future__ import annotations

import msgspec

from proto.control.terminal import Cell, counted, duration, say, show_json, show_table, size
from proto.json_types import JsonObject

MEANINGS = {
    "no start": "the server cannot be used from the beginning",
    "hung": "a request got no answer in time",
    "doubled": "a request got more answers than one",
    "foreign": "an answer belongs to no request",
    "torn": "stdout has something that is no message of MCP",
    "died": "the server ended by itself",
    "changed": "an answer differs from the one before the storm",
    "stays": "the server runs on after its stdin was closed",
    "orphan": "processes of the server live on after its end",
    "grew": "memory or open files grow with each call, without an end in sight",
    "write lost": "a write was acknowledged, and is not there",
    "write doubled": "a write is there more often than it was made",
    "write torn": "a write is there in part, or nothing can be read any more",
}
"""The kinds of faults."""

SHOWN = 3
"""So many examples of a fault are kept."""


class Fault(msgspec.Struct, kw_only=True):
    """Something wrong, with examples. `how` tells faults of one kind apart."""

    kind: str
    storm: str
    how: str = ""
    count: int = 0
    examples: list[str] = msgspec.field(default_factory=list)


class Tally(msgspec.Struct, kw_only=True):
    """What was done in one kind of storm.

    Attributes:
        unknown: requests in flight when the server was killed, or its stdin closed: no answer is owed.
        passed_over: what is no valid request, or was cancelled, and got no answer. None is owed.
    """

    steps: int = 0
    requests: int = 0
    answered: int = 0
    unknown: int = 0
    passed_over: int = 0
    notifications: int = 0


class Growth(msgspec.Struct, kw_only=True):
    """Memory and open files after each round of calls."""

    calls_a_round: int
    memory_bytes: list[int]
    open_files: list[int]


class Report(msgspec.Struct, kw_only=True):
    """Everything about one run."""

    command: list[str]
    seed: int
    seconds: float
    server: JsonObject = msgspec.field(default_factory=dict)
    starts_s: list[float] = msgspec.field(default_factory=list)
    """From the start of the process to its answer to `initialize`."""
    called: list[str] = msgspec.field(default_factory=list)
    not_tried: list[str] = msgspec.field(default_factory=list)
    not_compared: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    storms: dict[str, Tally] = msgspec.field(default_factory=dict)
    writes: dict[str, int] = msgspec.field(default_factory=dict)
    growth: Growth | None = None
    slowest_turn_s: float = 0.0
    """The longest time in which this program itself did not run: a busy machine."""
    interrupted: bool = False
    refused: str = ""
    """Which option the server cannot serve; nothing else is reported then."""
    faults: list[Fault] = msgspec.field(default_factory=list)

    def add(self, kind: str, storm: str, example: str, how: str) -> None:
        """Count a fault."""
        for fault in self.faults:
            if (fault.kind, fault.storm, fault.how) == (kind, storm, how):
                break
        else:
            fault = Fault(kind=kind, storm=storm, how=how)
            self.faults.append(fault)
        fault.count += 1
        if len(fault.examples) < SHOWN and example not in fault.examples:
            fault.examples.append(example)

    def tally(self, storm: str) -> Tally:
        return self.storms.setdefault(storm, Tally())


def show(report: Report, *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        show_json(msgspec.to_builtins(report))
        return
    name = " ".join(str(report.server[key]) for key in ("name", "version") if key in report.server)
    say(f"{name or 'unknown server'}: {' '.join(report.command)}")
    say(f"seed {report.seed}, {duration(report.seconds)}; {_starts(report)}", "")
    faults = {storm: sum(each.count for each in report.faults if each.storm == storm) for storm in report.storms}
    rows: list[list[Cell]] = [
        [
            storm, str(tally.steps), str(tally.requests), str(tally.answered), str(tally.unknown),
            str(tally.passed_over), (str(faults[storm]), "red" if faults[storm] else "green"),
        ]
        for storm, tally in report.storms.items()
    ]  # fmt: skip
    show_table(("storm", "steps", "requests", "answered", "unknown", "passed over", "faults"), rows)
    say("", *_about(report))
    if not report.faults:
        say("", ("no fault found", "green"))
        return
    say("", (counted(len(report.faults), "fault"), "bold red"))
    for fault in report.faults:
        where = f"{fault.storm}, {fault.how}" if fault.how else fault.storm
        say([(fault.kind, "red"), f", {counted(fault.count, 'time')}, {where}: {MEANINGS[fault.kind]}"])
        say(*(f"    {example}" for example in fault.examples))


def _starts(report: Report) -> str:
    starts = sorted(report.starts_s)
    if not starts:
        return "never started"
    middle = starts[len(starts) // 2]
    return f"{counted(len(starts), 'start')}, first answer after {middle:.2f} s (longest {starts[-1]:.2f} s)"


def _about(report: Report) -> list[str]:
    lines = [f"called: {', '.join(report.called) or 'no tool; only `ping` and `tools/list`'}"]
    if report.not_tried:
        lines.append(f"not tried: {'; '.join(report.not_tried)}")
    if report.not_compared:
        lines.append(f"answers not compared, since they differ by themselves: {', '.join(report.not_compared)}")
    if report.writes:
        lines.append(f"writes: {', '.join(f'{count} {what}' for what, count in report.writes.items())}")
    if (growth := report.growth) is not None and growth.memory_bytes:
        first, last = growth.memory_bytes[0], growth.memory_bytes[-1]
        calls = growth.calls_a_round * len(growth.memory_bytes)
        files = f"{growth.open_files[0]} to {growth.open_files[-1]} open files"
        lines.append(f"growth: {size(first)} to {size(last)} and {files} over {calls:,} calls in one process")
    if report.slowest_turn_s > 1:
        lines.append(f"the machine is busy: this program itself had to wait {report.slowest_turn_s:.1f} s")
    lines += [f"note: {note}" for note in report.notes]
    if report.interrupted:
        lines.append("interrupted: only a part of the storm was made")
    return lines
