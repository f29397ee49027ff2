"""Groups waiting texts into batches: interactive requests first, fair between callers, bounded in time and number.

Batches are sized in tokens so that each takes about `target_s`: a query waits for one bulk batch, never for the whole
bulk request. A batch that fails is halved until only the faulty text fails. If the model itself is lost (a GPU error
other than out-of-memory, a batch that never ends), `run` raises and the process ends; the next generation serves the
requests that were waiting.
"""

from __future__ import annotations

import bisect
import collections
import enum
import time
from collections.abc import Callable, Sequence, Sized
from typing import Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import trio

from proto.errors import OperationError, Overloaded

T = TypeVar("T", bound=Sized)
T_contra = TypeVar("T_contra", bound=Sized, contravariant=True)

Rows = npt.NDArray[np.float32]
"""One row for each text, shape (texts, width)."""

MAX_PROMPT_BATCHES_IN_A_ROW = 8
"""After this many prompt batches in a row, one bulk batch runs, so that endless queries do not starve ingestion."""

CONTENDED = 1.25
"""Ratio of a batch's wall time to its processor time above which other programs need the processors. Background work
then yields: it rests `GIVES_WAY` times as long as it had to wait, and at most `LONGEST_REST_S`."""
GIVES_WAY = 2.0
LONGEST_REST_S = 1.0

HEALTHY_WITHIN_S = 60.0
"""Limit for the answer to one text, however many texts wait."""

_LEAST_SHARE = 512
"""Smallest number of tokens worth a batch of their own when several runners share a queue."""


class Lane(enum.Enum):
    """The priority of a request: interactive, or background work."""

    PROMPT = "prompt"
    BULK = "bulk"


