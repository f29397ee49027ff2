"""Turns waiting texts into batches: queries first, fair among callers, bounded in time and in number.

Batches are sized by tokens so that each takes about `target_s`: a query that arrives while passages are being
embedded waits for one batch, never for all of them. A failure in a batch is narrowed down by halving until only the
text at fault fails. When the model itself is lost (a GPU error other than memory, a batch that never ends) `run`
raises, and with it the process ends: whoever waited is answered by the next generation.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import msgspec
import numpy as np
import trio

from proto.errors import OperationError, Overloaded
from proto.ops.embed import TextKind
from services.embed.model import Encoder, Vectors
from services.embed.tokens import Ids

MAX_QUERY_BATCHES_IN_A_ROW = 8
"""After so many, one batch of passages goes: queries without end must not starve ingestion."""


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large batches and queues may become."""

    target_s: float = 0.05
    first_tokens: int = 1024
    max_tokens: int = 65536
    max_waiting_tokens: int = 1_000_000
    stuck_after_s: float = 60.0


class ModelLost(Exception):
    """The model in this process answers nothing sound any more; only a new process helps."""


class _Request:
    """The texts of one caller, longest first, and their vectors as they come."""

    def __init__(self, sequences: Sequence[Ids], dimensions: int) -> None:
        self.sequences = sequences
        self.vectors: Vectors = np.zeros((len(sequences), dimensions), dtype=np.float32)
        # Neighbours of like length share a batch, which is what makes attention over it cheap.
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        self.todo = collections.deque(order)
        self.missing = len(sequences)
        self.failure: tuple[int, Exception] | None = None
        self.done = trio.Event()

    def settle(self, index: int, outcome: Vectors | Exception) -> None:
        self.missing -= 1
        if isinstance(outcome, Exception):
            if self.failure is None or index < self.failure[0]:
                self.failure = (index, outcome)
        else:
            self.vectors[index] = outcome
        if not self.missing:
            self.done.set()


class _Lane:
    """Requests of one kind, served a text each in turn, so that a small one never waits for a large one."""

    def __init__(self) -> None:
        self.requests: collections.deque[_Request] = collections.deque()
        self.tokens = 0

    def add(self, request: _Request) -> None:
        self.requests.append(request)
        self.tokens += sum(len(ids) for ids in request.sequences)

    def discard(self, request: _Request) -> None:
        """Forget what of `request` still waits."""
        if request in self.requests:
            self.requests.remove(request)
            self.tokens -= sum(len(request.sequences[index]) for index in request.todo)
            request.todo.clear()

    def take(self, budget: int) -> list[tuple[_Request, int]]:
        """At least one text, then as many as fit into `budget` tokens."""
        taken: list[tuple[_Request, int]] = []
        spent = 0
        while self.requests:
            request = self.requests[0]
            size = len(request.sequences[request.todo[0]])
            if taken and spent + size > budget:
                break
            taken.append((request, request.todo.popleft()))
            spent += size
            self.requests.popleft()
            if request.todo:
                self.requests.append(request)
        self.tokens -= spent
        return taken


