"""The cross-encoder: turns pairs into scores in [0, 1], on one device.

The model is transformers' own class for its family, loaded from safetensors; code of model repositories is never run,
and nothing is downloaded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.rerank.checkpoint import Pair
from services.shared.models.batcher import Rows
from services.shared.models.checkpoint import Checkpoint, ModelMissing, load_transformer, parameters_of
from services.shared.models.device import Precision, resolve_precision, survives, torch_type

_PADDED_BATCH = 16
"""Pairs per forward pass; they are sorted by length, so there is little padding."""


class CrossEncoder:
    """A model in this process, on `cpu` or `cuda`; several threads may call it."""

    width = 1
    has_own_threads = False
    kind = "AutoModelForSequenceClassification"
    """The class of transformers that loads the model."""

    def __init__(self, files: Checkpoint, *, device: str = "cpu", precision: Precision = Precision.AUTO) -> None:
        self._device = torch.device(device)
        self.device = self._device.type
        self.precision = resolve_precision(precision, self.device, parameters_of(files.weights))
        dtype = torch_type(self.precision)
        self._model = load_transformer(files, self.kind, dtype).to(self._device)
        self._prepare(files)

    def _prepare(self, files: Checkpoint) -> None:
        config = self._model.config
        if config.num_labels != 1:
            raise ModelMissing(
                f"{files.folder} returns {config.num_labels} numbers for a pair; a cross-encoder returns one",
                field="model",
            )
        self._padding = int(getattr(config, "pad_token_id", None) or 0)
        self._typed = int(getattr(config, "type_vocab_size", None) or 0) > 1
        _make_head_exact(self._model)

    def compute(self, pairs: Sequence[Pair]) -> Rows:
        """Return the score of each pair, shape (pairs, 1): the logistic function of the model's output."""
        order = sorted(range(len(pairs)), key=lambda index: len(pairs[index]))
        scores = np.empty((len(pairs), 1), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), _PADDED_BATCH):
                batch = order[start : start + _PADDED_BATCH]
                logits: Tensor = self._logits([pairs[index] for index in batch])
                scores[batch] = torch.sigmoid(logits.float()).cpu().numpy()
        return scores

    def warm_up(self, max_tokens: int) -> float:
        """Run real forward passes, so that no caller waits for kernels to be compiled. Returns the speed of the last
        one in tokens/s."""
        elapsed_s = 0.0
        for length in (16, 64, 256, max_tokens, max_tokens):
            ids = np.ones(min(length, max_tokens), dtype=np.int32)
            started = time.perf_counter()
            self.compute([Pair(ids, np.zeros_like(ids))])
            elapsed_s = time.perf_counter() - started
        return max_tokens / max(elapsed_s, 1e-6)

    def recover(self, error: Exception) -> bool:
        return survives(error, self.device)

    def _logits(self, pairs: Sequence[Pair]) -> Tensor:
        def padded(rows: Iterable[npt.NDArray[np.int32]], padding: int = 0) -> Tensor:
            tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
            return pad_sequence(tensors, batch_first=True, padding_value=padding).to(self._device)

        given = {
            "input_ids": padded((pair.ids for pair in pairs), self._padding),
            "attention_mask": padded(np.ones_like(pair.ids) for pair in pairs),
        }
        if self._typed:
            given["token_type_ids"] = padded(pair.types for pair in pairs)
        logits: Tensor = self._model(**given).logits
        return logits


def _make_head_exact(model: Any) -> None:
    """Compute the last layer in float32: bf16 has three digits, and good texts differ in the third."""
    head = getattr(model, "classifier", None)
    if isinstance(head, torch.nn.Module):
        head.float()
        head.register_forward_pre_hook(lambda _, given: tuple(each.float() for each in given))
