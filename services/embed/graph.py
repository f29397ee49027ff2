"""Builds an encoder of the BERT family as a graph of ONNX Runtime operators, from the checkpoint with numpy alone.

Eight bits: each column of a weight matrix has a scale, and so has each row (token) of its other operand, determined at
run time. A text's vector thus never depends on other texts in the batch. Outliers would waste those bits (LLM.int8(),
Dettmers et al., NeurIPS 2022), so a layer's input is first centred and smoothed by channel, and the weights are scaled
inversely (SmoothQuant, Xiao et al., ICML 2023); the output of the activation is scaled by blocks of channels. Products
are sums of integers; attention, normalisation and activation stay in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from services.embed.onnx_file import FLOAT, INT32, Attribute, Constant, Node, Value, encoded
from services.embed.tensors import Take, positions
from services.embed.weights import MASK, STATES, WORDS

Floats = npt.NDArray[np.float32]
Ranges = Sequence[tuple[Floats, Floats]]
"""The lowest and highest value per channel of each uneven product's input, in order."""

_MICROSOFT = "com.microsoft"
_BLOCKS = 4
_EVEN = 0.5
"""The share of the channels' unevenness that is moved to the weights."""
_TINY = 1e-30


class _Graph:
    """Nodes and constants under construction."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: list[Constant] = []

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(Constant(name=name, value=np.array(value, dtype=dtype, order="C")))
        return name

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        """Add a node. Returns the name of its output."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(Node(kind=kind, inputs=inputs, output=name, domain=domain, attributes=attributes))
        return name

    def fused(self, kind: str, *inputs: str, **attributes: Attribute) -> str:
        return self.add(kind, *inputs, domain=_MICROSOFT, **attributes)


class _Exact:
    """Matrix products in 32 bits."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        self.read: list[str] = []
        """Inputs of products whose channels may be uneven, in order."""

    def uneven(self, x: str, *weights: Floats) -> tuple[list[str], list[Floats]]:
        """Return the products of `x`, a normalised layer, with each matrix, shape (out, in), and what to add to
        each."""
        self.read.append(x)
        return [self.product(x, weight) for weight in weights], [np.zeros(1, np.float32)] * len(weights)

    def product(self, x: str, weight: Floats) -> str:
        return self.graph.add("MatMul", x, self.graph.constant(weight.T))

    activated = product


class _EightBits:
    """Matrix products in 8 bits: see the module."""

    def __init__(self, graph: _Graph, ranges: Ranges) -> None:
        self.graph = graph
        self._ranges = iter(ranges)
        self._one, self._middle = graph.constant(1), graph.constant(128, np.uint8)
        self._step, self._tiny = graph.constant(1 / 127), graph.constant(_TINY)

    def uneven(self, x: str, *weights: Floats) -> tuple[list[str], list[Floats]]:
        """See `_Exact.uneven`."""
        low, high = next(self._ranges)
        centre, reach = (low + high) / 2, (high - low) / 2 + 1e-4
        heaviest = np.maximum(np.max([np.abs(weight).max(axis=0) for weight in weights], axis=0), 1e-6)
        even = np.maximum(reach**_EVEN / heaviest ** (1 - _EVEN), 1e-4).astype(np.float32)
        add, constant = self.graph.add, self.graph.constant
        rows = self._quantized(add("Mul", add("Sub", x, constant(centre)), constant(1 / even)))
        found = [self._multiplied(*rows, weight * even) for weight in weights]
        return found, [(weight @ centre).astype(np.float32) for weight in weights]

    def product(self, x: str, weight: Floats) -> str:
        return self._multiplied(*self._quantized(x), weight)

    def activated(self, x: str, weight: Floats) -> str:
        """Return the product of an activation's output, in blocks of channels with their own scales."""
        width = weight.shape[1]
        if width % _BLOCKS:
            return self.product(x, weight)
        add, constant = self.graph.add, self.graph.constant
        block = width // _BLOCKS
        values, scales = self._quantized(add("Reshape", x, constant([0, 0, _BLOCKS, block], np.int64)))
        parts = []
        for number in range(_BLOCKS):
            at = constant(number, np.int64)
            of_block, its_scale = (add("Gather", each, at, axis=2) for each in (values, scales))
            parts.append(self._multiplied(of_block, its_scale, weight[:, number * block : (number + 1) * block]))
        return add("Sum", *parts)

    def _quantized(self, x: str) -> tuple[str, str]:
        """Return `x` as bytes around 128, and the scale of each row."""
        add = self.graph.add
        highest = add("ReduceMax", add("Abs", x), axes=[-1], keepdims=1)
        scale = add("Max", add("Mul", highest, self._step), self._tiny)
        return add("QuantizeLinear", add("Div", x, scale), self._one, self._middle), scale

    def _multiplied(self, values: str, scale: str, weight: Floats) -> str:
        scales = np.maximum(np.abs(weight).max(axis=1) / 127, _TINY)
        whole = np.round(weight / scales[:, None]).astype(np.int8).T
        constant = self.graph.constant
        product = self.graph.fused(
            "MatMulIntegerToFloat", values, constant(whole, np.int8), self._one, constant(scales), self._middle,
            constant(np.zeros(len(scales)), np.int8),
        )  # fmt: skip
        return self.graph.add("Mul", product, scale)


