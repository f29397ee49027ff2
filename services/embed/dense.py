"""A dense layer whose weights are laid out in advance for the processor's matrix unit.

Given plain weights, oneDNN rearranges them in every call: for a short query that is half of the time. In fp32 torch
uses MKL instead of oneDNN, which uses half of the registers of a processor that is not Intel's. The layout comes from
the operators that torch's own compiler uses; they are no public interface, so they are tried at load, and the plain
layer is used where they are missing or do not agree with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]

_TOLERANCE = {torch.bfloat16: 0.05, torch.float32: 1e-3}
"""Allowed difference of the two layers by data type: they add hundreds of products in another order."""


class Dense(Protocol):
    """x @ weight.T + bias over the last dimension, then a sum or an activation."""

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """
        Args:
            plus: added to the product; for a layer without activation.
        """


class PlainDense:
    """torch's own layer."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: Activation | None = None) -> None:
        self._weight, self._bias, self._activation = weight, bias, activation

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        product = F.linear(x, self._weight, self._bias)
        if plus is not None:
            return product + plus
        return product if self._activation is None else self._activation(product)


class PackedDense:
    """The layer with its weights laid out once; on a CPU only."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: Activation | None = None) -> None:
        # GELU while the product is still in registers; any other goes over it once more.
        self._after, self._variant = ("gelu", "none") if activation is F.gelu else ("none", "")
        self._activation = None if activation is F.gelu else activation
        self._weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self._product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
        self._sum: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        if plus is not None:
            return self._sum(x, plus, self._weight, self._bias, "add")
        product = self._product(x, self._weight, self._bias, self._after, [], self._variant)
        return product if self._activation is None else self._activation(product)


def dense(weight: Tensor, bias: Tensor, activation: Activation | None = None) -> Dense:
    """The fastest layer for these weights on their device, followed by `activation`."""
    plain = PlainDense(weight, bias, activation)
    if weight.device.type != "cpu" or weight.dtype not in _TOLERANCE:
        return plain
    try:
        packed = PackedDense(weight, bias, activation)
        probe = torch.linspace(-1, 1, 8 * weight.shape[1], dtype=weight.dtype).view(8, -1)
        agrees = _close(packed(probe), plain(probe))
        if activation is None:
            other = plain(probe)
            agrees = agrees and _close(packed(probe, other), plain(probe, other))
    except (RuntimeError, AttributeError, NotImplementedError):
        # Another torch, or a processor for which oneDNN has no such layout.
        return plain
    return packed if agrees else plain


def _close(ours: Tensor, theirs: Tensor) -> bool:
    most = _TOLERANCE[ours.dtype]
    return torch.allclose(ours.float(), theirs.float(), rtol=most, atol=most)
