"""How sequences lie in a packed matrix: one after the other, one row a token, and how attention takes them apart."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from services.embed.lengths import round_up

LONGEST_BLOCK = 1024
"""Sequences up to this length are taken together, as many as one of this length has scores: 25 MB with 12 heads."""


class Layout(msgspec.Struct, frozen=True):
    """How a packed matrix is cut: `(length, count)` of each run of equally long sequences, and rows of filler
    behind."""

    runs: tuple[tuple[int, int], ...]
    rows: int

    @classmethod
    def of(cls, lengths: Sequence[int], rows: int) -> Layout:
        """For sequences of these `lengths`, in order, in a matrix of `rows` rows."""
        return cls(tuple((length, len(list(run))) for length, run in itertools.groupby(lengths)), rows)

    @property
    def tokens(self) -> int:
        return sum(length * count for length, count in self.runs)


class Padding(msgspec.Struct, frozen=True):
    """How sequences of unlike length become a block of `length` each.

    Attributes:
        rows: of each place in the block the group's row, shape (count * length,); what is filler repeats the first row
            of its sequence, so that whatever is computed of it is in range.
        real: 1 where a place holds a token, 0 where it is filler, shape (count, length).
        places: of each row of the group its place in the block, shape (tokens,).
    """

    rows: Tensor
    real: Tensor
    places: Tensor


class Group(msgspec.Struct, frozen=True):
    """Sequences that lie one after the other from row `start` on, for attention at once: `count` of them, each filled
    up to `length`; without `padding` they are of that length by themselves."""

    start: int
    runs: Layout
    length: int
    count: int
    padding: Padding | None


def groups_of(layout: Layout) -> list[Group]:
    """The sequences of `layout`, those of nearly the same length together.

    A call of an operator costs more than a few rows of filler do. Lengths and counts are few, since oneDNN makes and
    keeps a kernel for each pair of them that it meets.
    """
    found: list[Group] = []
    lengths = [length for length, count in layout.runs for _ in range(count)]
    row = 0
    for length, like in itertools.groupby(lengths, round_up):
        left = list(like)
        while left:
            taken = left[: _most_at_once(min(len(left), max(1, LONGEST_BLOCK**2 // length**2)))]
            left = left[len(taken) :]
            runs = Layout.of(taken, sum(taken))
            padding = None if runs.runs == ((length, len(taken)),) else _pad(taken, length)
            found.append(Group(row, runs, length, len(taken), padding))
            row += runs.rows
    return found


def _most_at_once(count: int) -> int:
    """The largest of 1, 2, 3, 4, 6, 8, 12, 16, … that is not more than `count`."""
    power: int = 1 << (count.bit_length() - 1)
    return power + power // 2 if power > 1 and count >= power + power // 2 else power


def _pad(lengths: Sequence[int], length: int) -> Padding:
    counts = torch.tensor(lengths).unsqueeze(1)
    starts = counts.cumsum(0) - counts
    place = torch.arange(length)
    real = place < counts
    return Padding(
        rows=(starts + torch.where(real, place, 0)).flatten(),
        real=real,
        places=real.flatten().nonzero().squeeze(1),
    )
