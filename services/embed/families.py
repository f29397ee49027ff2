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


class PaddedFamily:
    """A transformers encoder on one device; several threads may call it."""

    def __init__(self, files: ModelFiles, dtype: torch.dtype, device: torch.device) -> None:
        # A second of imports that the packed encoder does without.
        from transformers import AutoConfig, AutoModel

        try:
            config = AutoConfig.from_pretrained(files.folder, local_files_only=True, trust_remote_code=False)
            # Whichever class the family has: its forward pass has no type in common with the others'.
            model: Any = AutoModel.from_pretrained(
                files.folder,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=dtype,
            )
        except (ValueError, OSError, KeyError) as error:
            raise ModelMissing(f"transformers cannot load {files.folder}: {error}", field="model") from error
        self._model = model.eval().to(device)
        self._padding = int(getattr(config, "pad_token_id", None) or 0)
        self.hidden = int(config.hidden_size)
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
