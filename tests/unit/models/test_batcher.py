"""Queries first, nobody starves, only the text at fault fails, and a lost model ends the process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import trio
import trio.testing

from proto.errors import OperationError, Overloaded
from services.shared.models import batcher as batching
from services.shared.models.batcher import (
    MAX_PROMPT_BATCHES_IN_A_ROW,
    Batcher,
    BatchLimits,
    Lane,
    ModelLost,
    Rows,
    watch_health,
)
from services.shared.models.checkpoint import Ids

POISON, FATAL, INFINITE = 13, 666, 99


def queue(limits: BatchLimits) -> Batcher[Ids]:
    return Batcher(4, limits)


class ScriptedModel:
    """Unit vectors that carry their text's first id; each batch waits for `release` where one is set."""

    width = 4
    device = "cpu"
    has_own_threads = False

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.release: Callable[[], object] = lambda: None
        self.recovered = 0

    def compute(self, sequences: Sequence[Ids]) -> Rows:
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
    model, batcher = ScriptedModel(), queue(LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run, model)
        vectors = await batcher.compute([text(n, 1 + 37 * n % 20) for n in range(1, 60) if n != POISON], Lane.BULK)
        nursery.cancel_scope.cancel()
    assert vectors[:, 0].tolist() == [n for n in range(1, 60) if n != POISON]
    assert len(model.batches) > 1


async def test_a_query_waits_for_one_batch_and_not_for_all_passages() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    gate = threading.Semaphore(0)
    model.release = gate.acquire
    async with trio.open_nursery() as callers:
        callers.start_soon(batcher.compute, [text(1, 32) for _ in range(20)], Lane.BULK)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, model)
            while not model.batches:
                await trio.lowlevel.checkpoint()
            callers.start_soon(batcher.compute, [text(2)], Lane.PROMPT)
            await trio.testing.wait_all_tasks_blocked()
            gate.release(100)
            while len(model.batches) < 11:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    assert model.batches[1] == [2]


async def test_a_query_with_a_runner_of_its_own_waits_for_no_passage() -> None:
    model, quick, batcher = ScriptedModel(), ScriptedModel(), queue(LIMITS)
    gate = threading.Semaphore(0)
    model.release = gate.acquire
    async with trio.open_nursery() as callers:
        callers.start_soon(batcher.compute, [text(1, 32) for _ in range(4)], Lane.BULK)
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, model)
            while not model.batches:
                await trio.lowlevel.checkpoint()
            running.start_soon(batcher.run, quick, Lane.PROMPT)
            with trio.fail_after(10):
                assert (await batcher.compute([text(2)], Lane.PROMPT))[0, 0] == 2
            # It is still at its first batch, and the other takes none of its passages.
            assert (model.batches, quick.batches) == ([[1, 1]], [[2]])
            gate.release(100)
            while len(model.batches) < 2:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()


async def test_passages_give_way_where_the_processor_is_wanted_and_queries_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "GIVES_WAY", 1e6)
    monkeypatch.setattr(batching, "LONGEST_REST_S", 1e6)
    model, batcher = ScriptedModel(), queue(LIMITS)
    # Others have the processor meanwhile.
    model.release = partial(time.sleep, 0.02)
    async with trio.open_nursery() as callers:
        callers.start_soon(batcher.compute, [text(1, 64), text(3, 64)], Lane.BULK)
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, model)
            while not model.batches:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert model.batches == [[1]]
            assert (await batcher.compute([text(2)], Lane.PROMPT))[0, 0] == 2
            while len(model.batches) < 3:
                await trio.lowlevel.checkpoint()
            assert model.batches == [[1], [2], [3]]
            running.cancel_scope.cancel()


async def test_work_in_a_librarys_own_threads_is_not_taken_for_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "GIVES_WAY", 1e6)
    monkeypatch.setattr(batching, "LONGEST_REST_S", 1e6)
    model, batcher = ScriptedModel(), queue(LIMITS)
    model.has_own_threads = True

    def elsewhere() -> None:
        thread = threading.Thread(target=burn)
        thread.start()
        thread.join()

    def burn() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            sum(range(1000))

    model.release = elsewhere
    # On a machine that others use meanwhile, it gives way as it should.
    monkeypatch.setattr(batching, "CONTENDED", 50)
    async with trio.open_nursery() as running:
        running.start_soon(batcher.run, model)
        with trio.fail_after(30):
            await batcher.compute([text(1, 64), text(3, 64)], Lane.BULK)
        running.cancel_scope.cancel()
    assert model.batches == [[1], [3]]


async def test_queries_without_end_do_not_starve_passages() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.compute, [text(1)], Lane.BULK)
        for _ in range(3 * MAX_PROMPT_BATCHES_IN_A_ROW):
            nursery.start_soon(batcher.compute, [text(2, 64)], Lane.PROMPT)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, model)
            while len(model.batches) < 3 * MAX_PROMPT_BATCHES_IN_A_ROW + 1:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    assert model.batches.index([1]) == MAX_PROMPT_BATCHES_IN_A_ROW


async def test_a_small_request_does_not_wait_for_a_large_one() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.compute, [text(1, 32) for _ in range(20)], Lane.BULK)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(batcher.compute, [text(2, 32)], Lane.BULK)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, model)
            while len(model.batches) < 11:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    assert 2 in model.batches[0]


