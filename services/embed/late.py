"""Late interaction: how well each word of a query is matched by some word of a text, on the embedder's own token
vectors.

The score is the mean over the query's tokens of the best cosine with any of the text's (MaxSim: Khattab and Zaharia,
ColBERT, SIGIR 2020). No further model is needed. It is optional, since each text is computed again for each query.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from services.embed.encoder import Encoder
from services.runtime.models.batcher import Rows
from services.runtime.models.checkpoint import Ids


class LatePair(msgspec.Struct, frozen=True):
    """A query and a text, as token ids; as long as the text is."""

    query: Ids
    text: Ids

    def __len__(self) -> int:
        return len(self.text)


class LateInteraction:
    """Scores pairs with the encoder; several threads may call it."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.device = encoder.device

    def compute(self, pairs: Sequence[LatePair]) -> Rows:
        """Shape (pairs, 1), each in [-1, 1]."""
        queries = {id(pair.query): pair.query for pair in pairs}
        vectors = self._encoder.token_vectors([*queries.values(), *(pair.text for pair in pairs)])
        asked = dict(zip(queries, vectors, strict=False))
        scores = np.empty((len(pairs), 1), dtype=np.float32)
        for row, (pair, text) in enumerate(zip(pairs, vectors[len(queries) :], strict=True)):
            scores[row] = (asked[id(pair.query)] @ text.T).max(axis=1).mean()
        return scores

    def recover(self, error: Exception) -> bool:
        return self._encoder.recover(error)
