"""Memory is given back by who has worked and rests, once, and by nobody else."""

from __future__ import annotations

import trio
import trio.testing

from linckia.proto.machine import LOOK_EVERY_S, RESTS_S, WORTH_S, give_back_at_rest


async def given_after(worked: list[float]) -> list[int]:
    """The looks at which memory was given back, where so much had been worked by each."""
    given: list[int] = []
    look = -1
    ended = trio.Event()

    # In no thread: a clock that jumps when all tasks wait would jump past one.
    async def tell() -> None:
        given.append(look)

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
        nursery.start_soon(give_back_at_rest, tell, lambda: worked[look], trio.lowlevel.checkpoint)
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


async def test_who_did_little_or_works_on_keeps_it(autojump_clock: trio.testing.MockClock) -> None:
    assert await given_after([WORTH_S / 2] * 6) == []
    assert await given_after([WORTH_S * n for n in range(1, 12)]) == []
