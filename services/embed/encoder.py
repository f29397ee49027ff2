"""What an embedding model in this process can do, whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.runtime.models.device import Precision
from services.runtime.models.tokens import Ids

Vectors = npt.NDArray[np.float32]
"""Unit vectors, shape (texts, dimensions)."""


class Encoder(Protocol):
    """Token ids in, unit vectors out; several threads may call it.

    Attributes:
        precision: what it computes in, resolved.
        width: the dimensions of its vectors.
    """

    precision: Precision
    width: int

    @property
    def device(self) -> str:
        """`cpu` or `cuda`."""

    @property
    def bulk_is_slow(self) -> bool:
        """Whether `prepare_for_bulk` would make it faster."""

    def prepare_for_bulk(self, calibration: Sequence[Ids], check: Sequence[Ids]) -> None:
        """Take the time to become faster at long texts, once.  Blocks; others may call the encoder meanwhile.

        Args:
            calibration: texts by which what is rounded is scaled.
            check: texts on which the result has to agree with what is computed now.
        """

    def compute(self, sequences: Sequence[Ids]) -> Vectors:
        """Unit vectors of the sequences, in their order."""

    def token_vectors(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """Of each sequence the unit vectors of its tokens, shape (tokens, dimensions), without the special ones."""

    def warm_up(self, max_tokens: int) -> None:
        """Real forward passes of the shapes that come first, so that no caller waits for what is made once."""

    def recover(self, error: Exception) -> bool:
        """Make ready for the next batch after `error`; False where the process must end instead."""
