"""The BERT encoder over packed sequences: no padding, no token is computed that is not in a text.

All sequences of a batch lie one after the other in one matrix for the dense layers, and only attention looks at them
apart, in groups of equal length. On two cores this is four times as fast as a padded batch of mixed lengths. Covers
the families whose encoder is BERT's (BERT, RoBERTa, XLM-R) with absolute positions; others go through `families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from services.embed.attention import exp_attention, exponent_scale, flash_attention
from services.embed.dense import dense
from services.embed.int8.ranges import Input, Ranges
from services.embed.layout import Layout, groups_of
from services.embed.shape import Shape

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class _Take(Protocol):
    """A tensor of the checkpoint, multiplied while it is still exact."""

    def __call__(self, name: str, scale: float = 1.0) -> Tensor: ...


class _Layer:
    def __init__(self, take: _Take, prefix: str, activation: Callable[[Tensor], Tensor], query_scale: float) -> None:
        attention = prefix + "attention.self."
        names = {"query": query_scale, "key": 1.0, "value": 1.0}
        # One product instead of three: a short query is bound by the number of calls.
        self.qkv = dense(
            torch.cat([take(f"{attention}{name}.weight", scale) for name, scale in names.items()]).contiguous(),
            torch.cat([take(f"{attention}{name}.bias", scale) for name, scale in names.items()]),
        )
        self.out = dense(*_pair(take, prefix + "attention.output.dense"))
        self.attention_norm = _pair(take, prefix + "attention.output.LayerNorm")
        self.up = dense(*_pair(take, prefix + "intermediate.dense"), activation)
        self.down = dense(*_pair(take, prefix + "output.dense"))
        self.output_norm = _pair(take, prefix + "output.LayerNorm")


def _pair(take: _Take, name: str) -> tuple[Tensor, Tensor]:
    return take(name + ".weight"), take(name + ".bias")


class PackedBert:
    """The encoder's weights on one device; nothing changes after construction, so several threads may call it.

    Args:
        tensors: the checkpoint's tensors by name, with or without the family's prefix.
        config: its `config.json`, one that `services.embed.shape.supports` admits.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = Shape.of(config, tensors)
        prefix = shape.prefix

        def take(name: str, scale: float = 1.0) -> Tensor:
            found = tensors[prefix + name]
            return (found if scale == 1.0 else found.float() * scale).to(device=device, dtype=dtype)

        self.hidden, self.heads = shape.hidden, shape.heads
        self.dtype, self.device = dtype, device
        self._epsilon = shape.epsilon
        activation = _ACTIVATIONS[shape.activation]
        self._first_position = shape.first_position
        # The vocabulary's table stays as it is on disk: a few of its rows are read at a time, so most of it never
        # enters memory.
        words = tensors[f"{prefix}embeddings.word_embeddings.weight"]
        self._words = words if device.type == "cpu" else words.to(device=device, dtype=dtype)
        # Every token is of type 0, so that row is added to the positions once.
        self._positions = (
            take("embeddings.position_embeddings.weight") + take("embeddings.token_type_embeddings.weight")[0]
        )
        self._norm = _pair(take, "embeddings.LayerNorm")
        self._by_exponent = device.type == "cpu" and dtype is torch.bfloat16
        query_scale = exponent_scale(self.hidden // self.heads) if self._by_exponent else 1.0
        self._layers = [_Layer(take, f"encoder.layer.{i}.", activation, query_scale) for i in range(shape.layers)]

    def __call__(self, ids: Tensor, layout: Layout, ranges: Ranges | None = None) -> Tensor:
        """The last hidden states, shape (layout.rows, hidden).

        `ids` has one token id a row, sequences as in `layout`, filler rows (any valid id) at the end. `ranges` is
        shown what goes into each dense layer.
        """
        x = self.embed(ids, layout)
        groups = groups_of(layout) if self._by_exponent else []
        for number, layer in enumerate(self._layers):
            qkv = layer.qkv(x)
            if self._by_exponent:
                attended = exp_attention(qkv, layout, groups, self.heads)
            else:
                attended = flash_attention(qkv, layout, self.heads)
            normed = self._normalise(layer.out(attended, plus=x), layer.attention_norm)
            inner = layer.up(normed)
            if ranges is not None:
                for which, rows in zip(Input, (x, attended, normed, inner), strict=True):
                    ranges.see(number, which, rows[: layout.tokens])
            x = self._normalise(layer.down(inner, plus=normed), layer.output_norm)
        return x

    def embed(self, ids: Tensor, layout: Layout) -> Tensor:
        """What goes into the first layer, shape (layout.rows, hidden)."""
        x = F.embedding(ids, self._words).to(self.dtype) + self._position_rows(layout)
        return self._normalise(x, self._norm)

    def _position_rows(self, layout: Layout) -> Tensor:
        start = self._first_position
        pieces = [self._positions[start : start + length].repeat(count, 1) for length, count in layout.runs]
        filler = layout.rows - layout.tokens
        if filler:
            pieces.append(self._positions[start].expand(filler, -1))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]

    def _normalise(self, x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, (self.hidden,), norm[0], norm[1], self._epsilon)