class Model(Protocol[T_contra]):
    """One loaded model. `len` of a text is its length in tokens.

    Methods block; several worker threads may call them at once.
    """

    @property
    def device(self) -> str: ...

    @property
    def has_own_threads(self) -> bool:
        """Whether it computes in threads of its library, not in the caller's."""
        ...

    def compute(self, texts: Sequence[T_contra]) -> Rows:
        """Return float32 rows, shape (texts, width). Raises whatever the model raises."""

    def recover(self, error: Exception) -> bool:
        """Prepare for the next batch after `error`. Returns False if the process must end instead."""


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Size limits of batches and queues."""

    target_s: float = 0.05
    first_tokens: int = 1024
    max_tokens: int = 65536
    max_waiting_tokens: int = 1_000_000
    stuck_after_s: float = 60.0


class ModelLost(Exception):
    """The model in this process no longer gives valid answers; only a new process helps."""


class _Request(Generic[T]):
    """The texts of one caller, shortest first, and the rows computed so far."""

    def __init__(self, texts: Sequence[T], width: int) -> None:
        self.texts = texts
        self.rows: Rows = np.zeros((len(texts), width), dtype=np.float32)
        # Neighbours of similar length share a batch, which makes attention over it cheap.
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        self.todo = collections.deque(order)
        self.tokens = sum(map(len, texts))
        self.due = 0
        self.missing = len(texts)
        self.failure: tuple[int, Exception] | None = None
        self.done = trio.Event()

    def settle(self, index: int, outcome: Rows | Exception) -> None:
        self.missing -= 1
        if isinstance(outcome, Exception):
            if self.failure is None or index < self.failure[0]:
                self.failure = (index, outcome)
        else:
            self.rows[index] = outcome
        if not self.missing:
            self.done.set()


class _Queue(Generic[T]):
    """The requests of one lane, ordered by when each would finish if it had run alone since its arrival, in tokens.

    A small request therefore overtakes a large one in progress, a large one is overtaken by no more than its own size,
    and equal ones finish one after the other: round robin would finish all of them at the last moment. (Demers, Keshav
    and Shenker, Analysis and Simulation of a Fair Queueing Algorithm, 1989, with one clock for all callers.)
    """

    def __init__(self) -> None:
        self.requests: list[_Request[T]] = []
        self.tokens = 0
        self._taken = 0

    def add(self, request: _Request[T]) -> None:
        request.due = self._taken + request.tokens
        bisect.insort(self.requests, request, key=lambda each: each.due)
        self.tokens += request.tokens

    def discard(self, request: _Request[T]) -> None:
        """Drop the texts of `request` that still wait."""
        if request in self.requests:
            self.requests.remove(request)
            self.tokens -= sum(len(request.texts[index]) for index in request.todo)
            request.todo.clear()

    def take(self, budget: int) -> list[tuple[_Request[T], int]]:
        """Take at least one text, then as many as fit into `budget` tokens."""
        taken: list[tuple[_Request[T], int]] = []
        spent = 0
        while self.requests:
            request = self.requests[0]
            size = len(request.texts[request.todo[0]])
            if taken and spent + size > budget:
                break
            taken.append((request, request.todo.popleft()))
            spent += size
            if not request.todo:
                del self.requests[0]
        self.tokens -= spent
        self._taken += spent
        return taken


class Batcher(Generic[T]):
    """The queue in front of one or more models with the same weights; each model has its own `run` task.

    Args:
        width: size of the vector that the model returns for each text.
        verb: what the model does to a text, for error messages (`embedded`, `ranked`).
    """

    def __init__(self, width: int, limits: BatchLimits, *, verb: str = "computed") -> None:
        self._width = width
        self._verb = verb
        self._limits = limits
        self._queues: dict[Lane, _Queue[T]] = {lane: _Queue() for lane in Lane}
        self._arrived = trio.Event()
        self._prompt_in_a_row = 0
        self._runners = self._at_work = 0
        self.tokens_per_s = limits.first_tokens / limits.target_s
        """The speed of one model, measured on recent batches."""
        self._has_learned = False
        self.last_batch_at = trio.current_time()

    @property
    def waiting_tokens(self) -> int:
        return sum(queue.tokens for queue in self._queues.values())

    def admit(self, lane: Lane, tokens: int) -> None:
        """Raise Overloaded, with the expected waiting time, if another `tokens` tokens would wait too long.

        An empty lane admits any request, since even a large one must run at some time.
        """
        waiting = self._queues[lane].tokens
        if waiting and waiting + tokens > self._limits.max_waiting_tokens:
            wait_ms = int(1000 * waiting / self.tokens_per_s)
            raise Overloaded(f"{waiting} tokens already wait for the model", retry_after_ms=wait_ms)

    async def compute(self, texts: Sequence[T], lane: Lane) -> Rows:
        """Return the model's rows for `texts`, shape (texts, width), in the same order.

        Cancellation: texts that still wait are dropped; other requests continue.

        Raises:
            Overloaded: too many tokens wait.
            OperationError: a text makes the model fail; `field` and `data["index"]` name it.
        """
        self.admit(lane, sum(len(text) for text in texts))
        request = _Request(texts, self._width)
        queue = self._queues[lane]
        queue.add(request)
        self._arrived.set()
        try:
            await request.done.wait()
        finally:
            queue.discard(request)
        if request.failure is not None:
            index, error = request.failure
            raise OperationError(
                f"text {index} cannot be {self._verb}: {type(error).__name__}: {error}",
                field=f"texts[{index}]",
                data={"index": str(index)},
            ) from error
        return request.rows

    async def run(self, model: Model[T], only: Lane | None = None) -> None:
        """Feed `model` until cancelled; if `only` is given, from that lane alone. Raises ModelLost."""
        limiter = trio.CapacityLimiter(1)
        self._runners += only is None
        while True:
            batch = self._take() if only is None else self._queues[only].take(self._share(only))
            if not batch:
                await self._next_arrival()
                continue
            gives_way = only is None and not self._prompt_in_a_row and model.device == "cpu"
            texts = [request.texts[index] for request, index in batch]
            tokens = sum(len(text) for text in texts)
            started = trio.current_time()
            outcomes: list[Rows | Exception] | None = None
            spent_s = 0.0
            # Shielded: an orderly shutdown waits for the batch, since a thread inside torch must not outlive the
            # interpreter. A thread stuck in a GPU kernel cannot be stopped; it is abandoned, and the process crashes.
            with trio.CancelScope(shield=True, deadline=started + self._limits.stuck_after_s):
                self._at_work += 1
                beside = self._at_work if model.has_own_threads else 0
                try:
                    outcomes, spent_s = await trio.to_thread.run_sync(
                        _compute, model, texts, beside, abandon_on_cancel=True, limiter=limiter
                    )
                finally:
                    self._at_work -= 1
            if outcomes is None:
                raise ModelLost(f"a batch of {len(batch)} texts took more than {self._limits.stuck_after_s:.0f} s")
            elapsed_s = trio.current_time() - started
            self._learn(tokens, elapsed_s)
            for (request, index), outcome in zip(batch, outcomes, strict=True):
                request.settle(index, outcome)
            if gives_way and elapsed_s > CONTENDED * spent_s:
                await self._rest(GIVES_WAY * (elapsed_s - CONTENDED * spent_s))

    async def _rest(self, seconds: float) -> None:
        """Leave the processor to others for this long, or until an interactive request arrives."""
        with trio.move_on_after(min(seconds, LONGEST_REST_S)):
            while not self._queues[Lane.PROMPT].requests:
                await self._next_arrival()

    async def _next_arrival(self) -> None:
        # One event for all runners: if it were replaced before it is set, only the last of them would wake.
        if self._arrived.is_set():
            self._arrived = trio.Event()
        await self._arrived.wait()

    def _take(self) -> list[tuple[_Request[T], int]]:
        prompt, bulk = self._queues[Lane.PROMPT], self._queues[Lane.BULK]
        if prompt.requests and not (bulk.requests and self._prompt_in_a_row >= MAX_PROMPT_BATCHES_IN_A_ROW):
            self._prompt_in_a_row += 1
            return prompt.take(self._share(Lane.PROMPT))
        self._prompt_in_a_row = 0
        return bulk.take(self._share(Lane.BULK))

    def _share(self, lane: Lane) -> int:
        """Return how many tokens one runner takes now. The end of a queue is shared, so that no runner is idle."""
        part = -(-self._queues[lane].tokens // max(1, self._runners))
        return min(self.budget, max(_LEAST_SHARE, part))

    @property
    def budget(self) -> int:
        """Return the size of one batch in tokens, based on the measured speed."""
        return max(64, min(self._limits.max_tokens, int(self.tokens_per_s * self._limits.target_s)))

    def _learn(self, tokens: int, elapsed_s: float) -> None:
        self.last_batch_at = trio.current_time()
        # A small batch is mostly overhead and says nothing about large ones.
        if tokens >= self.budget // 2 and elapsed_s > 0:
            # The first batch replaces the guess: a large model may be twenty times slower.
            share = 0.2 if self._has_learned else 1.0
            self.tokens_per_s += share * (tokens / elapsed_s - self.tokens_per_s)
            self._has_learned = True


def _compute(model: Model[T], texts: Sequence[T], beside: int) -> tuple[list[Rows | Exception], float]:
    """Call `compute_isolating`, and also return the processor time that it used.

    Args:
        beside: 0 if this thread computes, otherwise the number of batches that share the time of the process.
    """
    clock = time.process_time if beside else time.thread_time
    began = clock()
    return compute_isolating(model, texts), (clock() - began) / max(1, beside)


def compute_isolating(model: Model[T], texts: Sequence[T]) -> list[Rows | Exception]:
    """Return a row or an error for each text: a batch that fails is halved and retried.

    Blocks. Raises ModelLost if the model cannot recover from an error.
    """
    try:
        rows = model.compute(texts)
    except Exception as error:
        if not model.recover(error):
            raise ModelLost(f"the {model.device} device failed: {error}") from error
        if len(texts) == 1:
            return [error]
        half = len(texts) // 2
        return compute_isolating(model, texts[:half]) + compute_isolating(model, texts[half:])
    unsound = ArithmeticError("the model's answer contains a number that is not finite")
    return [row if np.isfinite(row).all() else unsound for row in rows]


async def watch_health(
    batcher: Batcher[T],
    canary: T,
    expected: Rows,
    same: Callable[[Rows, Rows], bool],
    *,
    every_s: float = 30.0,
) -> None:
    """Compute `canary` after each `every_s` without a batch. Raises ModelLost if its answer has changed.

    A process that answers pings may still have lost its model; only a forward pass shows it.

    Args:
        same: returns True if two rows are equal except for rounding.
    """
    while True:
        await trio.sleep_until(batcher.last_batch_at + every_s)
        if trio.current_time() < batcher.last_batch_at + every_s:
            continue
        rows: Rows | None = None
        with trio.move_on_after(HEALTHY_WITHIN_S):
            rows = await batcher.compute([canary], Lane.PROMPT)
        if rows is None:
            raise ModelLost(f"the model did not answer within {HEALTHY_WITHIN_S:.0f} s")
        if not same(rows[0], expected):
            raise ModelLost("the model's answer to the same text has changed since the start")
