"""Dense layers with weights and activations of 8 bits, by oneDNN.

Sources: Xiao et al., SmoothQuant (2023), for moving a channel's size from the activations to the weights; Wei et al.,
Outlier Suppression+ (2023), for shifting each channel to the middle of its range; Dettmers et al., LLM.int8() (2022),
for keeping the few channels that are far larger than the rest in floating point.

A layer's input is `shift + scale * step * q` for each channel, with q from -128 to 127: all three are made once from
a sample, so that no text is rounded more coarsely for what it is computed with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MARGIN = 1.15
"""How much further than in the sample an activation may go before it is cut."""

OUTLIERS = 16
"""Channels behind the activation that stay in float32."""

_LEAST_GELU = -0.17
"""The least value of GELU, and of its approximation by tanh."""

_MIDDLE = 128
"""What stands for zero where 8 bits have no sign: oneDNN has no quick kernel for activations with one."""

_SMALL = 1e-5

_ALGORITHMS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def supports(activation: str) -> bool:
    """Whether the activation of this name (`hidden_act` of a `config.json`) can follow a product in 8 bits."""
    return activation in _ALGORITHMS


class Scaling:
    """How the channels of a layer's input become 8 bits.

    Args:
        low, high: of each channel in the sample, shape (channels,).
        weight: of the layer, shape (out, channels).
        share: of a channel's size that is taken off it and put to its weights: 1 makes all channels alike and leaves
            the whole to the weights.
    """

    def __init__(self, low: Tensor, high: Tensor, weight: Tensor, share: float) -> None:
        self.shift = (low + high) / 2
        reach = ((high - low) / 2).clamp(min=1e-3)
        largest = weight.abs().amax(0).clamp(min=_SMALL)
        self.scale = reach**share / largest ** (1 - share)
        self.step = float((reach / self.scale).max()) * MARGIN / 127
        self._factor = (1 / (self.scale * self.step))[None]
        self._offset = -self.shift[None] * self._factor

    def rows_in_steps(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """A layer whose output is the input of this one, so that it answers in steps by itself."""
        factor = self._factor[0]
        return weight * factor[:, None], (bias - self.shift) * factor

    def __call__(self, x: Tensor) -> Tensor:
        """float32 of shape (rows, channels) to 8 bits."""
        return in_8_bits(torch.addcmul(self._offset, x, self._factor))


def in_8_bits(steps: Tensor) -> Tensor:
    """Numbers of steps, float32, to 8 bits without sign; `steps` is overwritten."""
    # To int8 and from there: torch converts to uint8 one number at a time.
    return steps.round_().clamp_(-128, 127).to(torch.int8).view(torch.uint8).bitwise_xor_(_MIDDLE)


class _Packed:
    """Weights of shape (out, in) in 8 bits, with a scale for each row, laid out as the processor wants them."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._scales = (weight.abs().amax(1) / 127).clamp(min=1e-12)
        bits = (weight / self._scales[:, None]).round().to(torch.int8)
        self._weight: Tensor = torch.ops.onednn.qlinear_prepack(bits, None)
        self._zeros = torch.zeros(len(bits), dtype=torch.int32)
        self._bias = bias
        self._product: Callable[..., Tensor] = torch.ops.onednn.qlinear_pointwise.default
        self._sum: Callable[..., Tensor] = torch.ops.onednn.qlinear_pointwise.binary

    def __call__(
        self,
        q: Tensor,
        step: float,
        zero: int,
        out: torch.dtype,
        *,
        out_step: float = 1.0,
        out_zero: int = 0,
        after: tuple[str, str] = ("none", ""),
    ) -> Tensor:
        return self._product(
            q, step, zero, self._weight, self._scales, self._zeros, self._bias,
            out_step, out_zero, out, after[0], [], after[1],
        )  # fmt: skip

    def add_to(self, other: Tensor, q: Tensor, step: float, zero: int) -> Tensor:
        """`other`, float32, with the product added to it where it lies: a fifth quicker than a sum of its own."""
        return self._sum(
            q, step, zero, self._weight, self._scales, self._zeros, other, self._bias,
            1.0, 0, torch.float32, 1.0, 0, "sum", 1.0, "none", [], "",
        )  # fmt: skip


class Product:
    """x @ weight.T + bias for what `scaling` makes of x."""

    def __init__(self, scaling: Scaling, weight: Tensor, bias: Tensor) -> None:
        self._step = scaling.step
        self._packed = _Packed(weight * scaling.scale, bias + weight @ scaling.shift)

    def __call__(self, q: Tensor) -> Tensor:
        """8 bits of shape (rows, in) to bf16 of shape (rows, out)."""
        return self._packed(q, self._step, _MIDDLE, torch.bfloat16)

    def add_to(self, other: Tensor, q: Tensor) -> Tensor:
        """`other`, float32, with the product added to it where it lies."""
        return self._packed.add_to(other, q, self._step, _MIDDLE)


class FeedForward:
    """The two layers with the activation between them, which stays in 8 bits, but in float32 for the channels in which
    it is largest.

    Args:
        scaling: of the input.
        up, down: weight and bias of each layer.
        high: the largest value of each channel behind the activation in the sample, shape (inner,).
        activation: one that `supports` admits.
    """

    def __init__(
        self,
        scaling: Scaling,
        up: tuple[Tensor, Tensor],
        down: tuple[Tensor, Tensor],
        high: Tensor,
        activation: str,
    ) -> None:
        self._scaling = scaling
        self._after = ("gelu", _ALGORITHMS[activation])
        order = high.argsort(descending=True)
        few, rest = order[:OUTLIERS], order[OUTLIERS:].sort().values
        self._up = _Packed(up[0][rest] * scaling.scale, up[1][rest] + up[0][rest] @ scaling.shift)
        largest = max(float(high[rest].max()), 1.0) * MARGIN
        self._inner_step = (largest - _LEAST_GELU) / 255
        self._inner_zero = round(-_LEAST_GELU / self._inner_step)
        self._down = _Packed(down[0][:, rest], down[1])
        self._few_up = _Packed(up[0][few] * scaling.scale, up[1][few] + up[0][few] @ scaling.shift)
        self._few_down = down[0][:, few].t().contiguous()

    def add_to(self, x: Tensor) -> Tensor:
        """`x`, float32 of shape (rows, hidden), with what the layers make of it added where it lies."""
        q = self._scaling(x)
        inner = self._up(
            q, self._scaling.step, _MIDDLE, torch.uint8,
            out_step=self._inner_step, out_zero=self._inner_zero, after=self._after,
        )  # fmt: skip
        few = self._few_up(q, self._scaling.step, _MIDDLE, torch.float32, after=self._after)
        return self._down.add_to(x, inner, self._inner_step, self._inner_zero).addmm_(few, self._few_down)
