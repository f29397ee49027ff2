"""The encoder: the one interface of an embedding model in this process, and the backends that implement it.

A text passes four steps: `TextTokenizer` (its token ids), `Batcher` (batches by tokens, queries first), `Encoder` (unit
vectors, in the encoder's `precision`), and back to the call in its order. The backend and the precision are chosen
here, and nowhere else:

| backend | precision | model |
|---|---|---|
| torch | bf16 where the processor has its instructions, else fp32 | BERT's family packed, others through transformers |
| onnx | 8-bit weights, or fp32 | any family, as torch exports it to ONNX; on the CPU |
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from proto.errors import OperationError
from services.embed.weights import ModelFiles
from services.runtime.models.checkpoint import Ids
from services.runtime.models.device import Precision, require_device

Vectors = npt.NDArray[np.float32]
"""Unit vectors, shape (texts, dimensions)."""


class Encoder(Protocol):
    """Token ids in, unit vectors out; several threads may call it.

    Attributes:
        precision: resolved, never `auto`.
        width: the dimensions of its vectors.
    """

    precision: Precision
    width: int

    @property
    def device(self) -> str:
        """`cpu` or `cuda`."""

    def compute(self, sequences: Sequence[Ids]) -> Vectors:
        """Unit vectors of the sequences, in their order."""

    def token_vectors(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """Of each sequence the unit vectors of its tokens, shape (tokens, dimensions), without the special ones."""

    def warm_up(self, max_tokens: int) -> None:
        """Real forward passes of the shapes that come first, so that no caller waits for their preparation."""

    def recover(self, error: Exception) -> bool:
        """Make ready for the next batch after `error`; False where the process must end instead."""


class Backend(enum.StrEnum):
    """The library that computes the model.

    Each is imported only where it is used: ONNX Runtime is chosen to save the memory that torch takes.
    """

    TORCH = "torch"
    ONNX = "onnx"


def open_encoder(
    files: ModelFiles, backend: Backend, *, device: str, precision: Precision, threads: int, folder: Path
) -> Encoder:
    """Load the model.  Blocks.

    Args:
        threads: of one batch.
        folder: keeps the graph of the backend `onnx`.

    Raises:
        ModelMissing: it is not in a form that is loaded.
        OperationError: `device` is `cuda` and there is none, or the backend is not installed or lacks the precision.
    """
    if backend is Backend.TORCH:
        from services.embed.torch_encoder import TorchEncoder

        require_device(device)
        use_threads(backend, threads)
        return TorchEncoder(files, device=device, precision=precision)
    if not _onnx_is_here():
        raise OperationError(
            "services.embed.backend is onnx, and onnxruntime, onnx or onnx_ir cannot be imported: start once as "
            "`LINCKIA_EXTRA=onnx scripts/linckia …`, or install linckia[onnx]"
        )
    if precision is Precision.BF16:
        raise OperationError("the precision bf16 is torch's; with the backend onnx it is auto, int8 or fp32")
    _disable_telemetry()
    from services.embed.onnx_encoder import OnnxEncoder

    return OnnxEncoder(files, folder, precision=precision, threads=threads)


def use_threads(backend: Backend, threads: int) -> None:
    """Of a batch that this thread computes: with torch the number is each thread's own."""
    if backend is Backend.TORCH:
        import torch

        torch.set_num_threads(threads)


def load_code(files: ModelFiles, backend: Backend) -> None:
    """Import the model's code, as far as the zygote has not."""
    if backend is Backend.ONNX:
        if _onnx_is_here():
            _disable_telemetry()
            importlib.import_module("services.embed.onnx_encoder")
    elif not importlib.import_module("services.embed.bert").supports(files.config):
        importlib.import_module("transformers")


def _onnx_is_here() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnx", "onnx_ir"))


def _disable_telemetry() -> None:
    # From 1.29 on ONNX Runtime would report to its maker; another version than ours may be installed.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
