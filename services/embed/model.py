"""The loaded model: token ids in, unit vectors out, on one device.

The batcher sees `Encoder` only, so that a worker in another process can take its place. Failures are sorted here:
running out of memory is survivable, any other failure of a GPU is not, since its context answers nothing sound from
then on.
"""

from __future__ import annotations

import enum
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from services.embed.bert import Layout, PackedBert, supports
from services.embed.families import PaddedFamily
from services.embed.tokens import Ids
from services.embed.weights import ModelFiles, Pooling

Vectors = npt.NDArray[np.float32]

_PADDED_BATCH = 16
"""Sequences that go through a padded encoder at once: sorted by length, so that little of it is padding."""


class Precision(enum.StrEnum):
    """What the weights are computed in; `auto` is bf16 where the processor has instructions for it."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"


class Encoder(Protocol):
    """One loaded model.  Methods block; several worker threads may call them at once."""

    @property
    def dimensions(self) -> int: ...

    @property
    def device(self) -> str: ...

    @property
    def precision(self) -> Precision: ...

    def encode(self, sequences: Sequence[Ids]) -> Vectors:
        """Unit vectors, float32, shape (sequences, dimensions).  Raises whatever the model raises."""

    def recover(self, error: Exception) -> bool:
        """Make ready for the next batch after `error`; False where the process must end instead."""


class TorchEncoder:
    """A model in this process, on `cpu` or `cuda`."""

    def __init__(self, files: ModelFiles, *, device: str = "cpu", precision: Precision = Precision.AUTO) -> None:
        self._device = torch.device(device)
        self.precision = resolve_precision(precision, self._device)
        dtype = torch.bfloat16 if self.precision is Precision.BF16 else torch.float32
        self._pooling = files.pooling
        self._packed: PackedBert | None = None
        self._padded: PaddedFamily | None = None
        if supports(files.config):
            self._packed = PackedBert(_tensors(files), files.config, dtype, self._device)
            self.dimensions = self._packed.hidden
        else:
            self._padded = PaddedFamily(files, dtype, self._device)
            self.dimensions = self._padded.hidden

    @property
    def device(self) -> str:
        return self._device.type

    def encode(self, sequences: Sequence[Ids]) -> Vectors:
        """Unit vectors of the sequences, in their order."""
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        ordered = [sequences[index] for index in order]
        with torch.inference_mode():
            pooled = self._encode_packed(ordered) if self._packed is not None else self._encode_padded(ordered)
            vectors = F.normalize(pooled.float(), dim=-1).cpu().numpy()
        result = np.empty_like(vectors)
        result[order] = vectors
        return result

    def warm_up(self, max_tokens: int) -> None:
        """Real forward passes of the shapes that come first, so that no caller waits for kernels to be made."""
        for length in (*range(8, 33, 8), max_tokens):
            self.encode([np.ones(min(length, max_tokens), dtype=np.int32)])

    def recover(self, error: Exception) -> bool:
        out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if self._device.type == "cuda":
            if not out_of_memory and (isinstance(error, torch.AcceleratorError) or "CUDA" in str(error)):
                return False
            if out_of_memory:
                torch.cuda.empty_cache()
        if out_of_memory or "can't allocate memory" in str(error):
            gc.collect()
        return True

    def _encode_packed(self, sequences: Sequence[Ids]) -> Tensor:
        assert self._packed is not None
        lengths = [len(ids) for ids in sequences]
        layout = Layout.of(lengths, rows_for(sum(lengths)))
        flat = np.zeros(layout.rows, dtype=np.int64)
        np.concatenate(sequences, out=flat[: sum(lengths)], casting="safe")
        states = self._packed(torch.from_numpy(flat).to(self._device), layout)
        pooled: list[Tensor] = []
        row = 0
        for length, count in layout.runs:
            pooled.append(pool(states[row : row + length * count].view(count, length, -1), self._pooling))
            row += length * count
        return torch.cat(pooled)

    def _encode_padded(self, sequences: Sequence[Ids]) -> Tensor:
        assert self._padded is not None
        pooled: list[Tensor] = []
        for start in range(0, len(sequences), _PADDED_BATCH):
            batch = [torch.from_numpy(ids.astype(np.int64)) for ids in sequences[start : start + _PADDED_BATCH]]
            pooled.extend(pool(states.unsqueeze(0), self._pooling) for states in self._padded(batch))
        return torch.cat(pooled)


def pool(states: Tensor, pooling: Pooling) -> Tensor:
    """One vector for each sequence of equal length: (count, length, hidden) to (count, hidden), in float32."""
    if pooling is Pooling.CLS:
        return states[:, 0].float()
    if pooling is Pooling.LAST_TOKEN:
        return states[:, -1].float()
    if pooling is Pooling.MAX:
        return states.float().amax(1)
    # The square root of the length is undone by the normalisation that follows.
    return states.float().mean(1)


def rows_for(tokens: int) -> int:
    """`tokens` rounded up to a size that comes again.

    oneDNN makes a kernel for each number of rows that it meets: 10 ms for a large layer that then takes 1.5 ms.
    """
    step = 8 if tokens <= 64 else 32 if tokens <= 256 else 128 if tokens <= 4096 else 512
    return -(-tokens // step) * step


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """What `auto` means on this device."""
    if precision is not Precision.AUTO:
        return precision
    if device.type == "cuda":
        return Precision.BF16 if torch.cuda.is_bf16_supported() else Precision.FP32
    return Precision.BF16 if _cpu_has_bf16() else Precision.FP32


def usable_cores() -> int:
    """The cores this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        # No control group of the second version here: then there is no quota to keep.
        return cores
    return cores


def _cpu_has_bf16() -> bool:
    # torch's own flag is true already where bf16 is only emulated, which is slower than fp32.
    try:
        flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags.split())


def _tensors(files: ModelFiles) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in files.weights:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping: it has keys() and no iteration
                tensors[name] = file.get_tensor(name)
    return tensors
