"""Embeds many passages in a process without a service: an actor of `linckia reembed --cluster` on a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from proto.ops.embed import TextKind
from services.embed.backends import Backend
from services.embed.main import load
from services.embed.serving import EmbedSettings, most_tokens
from services.shared.models.checkpoint import Ids

Halves = npt.NDArray[np.float16]


class BulkEmbedder:
    """A loaded model that embeds passages as `embed` does. The methods block.

    Args:
        settings: `[services.embed]`.
        folder: holds the graph of the backend `onnx`.

    Raises:
        ModelMissing: the model is not on this machine, or its form is not supported.
        OperationError: there is no GPU, or the backend is not installed.
    """

    def __init__(self, settings: Mapping[str, object], *, on_gpu: bool, threads: int, folder: Path) -> None:
        given = msgspec.convert(dict(settings) | {"threads": threads}, EmbedSettings)
        device = "cuda" if on_gpu and given.backend not in (Backend.ONNX, Backend.OPENVINO) else "cpu"
        self._loaded = load(given, device, folder)
        self._most_tokens = most_tokens(self._loaded)
        self.fingerprint = self._loaded.fingerprint

    def embed(self, texts: Sequence[str]) -> Halves:
        """Return unit vectors in the order of `texts`, shape (texts, dimensions); NaN if the model fails on a text."""
        ids = self._loaded.tokenizer.encode(texts, TextKind.PASSAGE).ids
        rows = np.full((len(texts), self._loaded.encoder.width), np.nan, dtype="<f2")
        # Texts of similar length share a batch.
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        batch: list[int] = []
        for index in order:
            # The longest of a batch is the last: some models pad the others to it.
            if batch and (len(batch) + 1) * len(ids[index]) > self._most_tokens:
                self._compute(ids, batch, rows)
                batch = []
            batch.append(index)
        if batch:
            self._compute(ids, batch, rows)
        return rows

    def _compute(self, ids: Sequence[Ids], batch: list[int], rows: Halves) -> None:
        """Compute a batch, or its halves if that fails. Raises whatever the model raises if it is lost."""
        try:
            rows[batch] = self._loaded.encoder.compute([ids[index] for index in batch])
        except Exception as error:
            if not self._loaded.encoder.recover(error):
                raise
            if len(batch) > 1:
                half = len(batch) // 2
                self._compute(ids, batch[:half], rows)
                self._compute(ids, batch[half:], rows)
