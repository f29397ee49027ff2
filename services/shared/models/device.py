"""A model's device, precision and number of parallel batches, and which of its errors are survivable.

Only the functions that need torch import it, so importing this module is cheap.
"""

from __future__ import annotations

import enum
import gc
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from proto.errors import OperationError
from proto.host import extras
from proto.host.machine import usable_cores

if TYPE_CHECKING:
    import torch


GIB = 1024**3

BATCH_BYTES = GIB // 2
"""Memory of a GPU for CUDA's own libraries and a small batch; larger batches are sized by what is free."""


class Precision(enum.StrEnum):
    """The data type of the weights.

    `auto` is the fastest type that agrees with fp32: with torch, bf16 if the processor supports it natively, else fp32.
    On a GPU without bf16, it is fp16 if the model does not fit into its free memory in fp32.
    """

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that every service with a model has."""

    precision: Annotated[
        Precision, Meta(description="auto, fp32, bf16 (torch, openvino), fp16 (GPU) or int8 (onnx)")
    ] = Precision.AUTO
    workers: Annotated[int, Meta(ge=1, description="Processes of the pool, as many as the kernel started")] = 1
    batches: Annotated[int, Meta(ge=0, description="Batches computed at once in a process; 0: by its cores")] = 0
    threads: Annotated[int, Meta(ge=1, description="Threads of one batch; more than 1 for large models only")] = 1
    health_every_s: Annotated[float, Meta(gt=0, description="Idle time after which the model is tried")] = 30
    # The kernel reads this and ends the idle process (`rests_by` in its manifest).
    unload_after_s: Annotated[
        float, Meta(ge=0, description="Idle time after which the process ends until the next call; 0: never")
    ] = 0


def require_device(device: str) -> None:
    """Prepare torch for the device.

    Raises OperationError if torch is not installed, or `device` is `cuda` and no CUDA device is available.
    """
    if not extras.is_installed(extras.TORCH):
        command = extras.command_for(extras.TORCH)
        raise OperationError(f"this model or device needs torch, which is not installed: run `{command}`, then restart")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise OperationError("no CUDA device is available, or this torch is built without CUDA; use the mode `cpu`")
    # cuDNN plans its attention again for each shape, and texts have thousands: on an H200, the first pass over texts
    # made 8,000 tokens a second with it, and 350,000 without.
    torch.backends.cuda.enable_cudnn_sdp(False)


def resolve_precision(precision: Precision, device: str, parameters: int = 0) -> Precision:
    """Return the precision that `auto` means on this device with torch.

    Args:
        parameters: of the model.

    Raises:
        OperationError: torch does not have this precision on the device, or the model does not fit into the free memory
            of the GPU.
    """
    import torch

    if precision is Precision.INT8:
        raise OperationError("the precision int8 is only available in embed's onnx backend; use auto, fp32 or bf16")
    if device == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info()
        # By default, emulated bf16 counts too, which is slower than fp32.
        return fitting(
            precision, parameters, free_bytes, has_bf16=torch.cuda.is_bf16_supported(including_emulation=False)
        )
    if precision is Precision.FP16:
        raise OperationError("the precision fp16 is only available on GPUs; use auto, fp32 or bf16")
    if precision is not Precision.AUTO:
        return precision
    return Precision.BF16 if _cpu_has_bf16() else Precision.FP32


def fitting(precision: Precision, parameters: int, free_bytes: int, *, has_bf16: bool) -> Precision:
    """Return the precision for a model with so many parameters on a GPU. Raises OperationError if it does not fit."""
    chosen = precision
    if precision is Precision.AUTO and has_bf16:
        chosen = Precision.BF16
    elif precision is Precision.AUTO:
        chosen = Precision.FP32 if needed_bytes(parameters, Precision.FP32) <= free_bytes else Precision.FP16
    if (needed := needed_bytes(parameters, chosen)) > free_bytes:
        raise OperationError(
            f"the model needs {needed / GIB:.1f} GiB in {chosen.value}, and the GPU has {free_bytes / GIB:.1f} GiB "
            "free; choose a smaller model, or end what uses the GPU"
        )
    return chosen


def needed_bytes(parameters: int, precision: Precision) -> int:
    """Return the GPU memory for a model and a batch."""
    return parameters * bytes_of(precision) + BATCH_BYTES


def bytes_of(precision: Precision) -> int:
    """Return the size of a number."""
    return {Precision.FP32: 4, Precision.INT8: 1}.get(precision, 2)


def torch_type(precision: Precision) -> torch.dtype:
    """Return torch's type for a precision."""
    import torch

    return {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}.get(precision, torch.float32)


def survives(error: Exception, device: str) -> bool:
    """Prepare for the next batch after `error`. Returns False if the process must end instead.

    Running out of memory is survivable. Any other GPU failure is not, since its context returns no valid results
    afterwards.
    """
    import torch

    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if device == "cuda":
        if not out_of_memory and (isinstance(error, torch.AcceleratorError) or "CUDA" in str(error)):
            return False
        if out_of_memory:
            torch.cuda.empty_cache()
    if out_of_memory or "can't allocate memory" in str(error):
        gc.collect()
    return True


def batches_at_once(device: str, *, processes: int, threads: int) -> int:
    """Return how many batches a process computes in parallel: its share of the cores, or one on a GPU."""
    return 1 if device == "cuda" else max(1, usable_cores() // (processes * threads))


def processor() -> str:
    """Return the processor's model and instruction sets, since a measurement on one does not hold for another."""
    kept = [line for line in _cpu() if line.startswith(("model name", "flags"))]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:8]


def _cpu_has_bf16() -> bool:
    # torch's own flag is also true if bf16 is only emulated, which is slower than fp32.
    flags = next((line for line in _cpu() if line.startswith("flags")), "").split()
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags)


def _cpu() -> list[str]:
    """Return the system's description of the first processor."""
    return Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
