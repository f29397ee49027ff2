"""What computes the model: torch, or ONNX Runtime.

Each is imported where it is used alone, since whoever takes ONNX Runtime does so for the memory that torch takes.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import os

from proto.errors import OperationError
from services.embed.encoder import Encoder
from services.embed.shape import supports
from services.embed.weights import ModelFiles
from services.runtime.models.device import Precision, require_device


class Backend(enum.StrEnum):
    """What computes the model."""

    TORCH = "torch"
    ONNX = "onnx"


def open_encoder(files: ModelFiles, backend: Backend, *, device: str, precision: Precision, threads: int) -> Encoder:
    """Load the model.  Blocks.

    Args:
        threads: of one batch.

    Raises:
        ModelMissing: it is not in a form that is loaded.
        OperationError: `device` is `cuda` and there is none, or the backend is not installed or has not this precision.
    """
    if backend is Backend.ONNX:
        return _onnx(files, precision, threads)
    from services.embed.model import TorchEncoder

    require_device(device)
    use_threads(backend, threads)
    return TorchEncoder(files, device=device, precision=precision)


def use_threads(backend: Backend, threads: int) -> None:
    """For what this thread computes: with torch the number is each thread's own."""
    if backend is Backend.TORCH:
        import torch

        torch.set_num_threads(threads)


def _onnx(files: ModelFiles, precision: Precision, threads: int) -> Encoder:
    missing = [name for name in ("onnxruntime", "onnx") if importlib.util.find_spec(name) is None]
    if missing:
        raise OperationError(
            f"services.embed.backend is onnx, and {' and '.join(missing)} cannot be imported: start once as "
            "`LINCKIA_EXTRA=onnx scripts/linckia …`, or install linckia[onnx]"
        )
    if precision is Precision.BF16:
        raise OperationError("the precision bf16 is torch's; with the backend onnx it is auto, int8 or fp32")
    _tell_nobody()
    from services.embed.ort.encoder import OrtEncoder

    return OrtEncoder(files, precision=precision, threads=threads)


def _tell_nobody() -> None:
    # From 1.29 on it would report to its maker, wherever it could reach the network; somebody may install such a one.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def load_code(files: ModelFiles, backend: Backend) -> None:
    """Import what the model will be computed by, as far as it is not there yet."""
    if backend is Backend.ONNX:
        if importlib.util.find_spec("onnxruntime") is not None and importlib.util.find_spec("onnx") is not None:
            _tell_nobody()
            importlib.import_module("services.embed.ort.encoder")
    elif not supports(files.config):
        importlib.import_module("transformers")
