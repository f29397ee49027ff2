"""The encoder: the only interface to an embedding model in this process.

A text passes through four steps: `TextTokenizer` (token ids), `Batcher` (batches by tokens, queries first), `Encoder`
(unit vectors, in the encoder's `precision`), and back to the call in its order. `services.embed.backends` chooses the
implementation.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from services.embed.weights import Pooling
from services.shared.models.batcher import Rows
from services.shared.models.checkpoint import Ids
from services.shared.models.device import Precision

Vectors = npt.NDArray[np.float32]
"""Unit vectors, shape (texts, dimensions), or the states of a text's tokens, shape (tokens, dimensions)."""


class Encoder(abc.ABC):
    """Turns token ids into unit vectors; several threads may call it.

    Attributes:
        backend: the name of its library.
        precision: resolved, never `auto`.
        width: the dimensions of its vectors.
        device: `cpu` or `cuda`.
    """

    backend: str
    precision: Precision
    width: int
    device: str
    pooling: Pooling
    special: tuple[int, int] = (1, 1)
    """How many special tokens stand before and after a text."""
    has_own_threads = False
    """Whether it computes in threads of its library, not in the caller's."""
    first_lengths: tuple[int, ...] = (8,)
    """Token counts of the first shapes, whose computation requires preparation."""

    @abc.abstractmethod
    def states(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """Return the last hidden states of each sequence, shape (tokens, dimensions); sequences are sorted by
        length."""

    @abc.abstractmethod
    def recover(self, error: Exception) -> bool:
        """Prepare for the next batch after `error`; False if the process must end instead."""

    def compute(self, sequences: Sequence[Ids]) -> Vectors:
        """Return the unit vectors of the sequences, in their order."""
        return unit(np.stack([pool(states, self.pooling) for states in self._in_order(sequences)]))

    def token_vectors(self, sequences: Sequence[Ids]) -> list[Vectors]:
        """Return, for each sequence, the unit vectors of its tokens, shape (tokens, dimensions), without the special
        ones."""
        before, after = self.special
        return [
            unit(states[before : len(states) - after] if len(states) > before + after else states)
            for states in self._in_order(sequences)
        ]

    def warm_up(self, max_tokens: int) -> None:
        """Run real forward passes, so that no caller waits for the preparation of those shapes."""
        for length in (*self.first_lengths, max_tokens):
            self.compute([np.ones(min(length, max_tokens), dtype=np.int32)])

    def _in_order(self, sequences: Sequence[Ids]) -> list[Vectors]:
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        found = self.states([sequences[index] for index in order])
        return [states for _, states in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


def pool(states: Vectors, pooling: Pooling) -> Vectors:
    """Pool the states of a text into one vector, not normalised: (tokens, dimensions) to (dimensions)."""
    match pooling:
        case Pooling.CLS:
            pooled: Vectors = states[0]
        case Pooling.LAST_TOKEN:
            pooled = states[-1]
        case Pooling.MAX:
            pooled = states.max(axis=0)
        case Pooling.MEAN | Pooling.MEAN_SQRT_LEN:
            # The square root of the length is undone by the subsequent normalisation.
            pooled = states.mean(axis=0)
    return pooled


def unit(vectors: Vectors) -> Vectors:
    """Scale each row to length 1."""
    units: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return units


class LatePair(msgspec.Struct, frozen=True):
    """A query and a text, as token ids; its length is that of the text."""

    query: Ids
    text: Ids

    def __len__(self) -> int:
        return len(self.text)


class LateInteraction:
    """Scores how well each word of a query is matched by some word of a text: the mean, over the query's tokens, of the
    best cosine with any of the text's token vectors (MaxSim: Khattab and Zaharia, ColBERT, SIGIR 2020).

    Several threads may call it. It is optional, since each text is computed again for each query.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.device, self.has_own_threads = encoder.device, encoder.has_own_threads
        self.recover = encoder.recover

    def compute(self, pairs: Sequence[LatePair]) -> Rows:
        """Return scores of shape (pairs, 1), each in [-1, 1]."""
        queries = {id(pair.query): pair.query for pair in pairs}
        vectors = self._encoder.token_vectors([*queries.values(), *(pair.text for pair in pairs)])
        asked = dict(zip(queries, vectors, strict=False))
        texts = zip(pairs, vectors[len(queries) :], strict=True)
        scores = [(asked[id(pair.query)] @ text.T).max(axis=1).mean() for pair, text in texts]
        return np.array(scores, dtype=np.float32)[:, None]
