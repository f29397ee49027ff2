"""The model in torch: token ids to unit vectors, on one device, in bf16 or fp32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.embed.bert import PackedBert
from services.embed.encoder import Encoder, Vectors
from services.embed.weights import ModelFiles, supports
from services.shared.models.checkpoint import Ids, load_transformer, parameters_of
from services.shared.models.device import Precision, resolve_precision, survives, torch_type

_PADDED_BATCH = 16
"""Sequences per padded batch; they are sorted by length, so there is little padding."""


class TorchEncoder(Encoder):
    """A model in this process, on `cpu` or `cuda`."""

    backend = "torch"
    first_lengths = (8, 16, 24, 32)

    def __init__(self, files: ModelFiles, *, device: str = "cpu", precision: Precision = Precision.AUTO) -> None:
        place = torch.device(device)
        self.device = place.type
        self.pooling = files.pooling
        self.precision = resolve_precision(precision, place.type, parameters_of(files.weights))
        dtype = torch_type(self.precision)
        self._model = (
            PackedBert(_tensors(files), files.config, dtype, place)
            if supports(files.config)
            else PaddedFamily(files, dtype, place)
        )
        self.width = self._model.hidden

    def states(self, sequences: Sequence[Ids]) -> list[Vectors]:
        with torch.inference_mode():
            return self._model.states(sequences)

    def recover(self, error: Exception) -> bool:
        return survives(error, self.device)


class PaddedFamily:
    """Any other family (MPNet, ModernBERT, EmbeddingGemma, Qwen3, …), computed by transformers' own class with padding:
    slower than the packed encoder on mixed lengths, but exact."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype, device: torch.device) -> None:
        self._model = load_transformer(files, "AutoModel", dtype).to(device)
        self._padding = int(getattr(self._model.config, "pad_token_id", None) or 0)
        self.hidden = int(self._model.config.hidden_size)
        self._device = device
        # A decoder would keep the keys and values of every layer for a continuation that never comes.
        self._options = {"use_cache": False} if getattr(self._model.config, "use_cache", None) is not None else {}

    def states(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """See `Encoder.states`."""
        found: list[Vectors] = []
        for start in range(0, len(sequences), _PADDED_BATCH):
            batch = [torch.from_numpy(ids.astype(np.int64)) for ids in sequences[start : start + _PADDED_BATCH]]
            ids = pad_sequence(batch, batch_first=True, padding_value=self._padding)
            lengths = [len(each) for each in batch]
            given = {"input_ids": ids.to(self._device)}
            # Without padding, no mask: for a long text it would take more memory than the model.
            if lengths[0] < lengths[-1]:
                mask = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
                given["attention_mask"] = mask.long().to(self._device)
            # Padding follows the text, so the last token of a decoder is that of the text in every batch.
            states = self._model(**given, **self._options).last_hidden_state
            found += [each[:length] for each, length in zip(states.float().cpu().numpy(), lengths, strict=True)]
        return found


def _tensors(files: ModelFiles) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in files.weights:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping: it has keys() and no iteration
                tensors[name] = file.get_tensor(name)
    return tensors
