"""Between which values the inputs of each dense layer lie, seen on a sample."""

from __future__ import annotations

import enum

import torch
from torch import Tensor


class Input(enum.Enum):
    """Of which of a layer's products."""

    QKV = "qkv"
    OUT = "out"
    UP = "up"
    DOWN = "down"


class Ranges:
    """The least and the largest value of each channel, by layer and input."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, Input], tuple[Tensor, Tensor]] = {}

    def see(self, layer: int, which: Input, rows: Tensor) -> None:
        """`rows` of shape (tokens, channels) are an input."""
        low, high = (each.float() for each in torch.aminmax(rows, dim=0))
        if (before := self._seen.get((layer, which))) is not None:
            low, high = torch.minimum(low, before[0]), torch.maximum(high, before[1])
        self._seen[layer, which] = low, high

    def of(self, layer: int, which: Input) -> tuple[Tensor, Tensor]:
        """Low and high, each of shape (channels,).  Raises KeyError for what was never seen."""
        return self._seen[layer, which]
