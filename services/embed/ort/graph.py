"""An encoder of BERT's family as an ONNX graph, with weights of 8 bits or of 32.

Eight bits: each row of a weight matrix in blocks of 32 with a scale each, and at run time the other factor likewise
(`MatMulNBits` with its accuracy level 4).  One scale for a whole matrix of activations, as the usual dynamic
quantization has it, costs half a percent of cosine with this family, since a few channels are far larger than the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from services.embed.ort.tensors import Floats, Tensors
from services.embed.shape import Shape
from services.runtime.models.device import Precision

BLOCK = 32
"""Weights with one scale; larger blocks are no quicker, and less exact."""

_OPSET = 17
_IR_VERSION = 9
_MICROSOFT = "com.microsoft"


def quantized(weight: Floats) -> tuple[npt.NDArray[np.uint8], Floats]:
    """A matrix of shape (out, in) in 8 bits around 128, shape (out, in / BLOCK, BLOCK), and the scales of the blocks,
    flat."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows, columns // BLOCK, BLOCK)
    scales = np.abs(blocks).max(axis=2) / 127
    scales[scales == 0] = 1
    numbers = np.rint(blocks / scales[..., None]) + 128
    return numbers.astype(np.uint8), scales.astype(np.float32).reshape(-1)


def bert(tensors: Tensors, shape: Shape, precision: Precision) -> bytes:
    """The model: `embeddings` (count, length, hidden), before their norm, and `lengths` (count) to `states` (count,
    length, hidden); what lies behind a sequence's length is nobody's.

    Raises:
        ModelMissing: the checkpoint lacks a tensor.
    """
    return _Graph(tensors, shape, precision).model()


class _Graph:
    def __init__(self, tensors: Tensors, shape: Shape, precision: Precision) -> None:
        self._tensors = tensors
        self._shape = shape
        self._in_8_bits = precision is Precision.INT8
        # onnx's messages have no types.
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def model(self) -> bytes:
        state = self._norm("embeddings", "embeddings.LayerNorm")
        for number in range(self._shape.layers):
            state = self._layer(f"encoder.layer.{number}.", state)
        self._node("Identity", [state], "states")
        # As onnx takes a shape: names and numbers.
        wide: list[Any] = ["count", "length", self._shape.hidden]
        graph = helper.make_graph(
            self._nodes,
            "encoder",
            [
                helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, wide),
                helper.make_tensor_value_info("lengths", TensorProto.INT32, ["count"]),
            ],
            [helper.make_tensor_value_info("states", TensorProto.FLOAT, wide)],
            self._constants,
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
        written: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION).SerializeToString()
        return written

    def _layer(self, name: str, state: str) -> str:
        inner = f"{name}attention.self."
        factors = [self._product(state, inner + part, bias=True) for part in ("query", "key", "value")]
        attended = self._node(
            "MultiHeadAttention", [*factors, "", "lengths"], f"{name}attended", num_heads=self._shape.heads
        )
        state = self._add_and_norm(attended, state, f"{name}attention.output.")
        up = self._product(state, f"{name}intermediate.dense", bias=False)
        return self._add_and_norm(self._activated(up, f"{name}intermediate.dense"), state, f"{name}output.")

    def _add_and_norm(self, inner: str, state: str, name: str) -> str:
        product = self._product(inner, f"{name}dense", bias=False)
        weights = [*self._norm_weights(f"{name}LayerNorm"), self._bias(f"{name}dense")]
        out = f"{name}sum"
        return self._node("SkipLayerNormalization", [product, state, *weights], out, epsilon=self._shape.epsilon)

    def _activated(self, product: str, name: str) -> str:
        bias = self._bias(name)
        match self._shape.activation:
            case "gelu":
                return self._node("BiasGelu", [product, bias], f"{name}.active")
            case "relu":
                return self._node("Relu", [self._node("Add", [product, bias], f"{name}.sum")], f"{name}.active")
            case _:
                return self._node("FastGelu", [product, bias], f"{name}.active")

    def _product(self, x: str, name: str, *, bias: bool) -> str:
        """x @ weight.T, and the bias where it is not left to what follows."""
        weight = self._tensors[f"{self._shape.prefix}{name}.weight"]
        rows, columns = weight.shape
        added = self._bias(name) if bias else ""
        if self._in_8_bits and columns % BLOCK == 0:
            numbers, scales = quantized(weight)
            inputs = [x, self._constant(f"{name}.bits", numbers), self._constant(f"{name}.scales", scales)]
            return self._node(
                "MatMulNBits",
                [*inputs, "", "", added] if bias else inputs,
                f"{name}.out",
                K=columns, N=rows, bits=8, block_size=BLOCK, accuracy_level=4,
            )  # fmt: skip
        product = self._node("MatMul", [x, self._constant(f"{name}.weight", weight.T)], f"{name}.product")
        return self._node("Add", [product, added], f"{name}.out") if bias else product

    def _norm(self, x: str, name: str) -> str:
        weights = self._norm_weights(name)
        return self._node("LayerNormalization", [x, *weights], f"{name}.out", axis=-1, epsilon=self._shape.epsilon)

    def _norm_weights(self, name: str) -> list[str]:
        kept = self._shape.prefix + name
        return [self._constant(f"{name}.{part}", self._tensors[f"{kept}.{part}"]) for part in ("weight", "bias")]

    def _bias(self, name: str) -> str:
        return self._constant(f"{name}.bias", self._tensors[f"{self._shape.prefix}{name}.bias"])

    def _constant(self, name: str, value: npt.NDArray[Any]) -> str:
        self._constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _node(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        domain = "" if kind in ("Add", "Identity", "LayerNormalization", "MatMul", "Relu") else _MICROSOFT
        self._nodes.append(helper.make_node(kind, inputs, [out], domain=domain, **attributes))
        return out
