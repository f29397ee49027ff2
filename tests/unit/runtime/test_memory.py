"""Memory is given back by who has worked and rests, once, and by nobody else."""

from __future__ import annotations

import trio
import trio.testing

from proto.host.machine import GROWN_BYTES, LOOK_EVERY_S, RESTS_S, WORTH_S, give_back_at_rest, resident_bytes


async def given_after(worked: list[float], sizes: list[int] | None = None, freed: list[int] | None = None) -> list[int]:
    """The looks at which memory was given back, where so much had been worked by each and was resident at each."""
    given: list[int] = []
    look = -1
    ended = trio.Event()

    # In no thread: a clock that jumps when all tasks wait would jump past one.
    async def tell() -> None:
        given.append(look)

    async def free() -> None:
        if freed is not None:
            freed.append(look)

    async with trio.open_nursery() as nursery:

        async def count() -> None:
            nonlocal look
            for _ in worked:
                look += 1
                await trio.sleep(LOOK_EVERY_S)
            ended.set()

        # Half a step ahead of who looks.
        nursery.start_soon(count)
        await trio.sleep(LOOK_EVERY_S / 2)
        nursery.start_soon(
            give_back_at_rest, free, lambda: worked[look], tell, lambda: sizes[look] if sizes is not None else 0
        )
        await ended.wait()
        nursery.cancel_scope.cancel()
    return given


async def test_memory_goes_back_once_after_work(autojump_clock: trio.testing.MockClock) -> None:
    busy = [WORTH_S * n for n in range(1, 5)]
    at_rest = [busy[-1] + RESTS_S * n / 10 for n in range(1, 6)]
    (look,) = await given_after([*busy, *at_rest])
    assert look >= len(busy)
    again = [at_rest[-1] + WORTH_S, *[at_rest[-1] + WORTH_S + RESTS_S / 10] * 3]
    assert len(await given_after([*busy, *at_rest, *again])) == 2


async def test_a_process_that_did_little_or_is_busy_keeps_its_memory(autojump_clock: trio.testing.MockClock) -> None:
    assert await given_after([WORTH_S / 2] * 6) == []
    assert await given_after([WORTH_S * n for n in range(1, 12)]) == []


async def test_a_busy_process_returns_a_lot_of_memory_that_it_took_for_a_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    busy = [WORTH_S * n for n in range(1, 12)]
    large = 4 * GROWN_BYTES
    freed: list[int] = []
    # Large for one check only is a batch at work; still large at the next one is kept.
    sizes = [0, 0, large, 0, 0, large, large, *[0] * 4]
    assert await given_after(busy, sizes, freed) == [6]
    assert not freed


async def test_a_busy_process_that_needs_its_memory_tries_ever_more_rarely_and_then_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    busy = [WORTH_S * n for n in range(1, 102)]
    large = 4 * GROWN_BYTES
    # Large answers may still be in use the first time.
    assert await given_after(busy, [0, *[large] * 100]) == [2, 4, 8, 16]
    assert await given_after(busy[:11], [0, *[GROWN_BYTES] * 10]) == []


def test_resident_memory_grows_with_what_is_taken() -> None:
    before = resident_bytes()
    # So large that it is never taken from what was freed before.
    taken = b"x" * (64 << 20)
    assert resident_bytes() - before > 48 << 20
    del taken
