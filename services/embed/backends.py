"""Chooses the library that implements the encoder:

| backend | precision | model | device |
|---|---|---|---|
| openvino | bf16 if the processor has AMX, else fp32 | the BERT family | CPU |
| onnx | int8 if it agrees with fp32 and is faster, else fp32 | the BERT family | CPU |
| torch | bf16 if the processor has instructions for it, else fp32 | any: the BERT family packed, others padded | any |

`auto` is OpenVINO if it is installed and the processor has AMX, else ONNX Runtime if it supports the model: it loads in
a third of a second, in a third of torch's memory. Without AMX, OpenVINO is as fast as ONNX Runtime in fp32, and bf16 is
emulated, many times slower.
`fastest` also measures torch, once and when the process has been idle for long, and uses it from the next start on if
it is faster on this processor.
"""

from __future__ import annotations

import enum
import importlib.util
import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from proto.errors import OperationError
from proto.host import extras
from proto.host.durable import replace_file
from services.embed.encoder import Encoder
from services.embed.weights import ModelFiles, fingerprint, supports
from services.shared.models.checkpoint import Ids
from services.shared.models.device import Precision, processor, require_device

WORTH = 1.2
"""Speedup from which torch is worth the seconds and the memory that loading it takes."""

_ROUNDS = 3
_log = logging.getLogger("linckia.models")


class Backend(enum.StrEnum):
    """The library that computes the model; each is imported only if it is used."""

    AUTO = "auto"
    TORCH = "torch"
    ONNX = "onnx"
    OPENVINO = "openvino"
    FASTEST = "fastest"


class Trial(msgspec.Struct, frozen=True):
    """Tokens per second of both, on one processor with one model."""

    processor: str
    fingerprint: str
    onnx: float
    torch: float

    @property
    def winner(self) -> Backend:
        return Backend.TORCH if self.torch > WORTH * self.onnx else Backend.ONNX


def open_encoder(
    files: ModelFiles, backend: Backend, *, device: str, precision: Precision, threads: int, folder: Path
) -> Encoder:
    """Load the model. Blocks.

    Args:
        threads: number of threads per batch.
        folder: holds the graph of the backend `onnx`, and measurements.

    Raises:
        ModelMissing: its form is not supported.
        OperationError: `device` is `cuda` without a GPU, or the backend is not installed or lacks the precision.
    """
    library = chosen(files, backend, device=device, precision=precision, folder=folder)
    if library is Backend.OPENVINO:
        if not extras.is_installed(extras.OPENVINO):
            command = extras.command_for(extras.OPENVINO)
            raise OperationError(f"services.embed.backend is openvino, which is not installed: run `{command}`")
        if precision in (Precision.INT8, Precision.FP16):
            needs = "the backend onnx" if precision is Precision.INT8 else "a GPU"
            raise OperationError(
                f"the precision {precision.value} requires {needs}; use auto, bf16 or fp32 with openvino"
            )
        from services.embed.openvino_encoder import OpenVinoEncoder

        return OpenVinoEncoder(files, precision=precision, threads=threads)
    if library is Backend.TORCH:
        require_device(device)
        import torch

        from services.embed.torch_encoder import TorchEncoder

        torch.set_num_threads(threads)
        return TorchEncoder(files, device=device, precision=precision)
    if not onnx_is_here():
        raise OperationError(
            "services.embed.backend is onnx, but onnxruntime cannot be imported: remove .venv and start again, or run "
            "`pip install onnxruntime`"
        )
    if precision in (Precision.BF16, Precision.FP16):
        raise OperationError(
            f"the precision {precision.value} requires torch; use auto, int8 or fp32 with the backend onnx"
        )
    from services.embed.onnx_encoder import OnnxEncoder

    return OnnxEncoder(files, folder, precision=precision, threads=threads)


def chosen(files: ModelFiles, backend: Backend, *, device: str, precision: Precision, folder: Path) -> Backend:
    """Return the library that `auto` or `fastest` selects for this model, or the one given."""
    if device != "cpu":
        return Backend.TORCH
    if not supports(files.config):
        if backend in (Backend.ONNX, Backend.OPENVINO):
            _log.warning("%s belongs to a family that only torch supports; %s is not used", files.name, backend.value)
        return Backend.TORCH
    if backend in (Backend.TORCH, Backend.ONNX, Backend.OPENVINO):
        return backend
    if precision in (Precision.AUTO, Precision.BF16) and openvino_is_worth_it():
        return Backend.OPENVINO
    if precision in (Precision.BF16, Precision.FP16) or not onnx_is_here():
        return Backend.TORCH
    trial = stored_trial(files, folder) if is_tried(backend, precision) else None
    return trial.winner if trial is not None else Backend.ONNX


def openvino_is_worth_it() -> bool:
    """True if OpenVINO is installed, and the processor has AMX."""
    return extras.is_installed(extras.OPENVINO) and extras.amx_present()


def onnx_is_here() -> bool:
    """True if ONNX Runtime is installed."""
    # From 1.29 on it would report to its vendor; the version installed may differ from ours.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    return importlib.util.find_spec("onnxruntime") is not None


def is_tried(backend: Backend, precision: Precision) -> bool:
    """Return whether torch is measured with these settings."""
    return backend is Backend.FASTEST and precision is Precision.AUTO and extras.is_installed(extras.TORCH)


def stored_trial(files: ModelFiles, folder: Path) -> Trial | None:
    """Return the measurements of this model on this processor."""
    try:
        trial = msgspec.json.decode((folder / "trial.json").read_bytes(), type=Trial)
    except (OSError, msgspec.MsgspecError):
        return None
    return trial if (trial.processor, trial.fingerprint) == (processor(), fingerprint(files)) else None


def try_torch(files: ModelFiles, encoder: Encoder, texts: Sequence[Ids], folder: Path) -> Trial:
    """Measure torch against `encoder`, which uses ONNX Runtime, and remember both results for the next start. Blocks.

    torch is loaded into this process and stays, which is why this is done only once.
    """
    import torch

    from services.embed.torch_encoder import TorchEncoder

    torch.set_num_threads(1)
    other = TorchEncoder(files)
    best = {encoder: math.inf, other: math.inf}
    for each in best:
        each.compute(texts)
    # Alternate, so that other work on the machine affects both.
    for _ in range(_ROUNDS):
        for each, seconds in best.items():
            began = time.thread_time()
            each.compute(texts)
            best[each] = min(seconds, time.thread_time() - began)
    tokens = sum(map(len, texts))
    trial = Trial(processor(), fingerprint(files), tokens / best[encoder], tokens / best[other])
    replace_file(folder / "trial.json", msgspec.json.encode(trial))
    _log.info("%s: %s; using %s from the next start on", files.name, trial, trial.winner)
    return trial
