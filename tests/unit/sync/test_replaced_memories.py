"""Two machines agree which memories hold, whichever of them said what replaces what."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from proto.errors import InvalidParams
from services.memory.operations import CarriedMemory, CarriedSaid, Forget, ForgottenMemory, JoinMemories, UpdateMemory
from tests.in_process import Bench
from tests.unit.memory.rig import Clock, recalled, remembering, say, texts
from tests.unit.sync.sides import join
from tests.unit.sync.test_memories import state

BERLIN, HAMBURG, MUNICH = "Ann lives in Berlin", "Ann lives in Hamburg", "Ann lives in Munich"
LESSER, GREATER = "a" * 12, "b" * 12


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with clock.kept():
        yield clock


@contextlib.asynccontextmanager
async def machines(folder: Path, count: int = 2) -> AsyncIterator[list[Bench]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(remembering(folder / str(each))) for each in range(count)]


async def said_as(id_: str, bench: Bench, text: str, **more: Any) -> str:
    """Say something new that gets this id."""
    with mock.patch("services.memory.memory_db.secrets", SimpleNamespace(token_hex=lambda _: id_)):
        return (await say(bench, text, **more)).id


async def joined(here: Bench, there: Bench) -> dict[str, CarriedMemory]:
    """Join two machines, and return what both have."""
    assert (await join("memory", here, there)).equal
    found = await state(here)
    assert await state(there) == found
    return found


async def test_what_was_replaced_on_one_machine_has_ended_on_both(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        berlin = await say(here, BERLIN, tags=["home"])
        await joined(here, there)
        clock.pass_days(1)
        hamburg = await say(here, HAMBURG, supersedes=[berlin.id], valid_from="2026-02-01")
        clock.pass_days(1)
        # Another correction of the old one is no decision about what replaces it.
        await there.call(UpdateMemory(id=berlin.id, tags=["city"], valid_from="2020-01-01"))
        found = await joined(here, there)
        assert (found[berlin.id].tags, found[berlin.id].superseded_by) == (["city"], hamburg.id)
        for bench in (here, there):
            assert await texts(bench, "Ann lives") == [HAMBURG]
            assert await texts(bench, "Ann lives", as_of="2026-01-31") == [BERLIN]
            (shown,) = await recalled(bench, "Ann lives")
            assert [(one.text, one.until) for one in shown.replaced] == [(BERLIN, "2026-01-31T23:59:59Z")]


async def test_the_later_decision_about_what_replaces_it_counts(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        berlin = await say(here, BERLIN)
        hamburg = await say(here, HAMBURG, supersedes=[berlin.id])
        await joined(here, there)
        clock.pass_days(1)
        munich = await say(here, MUNICH)
        await here.call(UpdateMemory(id=hamburg.id, supersedes=[]))
        await here.call(UpdateMemory(id=munich.id, supersedes=[berlin.id]))
        clock.pass_days(1)
        await there.call(UpdateMemory(id=hamburg.id, supersedes=[]))
        assert (await joined(here, there))[berlin.id].superseded_by is None


@pytest.mark.parametrize("later", ["here", "there"])
async def test_of_two_memories_that_replace_each_other_the_later_decision_counts(
    tmp_path: Path, clock: Clock, later: str
) -> None:
    async with machines(tmp_path) as (here, there):
        one, other = await say(here, BERLIN), await say(here, HAMBURG)
        await joined(here, there)
        steps = [(here, one.id, other.id), (there, other.id, one.id)]
        for bench, new, old in steps if later == "there" else steps[::-1]:
            clock.pass_days(1)
            await bench.call(UpdateMemory(id=new, supersedes=[old]))
        await joined(here, there)
        for bench in (here, there):
            assert await texts(bench, "Ann lives") == [HAMBURG if later == "there" else BERLIN]


async def test_what_a_memory_replaced_that_was_forgotten_offline_holds_again(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        berlin = await say(here, BERLIN)
        hamburg = await say(here, HAMBURG, supersedes=[berlin.id])
        await joined(here, there)
        await there.call(Forget(id=hamburg.id))
        assert (await joined(here, there))[berlin.id].superseded_by is None
        assert await texts(here, "Ann lives") == [BERLIN]


async def test_a_forgotten_memory_leaves_what_it_replaced_to_its_successor(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        berlin = await say(here, BERLIN)
        hamburg = await say(here, HAMBURG, supersedes=[berlin.id])
        await joined(here, there)
        clock.pass_days(1)
        munich = await say(here, MUNICH, supersedes=[hamburg.id])
        await there.call(Forget(id=hamburg.id))
        assert await texts(there, "Ann lives") == [BERLIN]
        found = await joined(here, there)
        assert (set(found), found[berlin.id].superseded_by) == ({berlin.id, munich.id}, munich.id)
        assert await texts(there, "Ann lives") == [MUNICH]


async def test_a_memory_that_is_said_after_it_was_forgotten_replaces_again(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        berlin = await say(here, BERLIN)
        hamburg = await say(here, HAMBURG, supersedes=[berlin.id])
        await joined(here, there)
        await there.call(Forget(id=hamburg.id))
        clock.pass_days(1)
        await say(here, HAMBURG)
        assert (await joined(here, there))[berlin.id].superseded_by == hamburg.id


async def test_a_memory_is_not_replaced_by_what_it_was_merged_with(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path, 1) as (here,):
        said = CarriedSaid(at_ns=clock.now_ns, text=BERLIN)
        plain = CarriedMemory(id=GREATER, scope="user", text=BERLIN, said=[said])
        end_ns = clock.now_ns + 10**15
        other = replace(plain, id=LESSER, superseded_by=GREATER, superseded_ns=end_ns, decided_ns=clock.now_ns)
        await here.call(JoinMemories(memories=[other, plain]))
        assert {id_: one.superseded_by for id_, one in (await state(here)).items()} == {LESSER: None}


async def test_a_memory_may_name_a_replacement_that_arrives_later_or_is_forgotten(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        berlin = await say(here, BERLIN)
        hamburg = await say(here, HAMBURG, supersedes=[berlin.id])
        carried = await state(here)
        await there.call(JoinMemories(memories=[carried[berlin.id]]))
        assert await texts(there, "Ann lives") == []
        gone = ForgottenMemory(id=hamburg.id, at_ns=clock.now_ns)
        await there.call(JoinMemories(forgotten=[gone]))
        assert await texts(there, "Ann lives") == [BERLIN]
        # It comes again, from a machine that does not know yet.
        await there.call(JoinMemories(memories=list(carried.values())))
        assert await texts(there, "Ann lives") == [BERLIN]


async def test_words_said_again_after_their_end_join_those_that_hold(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        first = await say(here, BERLIN)
        clock.pass_days(10)
        hamburg = await say(here, HAMBURG, supersedes=[first.id])
        clock.pass_days(10)
        again = await say(here, BERLIN, supersedes=[hamburg.id])
        own = await say(there, BERLIN, source="elsewhere")
        found = await joined(here, there)
        assert found.keys() == {first.id, hamburg.id, min(again.id, own.id)}
        assert len(found[min(again.id, own.id)].said) == 2
        for bench in (here, there):
            for moment, held in ((None, BERLIN), ("2026-03-05", BERLIN), ("2026-03-15", HAMBURG)):
                assert await texts(bench, "Ann lives", as_of=moment) == [held]
        assert (await say(there, BERLIN)).id == min(again.id, own.id)


async def test_what_holds_on_one_machine_does_not_join_what_has_ended_on_the_other(
    tmp_path: Path, clock: Clock
) -> None:
    async with machines(tmp_path) as (here, there):
        ended = await say(here, BERLIN, valid_until="2026-03-02")
        clock.pass_days(10)
        own = await say(there, BERLIN)
        assert (await joined(here, there)).keys() == {ended.id, own.id}


async def test_equal_words_with_equal_stated_times_become_one(tmp_path: Path, clock: Clock) -> None:
    async with machines(tmp_path) as (here, there):
        times = {"valid_from": "2020-01-01", "valid_until": "2020-12-31"}
        one, other = await say(here, BERLIN, **times), await say(there, BERLIN, **times)
        assert (await joined(here, there)).keys() == {min(one.id, other.id)}


@pytest.mark.parametrize("ids", [(LESSER, GREATER), (GREATER, LESSER)])
async def test_of_equal_statements_the_earlier_begin_is_kept(
    tmp_path: Path, clock: Clock, ids: tuple[str, str]
) -> None:
    async with machines(tmp_path) as (here, there):
        await said_as(ids[0], there, BERLIN, valid_from="2020-01-01")
        clock.pass_days(1)
        await said_as(ids[1], here, BERLIN)
        assert (await joined(here, there)).keys() == {LESSER}
        assert await texts(here, "Ann lives", as_of="2021-01-01") == [BERLIN]


@contextlib.asynccontextmanager
async def merged_elsewhere(folder: Path, clock: Clock) -> AsyncIterator[tuple[Bench, Bench]]:
    """The first machine has a memory under an id that two others have replaced by a lesser one."""
    async with machines(folder, 3) as (here, there, third):
        await said_as(GREATER, here, BERLIN)
        await joined(here, third)
        clock.pass_days(1)
        await said_as(LESSER, there, BERLIN)
        assert (await joined(there, third)).keys() == {LESSER}
        clock.pass_days(1)
        yield here, there


async def test_what_replaces_a_memory_that_was_merged_elsewhere_counts(tmp_path: Path, clock: Clock) -> None:
    async with merged_elsewhere(tmp_path, clock) as (here, there):
        hamburg = await say(here, HAMBURG, supersedes=[GREATER])
        found = await joined(here, there)
        assert (set(found), found[LESSER].superseded_by) == ({LESSER, hamburg.id}, hamburg.id)
        assert await texts(there, "Ann lives") == [HAMBURG]


async def test_what_was_replaced_by_a_memory_that_was_merged_elsewhere_stays_so(tmp_path: Path, clock: Clock) -> None:
    async with merged_elsewhere(tmp_path, clock) as (here, there):
        munich = await say(here, MUNICH)
        await here.call(UpdateMemory(id=GREATER, supersedes=[munich.id]))
        before = await state(here)
        found = await joined(here, there)
        assert (set(found), found[munich.id].superseded_by) == ({LESSER, munich.id}, LESSER)
        # A version of before arrives late, and then one with a correction.
        await there.call(JoinMemories(memories=list(before.values())))
        assert await state(there) == found
        late = replace(before[GREATER], tags=["late"], corrected_ns=clock.now_ns + 1)
        await there.call(JoinMemories(memories=[late]))
        assert {id_: one.tags for id_, one in (await state(there)).items()} == {LESSER: ["late"], munich.id: []}


async def test_a_merged_memory_that_was_forgotten_elsewhere_is_deleted(tmp_path: Path, clock: Clock) -> None:
    async with merged_elsewhere(tmp_path, clock) as (here, there):
        munich = await say(here, MUNICH)
        await here.call(UpdateMemory(id=GREATER, supersedes=[munich.id]))
        await there.call(Forget(id=LESSER))
        found = await joined(here, there)
        assert (set(found), found[munich.id].superseded_by) == ({munich.id}, None)


async def test_a_wrong_merger_or_half_a_replacement_is_refused(tmp_path: Path) -> None:
    async with machines(tmp_path, 1) as (here,):
        await say(here, BERLIN)
        before = await state(here)
        (one,) = before.values()
        half = CarriedMemory(id=LESSER, scope="user", text="x", said=one.said, superseded_by=one.id)
        gone = ForgottenMemory(id=LESSER, at_ns=1, merged_into=GREATER)
        with pytest.raises(InvalidParams, match="the lesser one is kept"):
            await here.call(JoinMemories(forgotten=[gone]))
        with pytest.raises(InvalidParams, match="give `superseded_by` with `superseded_ns`"):
            await here.call(JoinMemories(memories=[half]))
        assert await state(here) == before
