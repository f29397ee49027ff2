"""The figures of a comparison: samples, medians, ratios, and which of them are above the limit."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Subject = Literal["base", "this"]

BASE: Final[Subject] = "base"
THIS: Final[Subject] = "this"
BOTH: Final[tuple[Subject, Subject]] = (BASE, THIS)

NAME_WIDTH = 42


def turns(rounds: int) -> list[tuple[Subject, Subject]]:
    """Return who is measured first and second in each round: alternately, so that a drift affects both equally."""
    return [BOTH if number % 2 == 0 else (THIS, BASE) for number in range(rounds)]


@dataclass
class Row:
    """One path: the samples of both subjects, one list for each block.

    Attributes:
        is_rate: more is better, as with calls per second.
        note: printed behind the figures.
    """

    name: str
    unit: str
    is_rate: bool = False
    note: str = ""
    blocks: dict[Subject, list[Sequence[float]]] = field(default_factory=lambda: {BASE: [], THIS: []})
    failures: dict[Subject, str] = field(default_factory=dict)

    def add(self, subject: Subject, samples: Sequence[float]) -> None:
        self.blocks[subject].append(samples)

    def middle(self, subject: Subject) -> float | None:
        """Return the median of all samples, or None if there are no samples or one of the calls failed."""
        samples = [sample for block in self.blocks[subject] for sample in block]
        return statistics.median(samples) if samples and subject not in self.failures else None

    def ratio(self) -> float | None:
        """Return how many times the cost of the base this checkout has, so above 1 is worse for rates as well."""
        return self._cost_ratio(self.middle(BASE), self.middle(THIS))

    def spread(self) -> tuple[float, float] | None:
        """Return the lowest and the highest ratio of the blocks of one round."""
        pairs = zip(self.blocks[BASE], self.blocks[THIS], strict=False)
        ratios = [self._cost_ratio(statistics.median(base), statistics.median(this)) for base, this in pairs]
        found = [ratio for ratio in ratios if ratio is not None]
        return (min(found), max(found)) if found and self.ratio() is not None else None

    def _cost_ratio(self, base: float | None, this: float | None) -> float | None:
        if base is None or this is None or not base or not this:
            return None
        return base / this if self.is_rate else this / base

    def is_slower(self, limit: float) -> bool:
        """Return True if the ratio is above the limit, or if only this checkout fails."""
        ratio = self.ratio()
        if ratio is None:
            return THIS in self.failures and BASE not in self.failures
        return ratio > limit

    def line(self, limit: float) -> str:
        """Return the row of the table."""
        ratio, spread = self.ratio(), self.spread()
        remarks = ["SLOWER"] if self.is_slower(limit) else []
        remarks += [f"{subject}: {text}" for subject, text in self.failures.items()]
        remarks += [self.note] if self.note else []
        return (
            f"{self.name:<{NAME_WIDTH}}{_figure(self.middle(BASE)):>10}{_figure(self.middle(THIS)):>10} {self.unit:<8}"
            f"{_figure(ratio):>7}  {f'{spread[0]:.2f}-{spread[1]:.2f}' if spread else '':<11} {'; '.join(remarks)}"
        ).rstrip()

    def as_json(self, limit: float) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "base": self.middle(BASE),
            "this": self.middle(THIS),
            "ratio": self.ratio(),
            "rounds": self.spread(),
            "samples": {subject: sum(map(len, blocks)) for subject, blocks in self.blocks.items()},
            "slower": self.is_slower(limit),
            "failures": self.failures,
            "note": self.note,
        }


def heading() -> str:
    return f"{'p50':<{NAME_WIDTH}}{'base':>10}{'this':>10} {'':<8}{'ratio':>7}  {'rounds':<11}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
