"""Where a model computes and how precisely, how many batches at once, and which of its errors can be survived.

torch is imported only when a device is asked about, so that whoever needs the names alone stays light.
"""

from __future__ import annotations

import enum
import gc
from pathlib import Path

from proto.cores import usable_cores
from proto.errors import OperationError


class Precision(enum.StrEnum):
    """What the weights are computed in.

    `auto` is int8 by ONNX Runtime, and bf16 by torch where the processor has instructions for it, from where an
    embedder goes on to int8 for passages in bulk.
    """

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"


def require_device(device: str) -> None:
    """Raises OperationError where `device` is `cuda` and there is none."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise OperationError("no CUDA device is here, or this torch is built without CUDA; use the mode `cpu`")


def resolve_precision(precision: Precision, device: str) -> Precision:
    """What `auto` means on this device, by torch.  Raises OperationError for what torch has not."""
    import torch

    if precision is Precision.INT8:
        raise OperationError("the precision int8 is not for this model; it is auto, fp32 or bf16")
    if precision is not Precision.AUTO:
        return precision
    if device == "cuda":
        return Precision.BF16 if torch.cuda.is_bf16_supported() else Precision.FP32
    return Precision.BF16 if _cpu_has_bf16() else Precision.FP32


def survives(error: Exception, device: str) -> bool:
    """Make ready for the next batch after `error`; False where the process must end instead.

    Running out of memory is survivable, any other failure of a GPU is not, since its context answers nothing sound
    from then on.
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
    """Batches that one process of a pool computes side by side: the cores shared out, and one on a GPU."""
    return 1 if device == "cuda" else max(1, usable_cores() // (processes * threads))


def cpu_has_8_bits() -> bool:
    """Whether the processor multiplies numbers of 8 bits twice as fast as those of bf16, in the same registers."""
    return "avx512_vnni" in _cpu_flags()


def _cpu_has_bf16() -> bool:
    # torch's own flag is true already where bf16 is only emulated, which is slower than fp32.
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_cpu_flags())


def _cpu_flags() -> frozenset[str]:
    """What Linux says that the processor has; empty elsewhere."""
    try:
        flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        return frozenset()
    return frozenset(flags.split())
