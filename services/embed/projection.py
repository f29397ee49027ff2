"""What follows the pooling: dense layers, and truncation to fewer dimensions; in float32, for every backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from services.embed.encoder import Encoder, Vectors, pool, unit
from services.embed.tensors import read_tensors
from services.embed.weights import DenseLayer, ModelFiles
from services.shared.models.checkpoint import Ids
from services.shared.models.folders import ModelMissing

_erf = np.vectorize(math.erf, otypes=[np.float32])


def _gelu(x: Vectors) -> Vectors:
    values: Vectors = x * (1 + _erf(x / math.sqrt(2))) / 2
    return values


def _sigmoid(x: Vectors) -> Vectors:
    values: Vectors = (1 / (1 + np.exp(-x))).astype(np.float32)
    return values


_ACTIVATIONS: dict[str, Callable[[Vectors], Vectors]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
    "Sigmoid": _sigmoid,
    "SiLU": lambda x: x * _sigmoid(x),
    "GELU": _gelu,
}
"""By their names in `weights.DENSE_ACTIVATIONS`."""


def projected(files: ModelFiles, encoder: Encoder) -> Encoder:
    """Return `encoder` with the model's dense layers and truncation, or itself if there are none.

    Raises ModelMissing if a layer's weights are damaged or do not fit.
    """
    if not files.dense and files.dimensions is None:
        return encoder
    return ProjectedEncoder(encoder, [_Dense(layer) for layer in files.dense], files.dimensions)


class ProjectedEncoder(Encoder):
    """An encoder whose pooled vectors pass through dense layers and are truncated, then normalised.

    Truncation of unit vectors and a second normalisation is how Matryoshka models are meant to be shortened (Kusupati
    et al., Matryoshka Representation Learning, NeurIPS 2022).
    """

    def __init__(self, encoder: Encoder, layers: Sequence[_Dense], dimensions: int | None) -> None:
        self._encoder, self._layers, self._dimensions = encoder, layers, dimensions
        self.backend, self.precision, self.device = encoder.backend, encoder.precision, encoder.device
        self.pooling, self.first_lengths = encoder.pooling, encoder.first_lengths
        self.has_own_threads = encoder.has_own_threads
        width = encoder.width
        for layer in layers:
            width = layer.checked(width)
        self.width = width if dimensions is None else min(width, dimensions)

    def states(self, sequences: Sequence[Ids]) -> list[Vectors]:
        return self._encoder.states(sequences)

    def recover(self, error: Exception) -> bool:
        return self._encoder.recover(error)

    def compute(self, sequences: Sequence[Ids]) -> Vectors:
        vectors = np.stack([pool(states, self.pooling) for states in self._in_order(sequences)])
        for layer in self._layers:
            vectors = layer(vectors)
        return unit(vectors[:, : self._dimensions])


class _Dense:
    """A linear layer and its activation: (texts, in) to (texts, out)."""

    def __init__(self, layer: DenseLayer) -> None:
        tensors = {name: tensor.rows() for name, tensor in read_tensors([layer.weights]).items()}
        if "linear.weight" not in tensors:
            raise ModelMissing(f"{layer.weights} has no linear.weight", field="model")
        self._path = layer.weights
        self._weight, self._bias = tensors["linear.weight"], tensors.get("linear.bias")
        self._activation = _ACTIVATIONS[layer.activation]
        self._is_residual, self._residual = layer.residual, tensors.get("residual.weight")

    def checked(self, width: int) -> int:
        """Return its output width. Raises ModelMissing if it does not take vectors of `width` dimensions."""
        if self._weight.ndim != 2 or self._weight.shape[1] != width:
            raise ModelMissing(f"{self._path} does not fit vectors of {width} dimensions", field="model")
        return int(self._weight.shape[0])

    def __call__(self, x: Vectors) -> Vectors:
        out = x @ self._weight.T
        out = self._activation(out if self._bias is None else out + self._bias)
        if self._is_residual:
            out = out + (x if self._residual is None else x @ self._residual.T)
        return out.astype(np.float32, copy=False)
