"""A model that is let go after a while in which nobody asked for it, and loaded again by whoever asks first.

For machines whose memory others want: the process stays, with its tokenizer and its answers to who it is, and the
first call after a rest takes as long as the loading does.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import trio

from proto.memory import give_memory_back
from services.runtime.models.batcher import Model, Rows

M = TypeVar("M", bound=Model[Any])


class Resting(Generic[M]):
    """Holds a model of `load`'s, at first `loaded`; any number of threads may borrow it."""

    def __init__(self, loaded: M, load: Callable[[], M]) -> None:
        self._model: M | None = loaded
        self._load = load
        self._lock = threading.Lock()
        self.width = loaded.width
        self.device = loaded.device

    @property
    def rests(self) -> bool:
        return self._model is None

    def peek(self) -> M | None:
        """The model, None where it rests."""
        return self._model

    def borrow(self) -> M:
        """The model, loaded now where it rests: blocks.  Raises what `load` raises."""
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return self._model

    def rest(self) -> None:
        """Let the model go; blocks.  Batches that have it finish with it."""
        with self._lock:
            self._model = None
        gc.collect()
        give_memory_back()

    def compute(self, texts: Sequence[Any]) -> Rows:
        """As the model does."""
        rows: Rows = self.borrow().compute(texts)
        return rows

    def recover(self, error: Exception) -> bool:
        """As the model does; one that cannot be loaded any more is the process's end."""
        model = self._model
        return model is not None and model.recover(error)


class Queue(Protocol):
    """What of a batcher tells whether its model is idle."""

    @property
    def last_asked_at(self) -> float: ...

    @property
    def waiting_tokens(self) -> int: ...


async def rest_when_idle(queues: Sequence[Queue], resting: Resting[M], after_s: float) -> None:
    """Let the model rest whenever nobody asked for it in `after_s`, until cancelled."""
    while True:
        idle_at = max(queue.last_asked_at for queue in queues) + after_s
        now = trio.current_time()
        if now < idle_at:
            await trio.sleep_until(idle_at)
        elif resting.rests or any(queue.waiting_tokens for queue in queues):
            await trio.sleep(after_s)
        else:
            await trio.to_thread.run_sync(resting.rest)