class Batcher:
    """The queue in front of one or more encoders; each encoder has a task in `run`."""

    def __init__(self, dimensions: int, limits: BatchLimits | None = None) -> None:
        self._dimensions = dimensions
        self._limits = limits or BatchLimits()
        self._lanes = {TextKind.QUERY: _Lane(), TextKind.PASSAGE: _Lane()}
        self._arrived = trio.Event()
        self._queries_in_a_row = 0
        self._tokens_per_s = self._limits.first_tokens / self._limits.target_s
        self.last_batch_at = trio.current_time()

    @property
    def waiting_tokens(self) -> int:
        return sum(lane.tokens for lane in self._lanes.values())

    def admit(self, kind: TextKind, tokens: int) -> None:
        """Raises Overloaded, with the time the queue will take, where `tokens` more would wait too long.

        An empty lane admits any request: one that is large has to run at some time.
        """
        waiting = self._lanes[kind].tokens
        if waiting and waiting + tokens > self._limits.max_waiting_tokens:
            wait_ms = int(1000 * waiting / self._tokens_per_s)
            raise Overloaded(f"{waiting} tokens wait for the embedding model already", retry_after_ms=wait_ms)

    async def embed(self, sequences: Sequence[Ids], kind: TextKind) -> Vectors:
        """Unit vectors of `sequences`, shape (sequences, dimensions).

        Cancellation: what has not been computed yet is not; what others wait for goes on.

        Raises:
            Overloaded: too many tokens wait.
            OperationError: a text makes the model fail; `field` and `data["index"]` name it.
        """
        self.admit(kind, sum(len(ids) for ids in sequences))
        request = _Request(sequences, self._dimensions)
        lane = self._lanes[kind]
        lane.add(request)
        self._arrived.set()
        try:
            await request.done.wait()
        finally:
            lane.discard(request)
        if request.failure is not None:
            index, error = request.failure
            raise OperationError(
                f"text {index} cannot be embedded: {type(error).__name__}: {error}",
                field=f"texts[{index}]",
                data={"index": str(index)},
            ) from error
        return request.vectors

    async def run(self, encoder: Encoder) -> None:
        """Feed `encoder` until cancelled.  Raises ModelLost."""
        limiter = trio.CapacityLimiter(1)
        while True:
            batch = self._take()
            if not batch:
                self._arrived = trio.Event()
                await self._arrived.wait()
                continue
            sequences = [request.sequences[index] for request, index in batch]
            started = trio.current_time()
            outcomes: list[Vectors | Exception] | None = None
            # Shielded: an orderly end waits for the batch, since a thread inside torch must not outlive the
            # interpreter. One inside a kernel that hangs cannot be stopped; it is left behind, and the process ends
            # as a crash.
            with trio.CancelScope(shield=True, deadline=started + self._limits.stuck_after_s):
                outcomes = await trio.to_thread.run_sync(
                    encode_isolating, encoder, sequences, abandon_on_cancel=True, limiter=limiter
                )
            if outcomes is None:
                raise ModelLost(f"a batch of {len(batch)} texts took more than {self._limits.stuck_after_s:.0f} s")
            self._learn(sum(len(ids) for ids in sequences), trio.current_time() - started)
            for (request, index), outcome in zip(batch, outcomes, strict=True):
                request.settle(index, outcome)

    def _take(self) -> list[tuple[_Request, int]]:
        queries, passages = self._lanes[TextKind.QUERY], self._lanes[TextKind.PASSAGE]
        if queries.requests and not (passages.requests and self._queries_in_a_row >= MAX_QUERY_BATCHES_IN_A_ROW):
            self._queries_in_a_row += 1
            return queries.take(self.budget)
        self._queries_in_a_row = 0
        return passages.take(self.budget)

    @property
    def budget(self) -> int:
        """Tokens that one batch may hold, by the speed seen so far."""
        return max(64, min(self._limits.max_tokens, int(self._tokens_per_s * self._limits.target_s)))

    def _learn(self, tokens: int, elapsed_s: float) -> None:
        self.last_batch_at = trio.current_time()
        # A small batch is mostly overhead and says nothing of large ones.
        if tokens >= self.budget // 2 and elapsed_s > 0:
            self._tokens_per_s += 0.2 * (tokens / elapsed_s - self._tokens_per_s)


def encode_isolating(encoder: Encoder, sequences: Sequence[Ids]) -> list[Vectors | Exception]:
    """A vector or the error for each sequence: a batch that fails is halved and tried again.

    Blocks.  Raises ModelLost where the encoder cannot recover from an error.
    """
    try:
        vectors = encoder.encode(sequences)
    except Exception as error:
        if not encoder.recover(error):
            raise ModelLost(f"the {encoder.device} device failed: {error}") from error
        if len(sequences) == 1:
            return [error]
        half = len(sequences) // 2
        return encode_isolating(encoder, sequences[:half]) + encode_isolating(encoder, sequences[half:])
    sound: list[bool] = np.atleast_1d(np.isfinite(vectors).all(axis=1)).tolist()
    return [
        vectors[row] if sound[row] else ArithmeticError("the model's answer is not a finite vector")
        for row in range(len(sequences))
    ]


async def watch_health(
    batcher: Batcher, canary: Ids, expected: Vectors, *, every_s: float = 30.0, within_s: float = 60.0
) -> None:
    """Embed `canary` whenever nothing else was embedded for `every_s`; raises ModelLost where its vector is not what
    it was.

    A process that answers pings may still have lost its model; only a forward pass shows it.
    """
    while True:
        await trio.sleep_until(batcher.last_batch_at + every_s)
        if trio.current_time() < batcher.last_batch_at + every_s:
            continue
        vectors: Vectors | None = None
        with trio.move_on_after(within_s):
            vectors = await batcher.embed([canary], TextKind.QUERY)
        if vectors is None:
            raise ModelLost(f"the model did not answer within {within_s:.0f} s")
        cosine = float(vectors[0] @ expected)
        if not cosine > 0.99:
            raise ModelLost(f"the model's answer changed: cosine {cosine:.3f} to its first")
