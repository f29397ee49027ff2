"""Memories of several machines become the same, whatever is joined first and wherever it is interrupted."""

from __future__ import annotations

import contextlib
import datetime
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.errors import InvalidParams
from services.memory.joining import joined, plain
from services.memory.operations import CarriedMemory, CarriedSaid, Forget, MemoryExport, UpdateMemory
from services.shared import times
from tests.in_process import Bench
from tests.unit.memory.rig import Clock, listed, recalled, remembering, say
from tests.unit.sync.sides import Interrupted, join

TEXTS = ("the port is 80", "the port is 81", "The port is 80.", "tea", "no tea")

said = st.builds(CarriedSaid, at_ns=st.integers(1, 5), text=st.sampled_from(TEXTS), source=st.sampled_from(["", "a"]))


@st.composite
def versions(draw: st.DrawFn) -> CarriedMemory:
    """A memory; its text is one that was said."""
    times = draw(st.lists(said, min_size=1, max_size=4, unique=True))
    return CarriedMemory(
        id="0123456789ab", scope="user", text=draw(st.sampled_from(times)).text,
        tags=draw(st.sampled_from([[], ["x"], ["y"]])), corrected_ns=draw(st.integers(0, 3)), said=times,
        valid_from_ns=draw(st.sampled_from([None, 1000, 2000])), valid_until_ns=draw(st.sampled_from([None, 3000])),
        superseded_by=(by := draw(st.sampled_from([None, "ba9876543210", "ca9876543210"]))),
        superseded_ns=2000 if by else None, decided_ns=draw(st.integers(0, 2)),
    )  # fmt: skip


@given(versions(), versions())
def test_the_order_of_two_versions_does_not_matter(one: CarriedMemory, other: CarriedMemory) -> None:
    both, apart = joined(plain(one), plain(other))
    assert joined(plain(other), plain(one)) == (both, apart)
    # No text and no time is lost.
    kept = {*both.said, *(apart.said if apart is not None else ())}
    assert kept == {*one.said, *other.said}
    assert {one.text, other.text} <= {each.text for each in kept}


@given(versions(), versions())
def test_joining_again_changes_nothing(one: CarriedMemory, other: CarriedMemory) -> None:
    both, apart = joined(plain(one), plain(other))
    assert joined(both, both) == (both, None)
    if apart is None:
        assert joined(both, plain(other)) == (both, None)
        assert joined(plain(one), both) == (both, None)
    else:
        # The other machine still has its own version, and sends it again.
        for late in (one, other):
            again, parted = joined(both, plain(late))
            assert again == both
            assert parted is None or parted.id == apart.id


async def state(bench: Bench) -> dict[str, CarriedMemory]:
    found = (await bench.call(MemoryExport())).memories
    return {one.id: plain(one) for one in found if one.scope != "session"}


async def test_equal_statements_become_one_with_all_their_times(tmp_path: Path) -> None:
    async with remembering(tmp_path / "a") as here, remembering(tmp_path / "b") as there:
        one = await say(here, "Erik works at Bosch", source="here", tags=["work"])
        other = await say(there, "erik works at Bosch.", source="there")
        await say(here, "only of this session", session="s", scope="session")
        tally = await join("memory", here, there)
        assert (tally.equal, tally.conflicts, tally.kept_here) == (True, 0, 1)
        (memory,) = (await state(here)).values()
        assert (memory.id, {each.source for each in memory.said}) == (min(one.id, other.id), {"here", "there"})
        assert await state(there) == await state(here)
        # It is deleted on both under the one id.
        await here.call(Forget(id=memory.id))
        assert (await join("memory", there, here)).equal
        assert await listed(there) == []


async def test_what_was_said_after_it_was_forgotten_elsewhere_stays(tmp_path: Path) -> None:
    async with remembering(tmp_path / "a") as here, remembering(tmp_path / "b") as there:
        one = await say(here, "the sky is blue")
        other = await say(here, "the sea is green")
        await join("memory", here, there)
        for each in (one, other):
            await here.call(Forget(id=each.id))
        await say(there, "the sky is blue", source="again")
        tally = await join("memory", here, there)
        assert (tally.equal, tally.deleted_there, tally.came) == (True, 1, 1)
        assert [each.text for each in await listed(here)] == ["the sky is blue"]


async def test_the_later_correction_of_tags_and_expiry_counts(tmp_path: Path) -> None:
    async with remembering(tmp_path / "a") as here, remembering(tmp_path / "b") as there:
        one = await say(here, "the sky is blue", tags=["sky", "blue"])
        await join("memory", here, there)
        await here.call(UpdateMemory(id=one.id, tags=["sky"]))
        await there.call(UpdateMemory(id=one.id, tags=[], expires="30d"))
        assert (await join("memory", here, there)).equal
        (memory,) = (await state(here)).values()
        assert (memory.tags, memory.expires_ns is None) == ([], False)


