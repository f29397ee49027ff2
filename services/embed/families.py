"""Other encoder families (MPNet, ModernBERT, DistilBERT, …) through transformers' own classes, padded and sorted by
length.

Slower than the packed encoder on mixed lengths, and exact. No code of a model repository is ever run, and nothing is
fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from services.embed.weights import ModelFiles
from services.runtime.models.checkpoint import ModelMissing


def load_transformer(files: ModelFiles, dtype: torch.dtype) -> Any:
    """The model of transformers' class for its family, whose forward pass has no type in common with the others'.

    Raises:
        ModelMissing: transformers cannot load it.
    """
    # A second of imports that the packed encoder does without.
    from transformers import AutoModel
    from transformers.utils.logging import disable_progress_bar

    # It would be lines in a log.
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers gives it no types
    try:
        model = AutoModel.from_pretrained(
            files.folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype
        )
    except (ValueError, OSError, KeyError) as error:
        raise ModelMissing(f"transformers cannot load {files.folder}: {error}", field="model") from error
    return model.eval()


class PaddedFamily:
    """A transformers encoder on one device; several threads may call it."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype, device: torch.device) -> None:
        self._model = load_transformer(files, dtype).to(device)
        self._padding = int(files.config.get("pad_token_id") or 0)
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
