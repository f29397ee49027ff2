"""The loaded model in ONNX Runtime: token ids in, unit vectors out, on the CPU, with weights of 8 bits or in fp32.

torch exports the graph once, when a model is first used: that takes seconds, and torch's memory until the process
rests. From then on the graph is read from the service's folder, and torch is not loaded.

Eight bits: ONNX Runtime's own quantizer, in blocks of 32 weights with a scale each, and the other factor likewise at
run time. One scale for a whole matrix, as its dynamic quantization has, costs this family 0.7 % of cosine.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]  # it has no types

from services.embed.encoder import Encoder, Vectors
from services.embed.weights import ModelFiles, fingerprint
from services.runtime.models.checkpoint import Ids, ModelMissing, load_transformer
from services.runtime.models.device import Precision

_TOKENS_AT_ONCE = 1024
"""More are no quicker, and take 6 KB more each between the layers of a small model."""

_log = logging.getLogger("linckia.models")


class OnnxEncoder(Encoder):
    """A model in this process; nothing changes after construction, so several threads may call it.

    Args:
        folder: keeps the graph.
        precision: int8, which is `auto`, or fp32.
        threads: of one batch.

    Raises:
        ModelMissing: it cannot be exported.
    """

    device = "cpu"

    def __init__(
        self, files: ModelFiles, folder: Path, *, precision: Precision = Precision.AUTO, threads: int = 1
    ) -> None:
        self.precision = Precision.INT8 if precision is Precision.AUTO else precision
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # The arena would keep the memory of the longest text for ever.
        options.enable_cpu_mem_arena = False
        # 3: errors. Nothing that it warns of could be changed by a user.
        options.log_severity_level = 3
        self.pooling = files.pooling
        self._session = _open_session(files, folder, self.precision, options)
        self.width = int(self._session.get_outputs()[0].shape[-1])

    def states(self, sequences: Sequence[Ids]) -> list[Vectors]:
        found: list[Vectors] = []
        for block in _blocks(sequences):
            lengths = np.array([len(ids) for ids in block], dtype=np.int64)
            mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
            ids = np.zeros_like(mask)
            ids[mask == 1] = np.concatenate(block)
            (states,) = self._session.run(["states"], {"ids": ids, "mask": mask})
            found += [each[:length] for each, length in zip(states, lengths, strict=True)]
        return found

    def recover(self, error: Exception) -> bool:
        """A failed batch changes nothing for the next one."""
        gc.collect()
        return True


def _open_session(
    files: ModelFiles, folder: Path, precision: Precision, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    # A graph of another model, or of another release of what makes and reads it, is not opened.
    name = f"{fingerprint(files)}-{precision}-{onnxruntime.__version__}".replace(":", "-")
    graph = folder / f"{name}.onnx"
    open_it = partial(onnxruntime.InferenceSession, str(graph), options, providers=["CPUExecutionProvider"])
    if graph.is_file():
        try:
            return open_it()
        except Exception as error:  # noqa: BLE001  # they have no public base
            _log.warning("%s is damaged and exported again: %s", graph, error)
    _log.info("%s is exported to ONNX, once", files.name)
    for old in folder.glob("*.onnx*"):
        old.unlink()
    _export(files, graph, precision)
    try:
        return open_it()
    except Exception as error:  # they have no public base
        raise ModelMissing(f"ONNX Runtime cannot load {files.name}: {error}", field="model") from error


def _export(files: ModelFiles, graph: Path, precision: Precision) -> None:
    """Write the encoder with inputs `ids` and `mask`, shape (count, length), and the output `states`.

    Its weights are in a file beside it, which ONNX Runtime maps: few rows of a vocabulary's table ever enter memory.
    """
    import onnx
    import torch
    from onnxruntime.quantization.matmul_nbits_quantizer import (  # type: ignore[import-untyped]  # it has no types
        MatMulNBitsQuantizer,
    )

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = load_transformer(files, "AutoModel", torch.float32)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            return states

    ids = torch.ones((2, 5), dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[0, 3:] = 0
    size = {0: "count", 1: "length"}
    with tempfile.TemporaryDirectory(dir=graph.parent) as work:
        exported = Path(work) / "model.onnx"
        # The other exporter would need onnxscript; this one warns that it is the older one.
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                States(), (ids, mask), str(exported), dynamo=False, opset_version=17,
                input_names=["ids", "mask"], output_names=["states"],
                dynamic_axes={"ids": size, "mask": size, "states": size},
            )  # fmt: skip
        model = onnx.load(exported)
    if precision is Precision.INT8:
        # It logs each node.
        logging.getLogger(MatMulNBitsQuantizer.__module__).setLevel(logging.WARNING)
        quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=32, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        model = quantizer.model.model
    unfinished = graph.with_suffix(".onnx.partial")
    onnx.save_model(model, unfinished, save_as_external_data=True, location=f"{graph.name}.data", size_threshold=4096)
    os.replace(unfinished, graph)


def _blocks(sequences: Sequence[Ids]) -> Iterator[list[Ids]]:
    """The sequences, which come by rising length, in blocks of bounded size and nearly the same length."""
    for length, like in itertools.groupby(sequences, key=lambda ids: -(-len(ids) // 16) * 16):
        left = list(like)
        most = max(1, _TOKENS_AT_ONCE // length)
        for start in range(0, len(left), most):
            yield left[start : start + most]
