"""The libraries that implement the encoder; one is chosen here, and nowhere else:

| backend | precision | model |
|---|---|---|
| torch | bf16 where the processor has its instructions, else fp32 | BERT's family packed, others through transformers |
| onnx | 8-bit weights, or fp32 | any family, as torch exports it to ONNX; on the CPU |
"""

from __future__ import annotations

import enum
import importlib.util
import os
from pathlib import Path

from proto.errors import OperationError
from services.embed.encoder import Encoder
from services.embed.weights import ModelFiles
from services.runtime.models.device import Precision, require_device


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
        import torch

        from services.embed.torch_encoder import TorchEncoder

        require_device(device)
        torch.set_num_threads(threads)
        return TorchEncoder(files, device=device, precision=precision)
    if not onnx_is_here():
        raise OperationError(
            "services.embed.backend is onnx, and onnxruntime, onnx or onnx_ir cannot be imported: start once as "
            "`LINCKIA_EXTRA=onnx scripts/linckia …`, or install linckia[onnx]"
        )
    if precision is Precision.BF16:
        raise OperationError("the precision bf16 is torch's; with the backend onnx it is auto, int8 or fp32")
    from services.embed.onnx_encoder import OnnxEncoder

    return OnnxEncoder(files, folder, precision=precision, threads=threads)


def onnx_is_here() -> bool:
    """Whether the backend `onnx` is installed."""
    # From 1.29 on ONNX Runtime would report to its maker; another version than ours may be installed.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    return all(importlib.util.find_spec(name) is not None for name in ("onnxruntime", "onnx", "onnx_ir"))
