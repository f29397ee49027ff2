"""How long searches wait for the embedder."""

from __future__ import annotations

import numpy as np
import trio


class Patience:
    """How long a search waits for the query's vector: in full, or briefly once that was waited for in vain.

    Words answer in milliseconds; while the embedder hangs, not every search shall pay for it. Until it has answered
    once it may be loading its model: the first searches wait for that, though not for the slowest.
    """

    FIRST_S, BRIEF_S, BRIEF_FOR_S = 2.0, 0.1, 5.0

    def __init__(self, full_s: float) -> None:
        self._full_s = full_s
        self._most_s = min(self.FIRST_S, full_s)
        self._brief_until = -np.inf

    def timeout_s(self) -> float:
        return min(self.BRIEF_S, self._full_s) if trio.current_time() < self._brief_until else self._most_s

    def learn(self, answered: bool) -> None:
        if answered:
            self._most_s = self._full_s
        self._brief_until = -np.inf if answered else trio.current_time() + self.BRIEF_FOR_S
