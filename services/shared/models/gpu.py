"""The GPU of a process with a model: its memory, utilization and temperature, for `status` and the metrics, and what
fits into that memory.

NVIDIA's library is loaded only in a process that computes on a GPU. If the driver hangs, only a thread of that process
hangs, and nothing more is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import trio

from proto.host.gpu import GPU, GpuFigures
from services.runtime.handlers import Environment

EVERY_S = 10.0
"""Reading takes a millisecond, and Prometheus usually asks every 15 to 60 seconds."""

HANGS_AFTER_S = 5.0

NO_ANSWER = "the GPU's driver does not answer"

Read = Callable[[], GpuFigures]

_MOST_WIDTHS = 8
"""Vectors of the hidden width that a layer holds for each token: its input and output, queries, keys and values, the
attention's result, and copies made by casts."""


async def watch(env: Environment, read: Read | None = None) -> None:
    """Show the figures of the GPU in `status`, until cancelled.

    Args:
        read: reads them, and blocks; by default with NVIDIA's library.
    """
    limiter = trio.CapacityLimiter(1)
    while True:
        figures: GpuFigures | None = None
        with trio.move_on_after(HANGS_AFTER_S) as scope:
            try:
                if read is None:
                    read = await trio.to_thread.run_sync(opened, abandon_on_cancel=True, limiter=limiter)
                figures = await trio.to_thread.run_sync(read, abandon_on_cancel=True, limiter=limiter)
            except Exception as error:  # noqa: BLE001  # figures are missing, and the model computes on
                env.info(**{GPU: f"unknown: {type(error).__name__}: {error}"})
                return
        if scope.cancelled_caught or figures is None:
            # Another thread would hang too.
            env.info(**{GPU: f"unknown: {NO_ANSWER}"})
            return
        env.info(**{GPU: msgspec.json.encode(figures).decode()})
        await trio.sleep(EVERY_S)


def opened() -> Read:
    """Return a function that reads the figures of this process's GPU. Blocks.

    Raises ImportError if nvidia-ml-py is not installed, and `pynvml.NVMLError`.
    """
    import pynvml
    import torch

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    # Not by number: CUDA numbers only the visible GPUs.
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")

    def read() -> GpuFigures:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuFigures(
            name=pynvml.nvmlDeviceGetName(handle),
            number=pynvml.nvmlDeviceGetIndex(handle),
            used_bytes=memory.used,
            total_bytes=memory.total,
            utilization=_optional(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            celsius=_optional(lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))),
        )

    return read


def _optional(read: Callable[[], float]) -> float | None:
    """Return a figure, or None if this GPU does not have it, such as the utilization of a part of a GPU."""
    import pynvml

    try:
        return read()
    except pynvml.NVMLError_NotSupported:
        return None


def affordable_tokens(free_bytes: int, config: Mapping[str, Any], bytes_each: int) -> int:
    """Return how many tokens a batch may have so that what a layer computes takes at most half of the free memory.

    Args:
        config: of the model, as in its `config.json`.
        bytes_each: size of a number in the model's precision.
    """
    width = int(config.get("hidden_size") or 1024)
    inner = int(config.get("intermediate_size") or 4 * width)
    # A gated layer holds two inner vectors.
    return free_bytes // 2 // ((_MOST_WIDTHS * width + 2 * inner) * bytes_each)
