# ruff: noqa: E402  # a module is hidden before the imports
"""The model in OpenVINO, in bf16 on processors with AMX: token ids to unit vectors on the CPU.

Its vectors agree with those in 32 bits to a cosine of 0.9999, at nearly twice the speed of ONNX Runtime in 8
bits. The graph is built from the checkpoint at each start, in half a second; nothing is stored.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# OpenVINO would report its use to its vendor, and reads a file in the home directory for that; without this module it
# uses a stand-in that does nothing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: "cannot be imported"

import openvino  # type: ignore[import-untyped]  # it has no types
from openvino import Node
from openvino import opset13 as operators

from proto.host import extras
from proto.host.machine import usable_cores
from services.embed.encoder import Encoder, Vectors
from services.embed.tensors import Take, Tensors, blocks, positions
from services.embed.weights import ModelFiles
from services.shared.models.checkpoint import Ids
from services.shared.models.device import Precision

PREPARED = "256"
"""How many operations are kept ready for the shape of a batch, for each stream. There are as many shapes as lengths of
texts; with the default of 5000, the process grows by more than a gigabyte in an hour, and is no faster."""


class OpenVinoEncoder(Encoder):
    """A model in this process. Immutable after construction, so several threads may call it.

    Args:
        precision: bf16 or fp32; `auto` is bf16 if the processor has AMX, else fp32.
        threads: number of threads per batch.

    Raises:
        ModelMissing: it is damaged.
    """

    backend = "openvino"
    device = "cpu"
    has_own_threads = True

    def __init__(self, files: ModelFiles, *, precision: Precision = Precision.AUTO, threads: int = 1) -> None:
        self.pooling = files.pooling
        fast = Precision.BF16 if extras.amx_present() else Precision.FP32
        self.precision = fast if precision is Precision.AUTO else precision
        self._tensors = Tensors(files)
        self.width = self._tensors.width
        # As many batches at once as there are cores for, and a query beside them.
        streams = max(1, usable_cores() // threads) + 1
        options = {
            "INFERENCE_PRECISION_HINT": "bf16" if self.precision is Precision.BF16 else "f32",
            "INFERENCE_NUM_THREADS": str(streams * threads),
            "NUM_STREAMS": str(streams),
            "ENABLE_CPU_PINNING": "NO",
            "CPU_RUNTIME_CACHE_CAPACITY": PREPARED,
        }
        self._model = openvino.Core().compile_model(build(files.config, self._tensors.take), "CPU", options)
        self._requests = threading.local()

    def states(self, sequences: Sequence[Ids]) -> list[Vectors]:
        request = getattr(self._requests, "request", None)
        if request is None:
            request = self._requests.request = self._model.create_infer_request()
        found: list[Vectors] = []
        for block in blocks(sequences):
            states = request.infer(self._tensors.inputs(block))[0]
            found += [each[: len(ids)].copy() for each, ids in zip(states, block, strict=True)]
        return found

    def recover(self, error: Exception) -> bool:
        """A failed batch does not affect the next one."""
        gc.collect()
        return True


def build(config: Mapping[str, Any], take: Take) -> openvino.Model:
    """Build the encoder's graph: see `weights.WORDS` for its inputs and output."""
    heads, epsilon = int(config["num_attention_heads"]), float(config.get("layer_norm_eps", 1e-12))
    width = int(config["hidden_size"])

    def constant(value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Node:
        return operators.constant(np.array(value, dtype=dtype, order="C"))

    def dense(x: Node, name: str) -> Node:
        product = operators.matmul(x, constant(take(f"{name}.weight")), False, True)
        return operators.add(product, constant(take(f"{name}.bias")))

    def normalised(x: Node, name: str) -> Node:
        centred = operators.mvn(x, constant([-1], np.int64), True, epsilon, "inside_sqrt")
        return operators.add(
            operators.multiply(centred, constant(take(f"{name}.weight"))), constant(take(f"{name}.bias"))
        )

    swapped = constant([0, 2, 1, 3], np.int64)

    def by_head(x: Node) -> Node:
        return operators.transpose(
            operators.reshape(x, constant([0, 0, heads, width // heads], np.int64), True), swapped
        )

    words = operators.parameter([-1, -1, width], np.float32)
    mask = operators.parameter([-1, -1], np.int32)
    one, axis = constant([1], np.int64), constant(0, np.int64)
    length = operators.gather(operators.shape_of(words), one, axis)
    rows = operators.slice(
        constant(positions(config, take)), constant([0], np.int64), length, one, constant([0], np.int64)
    )
    seen = operators.multiply(operators.subtract(operators.convert(mask, np.float32), constant(1)), constant(1e9))
    seen = operators.unsqueeze(seen, constant([1, 2], np.int64))
    x = normalised(operators.add(words, rows), "embeddings.LayerNorm")
    for number in range(int(config["num_hidden_layers"])):
        layer = f"encoder.layer.{number}."
        query, key, value = (by_head(dense(x, f"{layer}attention.self.{kind}")) for kind in ("query", "key", "value"))
        mixed = operators.transpose(operators.scaled_dot_product_attention(query, key, value, seen), swapped)
        mixed = operators.reshape(mixed, constant([0, 0, width], np.int64), True)
        mixed = operators.add(dense(mixed, f"{layer}attention.output.dense"), x)
        x = normalised(mixed, f"{layer}attention.output.LayerNorm")
        up = _activated(str(config.get("hidden_act", "gelu")), dense(x, f"{layer}intermediate.dense"))
        x = normalised(operators.add(dense(up, f"{layer}output.dense"), x), f"{layer}output.LayerNorm")
    return openvino.Model([x], [words, mask], "encoder")


def _activated(kind: str, x: Node) -> Node:
    return operators.relu(x) if kind == "relu" else operators.gelu(x, "erf" if kind == "gelu" else "tanh")
