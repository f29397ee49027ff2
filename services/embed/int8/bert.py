"""The BERT encoder over packed sequences (`services.embed.bert`) with dense layers of 8 bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from services.embed.attention import exp_attention, exponent_scale
from services.embed.bert import PackedBert
from services.embed.int8.products import FeedForward, Product, Scaling, in_8_bits
from services.embed.int8.ranges import Input, Ranges
from services.embed.layout import Group, Layout, groups_of
from services.embed.shape import Shape

_OUTER_SHARE, _ATTENDED_SHARE = 0.8, 0.3
"""What costs least of cosine on all-MiniLM-L6-v2: where a norm is before the layer, its channels differ most."""


class Int8Bert:
    """The encoder on a CPU; nothing changes after construction, so several threads may call it.

    Args:
        tensors: the checkpoint's tensors by name.
        base: the encoder of the same tensors in bf16, whose embeddings it shares.
        ranges: of the inputs of all of `base`'s layers, on a sample.

    Raises:
        RuntimeError, AttributeError: this torch or this processor has no such products.
    """

    def __init__(self, tensors: Mapping[str, Tensor], shape: Shape, base: PackedBert, ranges: Ranges) -> None:
        self._base = base
        self._layers = [_Layer(tensors, shape, number, ranges) for number in range(shape.layers)]

    def __call__(self, ids: Tensor, layout: Layout) -> Tensor:
        """The last hidden states in float32, shape (layout.rows, hidden); as `PackedBert` has it."""
        x = self._base.embed(ids, layout).float()
        groups = groups_of(layout)
        for layer in self._layers:
            x = layer(x, layout, groups)
        return x


class _Layer:
    def __init__(self, tensors: Mapping[str, Tensor], shape: Shape, number: int, ranges: Ranges) -> None:
        prefix = f"{shape.prefix}encoder.layer.{number}."

        def pair(name: str) -> tuple[Tensor, Tensor]:
            return tensors[f"{prefix}{name}.weight"].float(), tensors[f"{prefix}{name}.bias"].float()

        self._heads, self._hidden, self._epsilon = shape.heads, shape.hidden, shape.epsilon
        self._attention_norm, self._output_norm = pair("attention.output.LayerNorm"), pair("output.LayerNorm")
        out = pair("attention.output.dense")
        attended = Scaling(*ranges.of(number, Input.OUT), out[0], _ATTENDED_SHARE)
        self._out = Product(attended, *out)
        scale = exponent_scale(shape.hidden // shape.heads)
        query, key, value = (pair(f"attention.self.{name}") for name in ("query", "key", "value"))
        # Attention mixes values by weights that add up to one, so what the next layer wants done to each channel of
        # the mixture is done to the values.
        value = attended.rows_in_steps(*value)
        weight = torch.cat([query[0] * scale, key[0], value[0]])
        self._state = Scaling(*ranges.of(number, Input.QKV), weight, _OUTER_SHARE)
        self._qkv = Product(self._state, weight, torch.cat([query[1] * scale, key[1], value[1]]))
        up, down = pair("intermediate.dense"), pair("output.dense")
        normed = Scaling(*ranges.of(number, Input.UP), up[0], _OUTER_SHARE)
        self._feed_forward = FeedForward(normed, up, down, ranges.of(number, Input.DOWN)[1], shape.activation)

    def __call__(self, x: Tensor, layout: Layout, groups: list[Group]) -> Tensor:
        attended = exp_attention(self._qkv(self._state(x)), layout, groups, self._heads)
        x = self._normalise(self._out.add_to(x, in_8_bits(attended.float())), self._attention_norm)
        return self._normalise(self._feed_forward.add_to(x), self._output_norm)

    def _normalise(self, x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return F.layer_norm(x, (self._hidden,), *norm, self._epsilon)