async def test_equal_requests_finish_in_order() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    async with trio.open_nursery() as nursery:
        for caller in (1, 2, 3):
            nursery.start_soon(batcher.compute, [text(caller, 32) for _ in range(8)], Lane.BULK)
            await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, model)
            while sum(map(len, model.batches)) < 24:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    assert list(itertools.chain(*model.batches)) == [1] * 8 + [2] * 8 + [3] * 8


async def test_two_runners_share_what_is_less_than_a_batch_for_each() -> None:
    model, batcher = ScriptedModel(), queue(BatchLimits(first_tokens=4096, target_s=1))
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(batcher.run, model)
        await trio.testing.wait_all_tasks_blocked()
        await batcher.compute([text(1, 100) for _ in range(20)], Lane.BULK)
        nursery.cancel_scope.cancel()
    # One takes half of the 2000 tokens, and of the other half each a part again.
    assert sorted(len(batch) for batch in model.batches) == [5, 5, 10]


async def test_small_requests_without_end_hold_a_large_one_up_for_no_more_than_its_own_size() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.compute, [text(1, 32) for _ in range(20)], Lane.BULK)
        await trio.testing.wait_all_tasks_blocked()

        async def ask_for_ever() -> None:
            while True:
                await batcher.compute([text(2, 32)], Lane.BULK)

        async with trio.open_nursery() as running:
            for _ in range(4):
                running.start_soon(ask_for_ever)
            await trio.testing.wait_all_tasks_blocked()
            running.start_soon(batcher.run, model)
            while list(itertools.chain(*model.batches)).count(1) < 20:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()
    served = list(itertools.chain(*model.batches))
    last = len(served) - 1 - served[::-1].index(1)
    assert served[: last + 1].count(2) <= 20 + 4
    assert 2 in served[:4]


@pytest.mark.parametrize("bad", [POISON, INFINITE])
async def test_only_the_text_at_fault_fails(bad: int) -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    answered: list[float] = []
    async with trio.open_nursery() as nursery:

        async def innocent(first: int) -> None:
            answered.extend((await batcher.compute([text(first)], Lane.BULK))[:, 0].tolist())

        async def guilty() -> None:
            with pytest.raises(OperationError) as caught:
                await batcher.compute([text(20), text(bad), text(21)], Lane.BULK)
            assert caught.value.failure.field == "texts[1]"
            assert caught.value.failure.data == {"index": "1"}

        async with trio.open_nursery() as callers:
            for first in (1, 2, 3):
                callers.start_soon(innocent, first)
            callers.start_soon(guilty)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(batcher.run, model)
        nursery.cancel_scope.cancel()
    assert sorted(answered) == [1, 2, 3]


async def test_a_full_queue_refuses_with_the_time_to_wait_and_keeps_what_it_has() -> None:
    model, batcher = ScriptedModel(), queue(BatchLimits(max_waiting_tokens=1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.compute, [text(1, 50) for _ in range(30)], Lane.BULK)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded) as caught:
            await batcher.compute([text(2)], Lane.BULK)
        assert (caught.value.failure.retry_after_ms or 0) > 0
        async with trio.open_nursery() as running:
            running.start_soon(batcher.run, model)
            await batcher.compute([text(3)], Lane.PROMPT)
            while batcher.waiting_tokens or sum(len(batch) for batch in model.batches) < 31:
                await trio.lowlevel.checkpoint()
            running.cancel_scope.cancel()


async def test_a_cancelled_request_is_not_computed() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    with trio.move_on_after(0):
        await batcher.compute([text(1)], Lane.BULK)
    assert batcher.waiting_tokens == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run, model)
        await batcher.compute([text(2)], Lane.BULK)
        nursery.cancel_scope.cancel()
    assert model.batches == [[2]]


async def test_a_lost_device_ends_the_process() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    with pytest.RaisesGroup(ModelLost):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batcher.compute, [text(1), text(FATAL)], Lane.BULK)
            nursery.start_soon(batcher.run, model)


async def test_a_batch_that_never_ends_ends_the_process() -> None:
    model, batcher = ScriptedModel(), queue(BatchLimits(stuck_after_s=0.05))
    forever = threading.Event()
    model.release = forever.wait
    with pytest.RaisesGroup(ModelLost, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batcher.compute, [text(1)], Lane.BULK)
            nursery.start_soon(batcher.run, model)
    forever.set()


async def test_a_model_whose_answer_changed_ends_the_process() -> None:
    model, batcher = ScriptedModel(), queue(LIMITS)
    expected = np.array([0, 1, 0, 0], dtype=np.float32)
    with pytest.RaisesGroup(ModelLost, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(batcher.run, model)
            await watch_health(batcher, text(1), expected, np.array_equal, every_s=0.001)


async def test_two_encoders_share_one_queue() -> None:
    first, second, batcher = ScriptedModel(), ScriptedModel(), queue(LIMITS)
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
        # Both encoders are idle, and both must be woken.
        await trio.testing.wait_all_tasks_blocked()
        vectors = await batcher.compute([text(n, 32) for n in (1, 2, 3, 4, 5, 6)], Lane.BULK)
        nursery.cancel_scope.cancel()
    assert vectors[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert first.batches
    assert second.batches


async def test_the_first_batch_replaces_the_guess_of_the_speed() -> None:
    batcher: Batcher[str] = Batcher(1, BatchLimits(target_s=0.08, first_tokens=16384))
    # A large model: without this, queries would wait a second and more for each of the first batches.
    batcher._learn(16384, 1.6)
    assert batcher.tokens_per_s == 10240
    assert batcher.budget == 819
    batcher._learn(819, 0.04)
    assert 10240 < batcher.tokens_per_s < 20475
