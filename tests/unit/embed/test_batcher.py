"""Queries first, nobody starves, only the text at fault fails, and a lost model ends the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import trio
import trio.testing

from proto.errors import OperationError, Overloaded
from proto.ops.embed import TextKind
from services.embed.batcher import MAX_QUERY_BATCHES_IN_A_ROW, Batcher, BatchLimits, ModelLost, watch_health
from services.embed.model import Precision, Vectors
from services.embed.tokens import Ids

POISON, FATAL, INFINITE = 13, 666, 99


class ScriptedEncoder:
    """Unit vectors that carry their text's first id; each batch waits for `release` where one is set."""

    dimensions = 4
    device = "cpu"
    precision = Precision.FP32

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.release: Callable[[], object] = lambda: None
        self.recovered = 0

    def encode(self, sequences: Sequence[Ids]) -> Vectors:
        firsts = [int(ids[0]) for ids in sequences]
        self.batches.append(firsts)
        self.release()
        if FATAL in firsts or POISON in firsts:
            raise RuntimeError("cannot")
        vectors = np.zeros((len(firsts), 4), dtype=np.float32)
        vectors[:, 0] = [np.inf if first == INFINITE else first for first in firsts]
        return vectors

    def recover(self, error: Exception) -> bool:
        self.recovered += 1
        return FATAL not in self.batches[-1]


def text(first: int, tokens: int = 4) -> Ids:
    return np.full(tokens, first, dtype=np.int32)


LIMITS = BatchLimits(first_tokens=64, max_tokens=64, max_waiting_tokens=100_000)


async def test_vectors_come_in_the_order_of_their_texts() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run, encoder)
        vectors = await batcher.embed([text(n, 1 + 37 * n % 20) for n in range(1, 60) if n != POISON], TextKind.PASSAGE)
        nursery.cancel_scope.cancel()
    assert vectors[:, 0].tolist() == [n for n in range(1, 60) if n != POISON]
    assert len(encoder.batches) > 1


async def test_a_query_waits_for_one_batch_and_not_for_all_passages() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    gate = threading.Semaphore(0)
    encoder.release = gate.acquire
    async with trio.open_nursery() as callers:
        callers.start_soon(batcher.embed, [text(1, 32) for _ in range(20)], TextKind.PASSAGE)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, encoder)
            while not encoder.batches:
                await trio.lowlevel.checkpoint()
            callers.start_soon(batcher.embed, [text(2)], TextKind.QUERY)
            await trio.testing.wait_all_tasks_blocked()
            gate.release(100)
            while len(encoder.batches) < 11:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    assert encoder.batches[1] == [2]


async def test_queries_without_end_do_not_starve_passages() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.embed, [text(1)], TextKind.PASSAGE)
        for _ in range(3 * MAX_QUERY_BATCHES_IN_A_ROW):
            nursery.start_soon(batcher.embed, [text(2, 64)], TextKind.QUERY)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, encoder)
            while len(encoder.batches) < 3 * MAX_QUERY_BATCHES_IN_A_ROW + 1:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    assert encoder.batches.index([1]) == MAX_QUERY_BATCHES_IN_A_ROW


async def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.embed, [text(1, 32) for _ in range(20)], TextKind.PASSAGE)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(batcher.embed, [text(2, 32)], TextKind.PASSAGE)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, encoder)
            while len(encoder.batches) < 11:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    assert 2 in encoder.batches[0]


@pytest.mark.parametrize("bad", [POISON, INFINITE])
async def test_only_the_text_at_fault_fails(bad: int) -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    answered: list[float] = []
    async with trio.open_nursery() as nursery:

        async def innocent(first: int) -> None:
            answered.extend((await batcher.embed([text(first)], TextKind.PASSAGE))[:, 0].tolist())

        async def guilty() -> None:
            with pytest.raises(OperationError) as caught:
                await batcher.embed([text(20), text(bad), text(21)], TextKind.PASSAGE)
            assert caught.value.failure.field == "texts[1]"
            assert caught.value.failure.data == {"index": "1"}

        async with trio.open_nursery() as callers:
            for first in (1, 2, 3):
                callers.start_soon(innocent, first)
            callers.start_soon(guilty)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(batcher.run, encoder)
        nursery.cancel_scope.cancel()
    assert sorted(answered) == [1, 2, 3]


async def test_a_full_queue_refuses_with_the_time_to_wait_and_keeps_what_it_has() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, BatchLimits(max_waiting_tokens=1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.embed, [text(1, 50) for _ in range(30)], TextKind.PASSAGE)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded) as caught:
            await batcher.embed([text(2)], TextKind.PASSAGE)
        assert (caught.value.failure.retry_after_ms or 0) > 0
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, encoder)
            await batcher.embed([text(3)], TextKind.QUERY)
            while batcher.waiting_tokens or sum(len(batch) for batch in encoder.batches) < 31:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()


async def test_what_nobody_waits_for_any_more_is_not_computed() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    with trio.move_on_after(0):
        await batcher.embed([text(1)], TextKind.PASSAGE)
    assert batcher.waiting_tokens == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run, encoder)
        await batcher.embed([text(2)], TextKind.PASSAGE)
        nursery.cancel_scope.cancel()
    assert encoder.batches == [[2]]


async def test_a_lost_device_ends_the_process() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    with pytest.RaisesGroup(ModelLost):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batcher.embed, [text(1), text(FATAL)], TextKind.PASSAGE)
            nursery.start_soon(batcher.run, encoder)


async def test_a_batch_that_never_ends_ends_the_process() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, BatchLimits(stuck_after_s=0.05))
    forever = threading.Event()
    encoder.release = forever.wait
    with pytest.RaisesGroup(ModelLost, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batcher.embed, [text(1)], TextKind.PASSAGE)
            nursery.start_soon(batcher.run, encoder)
    forever.set()


async def test_a_model_whose_answer_changed_ends_the_process() -> None:
    encoder, batcher = ScriptedEncoder(), Batcher(4, LIMITS)
    expected = np.array([0, 1, 0, 0], dtype=np.float32)
    with pytest.RaisesGroup(ModelLost, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batcher.run, encoder)
            await watch_health(batcher, text(1), expected, every_s=0.001)


async def test_two_encoders_share_one_queue() -> None:
    first, second, batcher = ScriptedEncoder(), ScriptedEncoder(), Batcher(4, LIMITS)
    both = threading.Barrier(2, timeout=10)
    waited: set[str] = set()

    def meet(name: str) -> None:
        # The first batch of each waits until the other has one too.
        if name not in waited:
            waited.add(name)
            both.wait()

    first.release, second.release = lambda: meet("first"), lambda: meet("second")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run, first)
        nursery.start_soon(batcher.run, second)
        vectors = await batcher.embed([text(n, 32) for n in (1, 2, 3, 4, 5, 6)], TextKind.PASSAGE)
        nursery.cancel_scope.cancel()
    assert vectors[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert first.batches
    assert second.batches
