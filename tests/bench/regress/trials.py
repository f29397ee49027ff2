"""The list of trials to compare, in the order of measurement, and how each is run."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.parts.wire import Caller, Stdio
from tests.bench.regress.calls import CALLS, KEYED, Blocks, Call
from tests.bench.regress.checkouts import Checkout
from tests.bench.regress.figures import BASE, BOTH, THIS, Row, Subject, turns
from tests.bench.regress.kernels import Failed, Kernel, running_kernel, settle
from tests.bench.regress.starts import ColdStarts, KernelKills, join, kill_service, memory_at_rest

ECHO_CALLS = 60
IN_FLIGHT_CALLS = 200
IN_FLIGHT = 8

MEMORY_ROUNDS = 2

Measured = tuple[list[float], ...]


@dataclass(frozen=True)
class Trial:
    """Rows that one measurement fills.

    Attributes:
        measure: one block for a subject, with the samples of each row.
        finish: completes the rows after the last round.
        with_kernels: whether it needs the kernels that run during the whole comparison.
    """

    rows: tuple[Row, ...]
    measure: Callable[[Subject], Measured]
    finish: Callable[[], None] = lambda: None
    with_kernels: bool = True
    rounds: int | None = None


class Bench:
    """The two checkouts and their kernels, which start before the first trial that needs them."""

    def __init__(
        self,
        checkouts: Mapping[Subject, Checkout],
        folder: Path,
        stack: contextlib.ExitStack,
        *,
        rounds: int,
        limit: float,
    ) -> None:
        self._checkouts = checkouts
        self._folder = folder
        self._stack = stack
        self._rounds = rounds
        self._limit = limit

    @functools.cached_property
    def kernels(self) -> dict[Subject, Kernel]:
        started = {
            subject: self._stack.enter_context(running_kernel(self._checkouts[subject], self._folder / subject))
            for subject in BOTH
        }
        for kernel in started.values():
            kernel.prepare()
        settle(*(kernel.pid for kernel in started.values()), timeout_s=60, windows=5)
        return started

    def measured(self, trial: Trial) -> tuple[Row, ...]:
        """Run a trial, twice if it is above the limit, and return its rows."""
        rounds = min(self._rounds, trial.rounds or self._rounds)
        self._run(trial, rounds)
        if any(row.is_slower(self._limit) and row.ratio() is not None for row in trial.rows):
            self._run(trial, rounds)
        trial.finish()
        return trial.rows

    def _run(self, trial: Trial, rounds: int) -> None:
        for pair in turns(rounds):
            for subject in pair:
                if subject in trial.rows[0].failures:
                    continue
                if trial.with_kernels:
                    settle(*(kernel.pid for kernel in self.kernels.values()))
                try:
                    for row, samples in zip(trial.rows, trial.measure(subject), strict=True):
                        row.add(subject, samples)
                except (Failed, AssertionError, OSError, EOFError, ValueError, KeyError) as error:
                    for row in trial.rows:
                        row.failures[subject] = str(error) or type(error).__name__

    def trials(self, only: str) -> Iterator[Trial]:
        """Yield the trials with a row whose name contains `only`."""
        for trial in (
            self._memory(),
            *self._echo(),
            *map(self._call, CALLS),
            *(self._keyed(call) for call in CALLS if call.name in KEYED),
            self._joins(),
            *self._service_kills(),
            *self._starts(),
        ):
            if any(only in row.name for row in trial.rows):
                yield trial

    def _memory(self) -> Trial:
        # First, since pages that two running kernels share would count for half.
        row = Row("memory at rest", "MB")
        return Trial(
            (row,),
            lambda subject: (memory_at_rest(self._checkouts[subject]),),
            with_kernels=False,
            rounds=MEMORY_ROUNDS,
        )

    def _echo(self) -> Iterator[Trial]:
        yield self._echo_by("stdio", self._joiner)
        yield self._echo_by("HTTP", lambda subject: self.kernels[subject].http)

    @functools.cache  # noqa: B019  # one bench, which lives as long as the program
    def _joiner(self, subject: Subject) -> Caller:
        kernel = self.kernels[subject]
        caller = Stdio(kernel.checkout.command("stdio", "--data", str(kernel.data)))
        self._stack.callback(caller.close)
        caller.one_by_one(ECHO_CALLS)
        return caller

    def _echo_by(self, transport: str, caller: Callable[[Subject], Caller]) -> Trial:
        def measure(subject: Subject) -> Measured:
            taken = caller(subject).one_by_one(ECHO_CALLS)
            rate = caller(subject).in_flight(IN_FLIGHT_CALLS, IN_FLIGHT)
            return [seconds * 1000 for seconds in taken], [rate]

        rows = (
            Row(f"mcp.echo, {transport}", "ms"),
            Row(f"mcp.echo, {transport}, {IN_FLIGHT} in flight", "calls/s", is_rate=True),
        )
        return Trial(rows, measure)

    def _call(self, call: Call) -> Trial:
        blocks = functools.cache(lambda subject: Blocks(call, self.kernels[subject]))
        return Trial((Row(call.name, "ms"),), lambda subject: (blocks(subject).measure(),))

    def _keyed(self, call: Call) -> Trial:
        """This checkout with itself: the base is a call without a key."""
        blocks = functools.cache(lambda subject: Blocks(call, self.kernels[THIS], keyed=subject == THIS))
        row = Row(f"{call.name}, without / with key", "ms")
        return Trial((row,), lambda subject: (blocks(subject).measure(),))

    def _joins(self) -> Trial:
        rows = (Row("joining to initialize", "ms"), Row("joining to tools/list", "ms"))
        return Trial(rows, lambda subject: join(self.kernels[subject]))

    def _service_kills(self) -> Iterator[Trial]:
        def measure(subject: Subject, service: str) -> Measured:
            kernel = self.kernels[subject]
            yaml = {"file": str(kernel.root / "settings.yaml"), "path": "server.host"}
            tool, arguments = ("mcp.echo", {"message": "hello"}) if service == "echo" else ("yaml_get", yaml)
            return (kill_service(kernel, service, tool, arguments),)

        for service in ("echo", "yaml"):
            row = Row(f"kill -9 of {service} to the answer", "ms")
            yield Trial((row,), functools.partial(measure, service=service))

    def _starts(self) -> Iterator[Trial]:
        cold = ColdStarts(self._checkouts)
        opened, listed = Row("cold start to initialize", "ms"), Row("cold start to tools/list", "ms")

        def compare_with_peer() -> None:
            compared = statistics.median(cold.peer_ms)
            for row in (opened, listed):
                row.note = f"{_times(row, compared, compared)} the {compared:.0f} ms of `import mcp.server`"

        yield Trial((opened, listed), cold.measure, compare_with_peer)

        @functools.cache
        def kills(subject: Subject) -> KernelKills:
            made = KernelKills(self._checkouts[subject])
            self._stack.callback(made.close)
            return made

        killed = Row("kill -9 of the kernel to the answer", "ms")

        def compare_with_start() -> None:
            base, this = opened.middle(BASE), opened.middle(THIS)
            if base and this:
                killed.note = f"{_times(killed, base, this)} its own cold start"

        yield Trial((killed,), lambda subject: (kills(subject).measure(),), compare_with_start)


def _times(row: Row, base: float, this: float) -> str:
    """Return how many times these figures the row's are."""
    middles = ((row.middle(BASE), base), (row.middle(THIS), this))
    return " and ".join(f"{middle / compared:.2f}" if middle else "-" for middle, compared in middles) + " times"
