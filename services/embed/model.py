"""The loaded model in torch: token ids in, unit vectors out, on one device.

In bf16 or fp32, and, once there was much to do (`prepare_for_bulk`), whatever is longer than `SHORT` in 8 bits on a
processor that multiplies those faster.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from proto.errors import OperationError
from services.embed.bert import PackedBert
from services.embed.encoder import Vectors
from services.embed.families import PaddedFamily
from services.embed.int8 import products
from services.embed.int8.bert import Int8Bert
from services.embed.int8.ranges import Ranges
from services.embed.layout import Layout
from services.embed.shape import Shape, supports
from services.embed.weights import ModelFiles, Pooling
from services.runtime.models.device import Precision, cpu_has_8_bits, resolve_precision, survives
from services.runtime.models.tokens import Ids

_PADDED_BATCH = 16
"""Sequences that go through a padded encoder at once: sorted by length, so that little of it is padding."""

SHORT = 16
"""Sequences up to this length stay in bf16: few tokens do not even out what each of them is rounded by, and a short
query is bound by the number of calls."""

LEAST_COSINE = 0.995
"""Between the same text's vectors in bf16 and in 8 bits, or it stays with bf16."""

_log = logging.getLogger(__name__)


class TorchEncoder:
    """A model in this process, on `cpu` or `cuda`; `width` is the dimensions of its vectors."""

    def __init__(self, files: ModelFiles, *, device: str = "cpu", precision: Precision = Precision.AUTO) -> None:
        self._device = torch.device(device)
        self._files = files
        self.precision, self._wants_int8 = _resolve(files, precision, self._device.type)
        dtype = torch.bfloat16 if self.precision is Precision.BF16 else torch.float32
        self._pooling = files.pooling
        self._int8: Int8Bert | None = None
        self._packed: PackedBert | None = None
        self._padded: PaddedFamily | None = None
        if supports(files.config):
            self._packed = PackedBert(_tensors(files), files.config, dtype, self._device)
            self.width = self._packed.hidden
        else:
            self._padded = PaddedFamily(files, dtype, self._device)
            self.width = self._padded.hidden

    @property
    def device(self) -> str:
        return self._device.type

    @property
    def bulk_is_slow(self) -> bool:
        return self._wants_int8 and self._int8 is None

    def prepare_for_bulk(self, calibration: Sequence[Ids], check: Sequence[Ids]) -> None:
        """Make the layers of 8 bits, and use them from here on if they agree with those of bf16."""
        if self._packed is None or not self.bulk_is_slow:
            return
        tensors = _tensors(self._files)
        ranges = Ranges()
        try:
            with torch.inference_mode():
                for ids in calibration:
                    flat, layout = _flat([ids])
                    self._packed(flat, layout, ranges)
                int8 = Int8Bert(tensors, Shape.of(self._files.config, tensors), self._packed, ranges)
                least = float((self._vectors(check, None) * self._vectors(check, int8)).sum(axis=1).min())
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            self._stay_in_bf16(f"{type(error).__name__}: {error}")
            return
        if least < LEAST_COSINE:
            self._stay_in_bf16(f"the worst cosine to bf16 is {least:.4f}, at least {LEAST_COSINE} is asked")
            return
        self._int8, self.precision = int8, Precision.INT8

    def _stay_in_bf16(self, reason: str) -> None:
        self._wants_int8 = False
        _log.warning("%s is not computed in 8 bits: %s", self._files.name, reason)

    def compute(self, sequences: Sequence[Ids]) -> Vectors:
        """Unit vectors of the sequences, in their order."""
        with torch.inference_mode():
            return self._vectors(sequences, self._int8)

    def _vectors(self, sequences: Sequence[Ids], int8: Int8Bert | None) -> Vectors:
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        ordered = [sequences[index] for index in order]
        pooled = self._encode_packed(ordered, int8) if self._packed is not None else self._encode_padded(ordered)
        vectors = F.normalize(pooled.float(), dim=-1).cpu().numpy()
        result = np.empty_like(vectors)
        result[order] = vectors
        return result

    def token_vectors(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """Of each sequence the unit vectors of its tokens, shape (tokens, dimensions), without the special ones."""
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        found: list[Vectors] = [np.empty((0, self.width), dtype=np.float32)] * len(sequences)
        with torch.inference_mode():
            ordered = [sequences[index] for index in order]
            states = self._states_packed(ordered) if self._packed is not None else self._states_padded(ordered)
            for index, each in zip(order, states, strict=True):
                inner = each[1:-1] if len(each) > 2 else each
                found[index] = F.normalize(inner.float(), dim=-1).cpu().numpy()
        return found

    def warm_up(self, max_tokens: int) -> None:
        """Real forward passes of the shapes that come first, so that no caller waits for kernels to be made."""
        for length in (*range(8, 33, 8), max_tokens):
            self.compute([np.ones(min(length, max_tokens), dtype=np.int32)])

    def recover(self, error: Exception) -> bool:
        return survives(error, self._device.type)

    def _states_packed(self, sequences: Sequence[Ids]) -> list[Tensor]:
        assert self._packed is not None
        flat, layout = _flat(sequences)
        states = self._packed(flat.to(self._device), layout)
        ends = list(itertools.accumulate(map(len, sequences), initial=0))
        return [states[start:end] for start, end in itertools.pairwise(ends)]

    def _encode_packed(self, ordered: Sequence[Ids], int8: Int8Bert | None) -> Tensor:
        """One vector for each sequence, the shortest first."""
        assert self._packed is not None
        if int8 is None:
            return self._pooled(self._packed, ordered)
        short = sum(len(ids) <= SHORT for ids in ordered)
        parts: list[tuple[PackedBert | Int8Bert, Sequence[Ids]]] = [
            (self._packed, ordered[:short]),
            (int8, ordered[short:]),
        ]
        return torch.cat([self._pooled(encoder, part).float() for encoder, part in parts if part])

    def _pooled(self, encoder: PackedBert | Int8Bert, sequences: Sequence[Ids]) -> Tensor:
        flat, layout = _flat(sequences)
        states = encoder(flat.to(self._device), layout)
        pooled: list[Tensor] = []
        row = 0
        for length, count in layout.runs:
            pooled.append(pool(states[row : row + length * count].view(count, length, -1), self._pooling))
            row += length * count
        return torch.cat(pooled)

    def _states_padded(self, sequences: Sequence[Ids]) -> list[Tensor]:
        assert self._padded is not None
        found: list[Tensor] = []
        for start in range(0, len(sequences), _PADDED_BATCH):
            batch = [torch.from_numpy(ids.astype(np.int64)) for ids in sequences[start : start + _PADDED_BATCH]]
            found.extend(self._padded(batch))
        return found

    def _encode_padded(self, sequences: Sequence[Ids]) -> Tensor:
        return torch.cat([pool(states.unsqueeze(0), self._pooling) for states in self._states_padded(sequences)])


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


def _flat(sequences: Sequence[Ids]) -> tuple[Tensor, Layout]:
    """The sequences one after the other, on the CPU, and how they lie."""
    lengths = [len(ids) for ids in sequences]
    layout = Layout.of(lengths, rows_for(sum(lengths)))
    flat = np.zeros(layout.rows, dtype=np.int64)
    np.concatenate(sequences, out=flat[: sum(lengths)], casting="safe")
    return torch.from_numpy(flat), layout


def _resolve(files: ModelFiles, precision: Precision, device: str) -> tuple[Precision, bool]:
    """What it computes in, and whether that becomes 8 bits for much of it.

    Raises OperationError for 8 bits where they cannot be had.
    """
    base = resolve_precision(Precision.AUTO if precision is Precision.INT8 else precision, device)
    possible = (
        device == "cpu"
        and base is Precision.BF16
        and cpu_has_8_bits()
        and supports(files.config)
        and products.supports(str(files.config.get("hidden_act", "gelu")))
    )
    if precision is Precision.INT8 and not possible:
        raise OperationError(
            "services.embed.precision is int8: with torch that takes a CPU with avx512_bf16 and avx512_vnni, and a "
            "model of BERT's family with GELU; set it to auto"
        )
    return base, possible and precision in (Precision.AUTO, Precision.INT8)


def rows_for(tokens: int) -> int:
    """`tokens` rounded up to a size that comes again.

    oneDNN makes a kernel for each number of rows that it meets: 10 ms for a large layer that then takes 1.5 ms.
    """
    step = 8 if tokens <= 64 else 32 if tokens <= 256 else 128 if tokens <= 4096 else 512
    return -(-tokens // step) * step


def _tensors(files: ModelFiles) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in files.weights:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping: it has keys() and no iteration
                tensors[name] = file.get_tensor(name)
    return tensors
