"""A dense layer whose weights lie as the processor's matrix unit wants them.

Given plain weights, oneDNN lays them out anew in every call: for a short query that is half of the time. The layout
is asked of the operators that torch's own compiler uses; they are no public interface, so they are tried at load, and
the plain layer stands in where they are not there or do not agree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


class Dense(Protocol):
    """x @ weight.T + bias over the last dimension, and what follows it."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainDense:
    """The layer as torch has it."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: Activation | None = None) -> None:
        self._weight, self._bias, self._activation = weight, bias, activation

    def __call__(self, x: Tensor) -> Tensor:
        product = F.linear(x, self._weight, self._bias)
        return product if self._activation is None else self._activation(product)


class PackedDense:
    """The layer with its weights laid out once; bf16 on a CPU only."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: Activation | None = None) -> None:
        # GELU while the product is still in registers; any other goes over it once more.
        self._after, self._variant = ("gelu", "none") if activation is F.gelu else ("none", "")
        self._activation = None if activation is F.gelu else activation
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        product = self._product(x, self._weight, self._bias, self._after, [], self._variant)
        return product if self._activation is None else self._activation(product)


def dense(weight: Tensor, bias: Tensor, activation: Activation | None = None) -> Dense:
    """The fastest layer there is for these weights where they lie, and `activation` of what it answers."""
    plain = PlainDense(weight, bias, activation)
    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16:
        return plain
    try:
        packed = PackedDense(weight, bias, activation)
        probe = torch.linspace(-1, 1, 8 * weight.shape[1], dtype=weight.dtype).view(8, -1)
        agrees = torch.allclose(packed(probe).float(), plain(probe).float(), rtol=0.05, atol=0.05)
    except (RuntimeError, AttributeError, NotImplementedError):
        # Another torch, or a processor for which oneDNN has no such layout.
        return plain
    return packed if agrees else plain