def build(config: Mapping[str, Any], take: Take, ranges: Ranges | None = None) -> bytes:
    """Build the encoder's graph as an ONNX file: in 8 bits if `ranges` are given, otherwise in 32 bits, with their
    tensors as further outputs."""
    graph = _Graph()
    products = _Exact(graph) if ranges is None else _EightBits(graph, ranges)
    heads, epsilon = int(config["num_attention_heads"]), float(config.get("layer_norm_eps", 1e-12))

    def pair(name: str) -> tuple[Floats, Floats]:
        return take(f"{name}.weight"), take(f"{name}.bias")

    def normalised(x: str, plus: str, name: str, bias: Floats | None = None) -> str:
        """Return the normalisation layer `name` of the sum of both, and of `bias`."""
        scale, shift = (graph.constant(each) for each in pair(name))
        more = [] if bias is None else [graph.constant(bias)]
        return graph.fused("SkipLayerNormalization", x, plus, scale, shift, *more, epsilon=epsilon)

    x = normalised(WORDS, _positions(graph, config, take), "embeddings.LayerNorm")
    for number in range(int(config["num_hidden_layers"])):
        layer = f"encoder.layer.{number}."
        kinds = [pair(f"{layer}attention.self.{kind}") for kind in ("query", "key", "value")]
        found, more = products.uneven(x, *(weight for weight, _ in kinds))
        biases = np.concatenate([bias + plus for (_, bias), plus in zip(kinds, more, strict=True)])
        mixed = graph.fused("MultiHeadAttention", *found, graph.constant(biases), MASK, num_heads=heads)
        weight, bias = pair(f"{layer}attention.output.dense")
        x = normalised(products.product(mixed, weight), x, f"{layer}attention.output.LayerNorm", bias)
        weight, bias = pair(f"{layer}intermediate.dense")
        (found_up,), (plus,) = products.uneven(x, weight)
        up = _activated(graph, str(config.get("hidden_act", "gelu")), found_up, bias + plus)
        weight, bias = pair(f"{layer}output.dense")
        x = normalised(products.activated(up, weight), x, f"{layer}output.LayerNorm", bias)
    graph.nodes[-1] = msgspec.structs.replace(graph.nodes[-1], output=STATES)
    shape: list[str | int] = ["count", "length", int(config["hidden_size"])]
    outputs = [STATES, *(products.read if isinstance(products, _Exact) else ())]
    return encoded(
        graph.nodes,
        graph.constants,
        inputs=[Value(name=WORDS, type=FLOAT, shape=shape), Value(name=MASK, type=INT32, shape=shape[:2])],
        outputs=[Value(name=name, type=FLOAT, shape=shape) for name in outputs],
        operators={"": 17, _MICROSOFT: 1},
    )


def _positions(graph: _Graph, config: Mapping[str, Any], take: Take) -> str:
    ends = (graph.constant([end], np.int64) for end in (1, 2))
    length = graph.add("Slice", graph.add("Shape", WORDS), *ends)
    axis = graph.constant([1], np.int64)
    start = graph.constant([0], np.int64)
    return graph.add("Slice", graph.constant(positions(config, take)[None]), start, length, axis)


def _activated(graph: _Graph, kind: str, x: str, bias: Floats) -> str:
    if kind == "relu":
        return graph.add("Relu", graph.add("Add", x, graph.constant(bias)))
    return graph.fused("BiasGelu" if kind == "gelu" else "FastGelu", x, graph.constant(bias))
