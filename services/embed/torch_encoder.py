"""The loaded model in torch: token ids in, unit vectors out, on one device, in bf16 or fp32."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from services.embed.bert import Layout, PackedBert, supports
from services.embed.encoder import Vectors
from services.embed.weights import ModelFiles, Pooling
from services.runtime.models.checkpoint import Ids, load_transformer
from services.runtime.models.device import Precision, resolve_precision, survives

_PADDED_BATCH = 16
"""Sequences in one padded batch: sorted by length, so that little of it is padding."""


class TorchEncoder:
    """A model in this process, on `cpu` or `cuda`; `width` is the dimensions of its vectors."""

    def __init__(self, files: ModelFiles, *, device: str = "cpu", precision: Precision = Precision.AUTO) -> None:
        self._device = torch.device(device)
        self.precision = resolve_precision(precision, self._device.type)
        dtype = torch.bfloat16 if self.precision is Precision.BF16 else torch.float32
        self._pooling = files.pooling
        self._model: PackedBert | PaddedFamily
        if supports(files.config):
            self._model = PackedBert(_tensors(files), files.config, dtype, self._device)
        else:
            self._model = PaddedFamily(files, dtype, self._device)
        self.width = self._model.hidden

    @property
    def device(self) -> str:
        return self._device.type

    def compute(self, sequences: Sequence[Ids]) -> Vectors:
        """Unit vectors of the sequences, in their order."""
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        with torch.inference_mode():
            pooled = self._pooled([sequences[index] for index in order])
            vectors = F.normalize(pooled.float(), dim=-1).cpu().numpy()
        result = np.empty_like(vectors)
        result[order] = vectors
        return result

    def token_vectors(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """Of each sequence the unit vectors of its tokens, shape (tokens, dimensions), without the special ones."""
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        found: list[Vectors] = [np.empty((0, self.width), dtype=np.float32)] * len(sequences)
        with torch.inference_mode():
            for index, each in zip(order, self._states([sequences[index] for index in order]), strict=True):
                inner = each[1:-1] if len(each) > 2 else each
                found[index] = F.normalize(inner.float(), dim=-1).cpu().numpy()
        return found

    def warm_up(self, max_tokens: int) -> None:
        """Real forward passes of the shapes that come first, so that no caller waits for kernels to be compiled."""
        for length in (*range(8, 33, 8), max_tokens):
            self.compute([np.ones(min(length, max_tokens), dtype=np.int32)])

    def recover(self, error: Exception) -> bool:
        return survives(error, self._device.type)

    def _states(self, ordered: Sequence[Ids]) -> list[Tensor]:
        """The last hidden states of each sequence, shape (length, hidden); the shortest sequence comes first."""
        if isinstance(self._model, PackedBert):
            states, _ = self._packed_states(self._model, ordered)
            ends = itertools.accumulate(map(len, ordered), initial=0)
            return [states[start:end] for start, end in itertools.pairwise(ends)]
        found: list[Tensor] = []
        for start in range(0, len(ordered), _PADDED_BATCH):
            batch = ordered[start : start + _PADDED_BATCH]
            found.extend(self._model([torch.from_numpy(ids.astype(np.int64)) for ids in batch]))
        return found

    def _packed_states(self, model: PackedBert, ordered: Sequence[Ids]) -> tuple[Tensor, Layout]:
        lengths = [len(ids) for ids in ordered]
        layout = Layout.of(lengths, rows_for(sum(lengths)))
        flat = np.zeros(layout.rows, dtype=np.int64)
        np.concatenate(ordered, out=flat[: layout.tokens], casting="safe")
        return model(torch.from_numpy(flat).to(self._device), layout), layout

    def _pooled(self, ordered: Sequence[Ids]) -> Tensor:
        """One vector for each sequence; the shortest sequence comes first."""
        if not isinstance(self._model, PackedBert):
            return torch.cat([pool(states.unsqueeze(0), self._pooling) for states in self._states(ordered)])
        states, layout = self._packed_states(self._model, ordered)
        pooled: list[Tensor] = []
        row = 0
        for length, count in layout.runs:
            pooled.append(pool(states[row : row + length * count].view(count, length, -1), self._pooling))
            row += length * count
        return torch.cat(pooled)


class PaddedFamily:
    """Any other encoder family (MPNet, ModernBERT, DistilBERT, …) by transformers' own class, padded: slower than the
    packed encoder on mixed lengths, and exact."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype, device: torch.device) -> None:
        self._model = load_transformer(files, "AutoModel", dtype).to(device)
        self._padding = int(getattr(self._model.config, "pad_token_id", None) or 0)
        self.hidden = int(self._model.config.hidden_size)
        self.device = device

    def __call__(self, sequences: Sequence[Tensor]) -> list[Tensor]:
        """The last hidden states of each sequence of ids, shape (length, hidden)."""
        length = max(len(ids) for ids in sequences)
        batch = torch.full((len(sequences), length), self._padding, dtype=torch.int64)
        mask = torch.zeros((len(sequences), length), dtype=torch.int64)
        for row, ids in enumerate(sequences):
            batch[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
        states: Tensor = self._model(
            input_ids=batch.to(self.device), attention_mask=mask.to(self.device)
        ).last_hidden_state
        return [states[row, : len(ids)] for row, ids in enumerate(sequences)]


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
    """`tokens` rounded up to one of few sizes.

    oneDNN compiles a kernel for each number of rows: 10 ms for a large layer that then takes 1.5 ms.
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