async def test_a_second_sync_asks_each_side_once(tmp_path: Path) -> None:
    async with remembering(tmp_path / "a") as here, remembering(tmp_path / "b") as there:
        await say(here, "the sky is blue")
        await join("memory", here, there)
        tally = await join("memory", here, there)
        assert (tally.equal, tally.came + tally.went) == (True, 0)


@pytest.mark.sample(6)
@pytest.mark.parametrize("number", range(80))
async def test_random_changes_on_three_machines_end_alike(tmp_path: Path, number: int) -> None:
    """Interrupted at random, before or after any call; what is forgotten stays so, and all else is there."""
    chance, clock = random.Random(number), Ticking()
    ids = SimpleNamespace(token_hex=lambda _: f"{chance.getrandbits(48):012x}")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(clock.kept())
        stack.enter_context(mock.patch("services.memory.memory_db.secrets", ids))
        benches = [await stack.enter_async_context(remembering(tmp_path / str(each))) for each in range(3)]
        forgotten: set[str] = set()
        for _ in range(6):
            for bench in benches:
                for _ in range(chance.randint(0, 4)):
                    await change(bench, chance, forgotten)
                    clock.pass_days(chance.choice((0, 0, 0, 1, 20)))
            for _ in range(chance.randint(1, 4)):
                here, there = chance.sample(benches, 2)
                with contextlib.suppress(Interrupted):
                    await join("memory", here, there, chance)
        for one, other in ((0, 1), (1, 2), (0, 1), (1, 2)):
            assert (await join("memory", benches[one], benches[other])).equal
        first = await state(benches[0])
        assert [await state(bench) for bench in benches[1:]] == [first, first]
        assert not forgotten & {one.text for one in first.values()}
        # Each memory is replaced by one that exists, and at the end of the line one holds or has a stated end.
        for memory in first.values():
            line = [memory]
            while line[-1].superseded_by is not None:
                line.append(first[line[-1].superseded_by])
                assert line[-1] not in line[:-1]
        days = [str(clock.day + datetime.timedelta(days=chance.randint(-60, 60))) for _ in range(2)]
        for day in (None, *days):
            found = [
                {one.id for word in WORDS for one in await recalled(bench, word, as_of=day, limit=200)}
                for bench in benches
            ]
            assert found == [{one.id for one in first.values() if held(one, day, clock)}] * 3, day


class Ticking(Clock):
    """No two moments are the same."""

    ticks = 0

    @property
    def now_ns(self) -> int:
        self.ticks += 1
        return super().now_ns + self.ticks * 1_000_000


def held(one: CarriedMemory, day: str | None, clock: Clock) -> bool:
    at_ns = times.parse(day, end=True) if day else clock.now_ns
    first_ns = min(each.at_ns for each in one.said) if day else 0
    begin_ns = first_ns if one.valid_from_ns is None else one.valid_from_ns
    ends = one.valid_until_ns or 2**63, (one.superseded_ns or 2**63) - 1
    return begin_ns <= at_ns <= min(ends)


WORDS = ("fact", "shared", "corrected")


async def change(bench: Bench, chance: random.Random, forgotten: set[str]) -> None:
    known = await listed(bench)
    kind = chance.choice(["say", "say", "same", "same", "correct", "tag", "times", "replace", "forget"])
    more: dict[str, Any] = {}
    olds = [one.id for one in chance.sample(known, min(len(known), chance.choice((0, 0, 1, 2))))]
    if kind == "say" or not known:
        await say(bench, f"fact {chance.randrange(10**9)}", supersedes=olds)
    elif kind == "same":
        # It may have ended, by a time or by another, and is then a new memory.
        more = {"supersedes": olds, "valid_until": chance.choice((None, None, "3d"))}
        with contextlib.suppress(InvalidParams):
            await say(bench, f"shared {chance.randrange(5)}", source=str(chance.random()), **more)
    elif kind == "forget":
        # Each text is said once, so nobody says it again later.
        if single := [one for one in known if one.text.startswith("fact")]:
            one = chance.choice(single)
            await bench.call(Forget(id=one.id))
            forgotten.add(one.text)
    else:
        one = chance.choice(known)
        changes: dict[str, dict[str, Any]] = {
            "tag": {"tags": [str(chance.random())]},
            "correct": {"text": f"corrected {chance.randrange(10**9)}"},
            "times": {"valid_from": chance.choice((None, "none", "5d", "2026-02-01")), "valid_until": "10d"},
            "replace": {"supersedes": olds},
        }
        with contextlib.suppress(InvalidParams):  # Of circles, and ends before their begins.
            await bench.call(UpdateMemory(id=one.id, **changes[kind]))
