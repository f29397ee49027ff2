"""Memories hold for a time and replace one another: recall says what holds now or held then, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams, LinckiaError
from services.memory import operations as ops
from services.memory.operations import (
    Forget,
    MemoryExport,
    MemoryImport,
    Recall,
    Remembered,
    UpdateMemory,
)
from services.transcripts import main as transcripts
from services.transcripts.operations.conversations import SearchEverything
from tests.in_process import Bench
from tests.unit.memory.rig import Clock, listed, recalled, remembering, say, texts

BERLIN, HAMBURG, MUNICH = "Ann lives in Berlin", "Ann lives in Hamburg", "Ann lives in Munich"


@contextlib.asynccontextmanager
async def moved(folder: Path, clock: Clock) -> AsyncIterator[tuple[Bench, Remembered, Remembered]]:
    """Ann lived in Berlin, and after 30 days said that she lives in Hamburg instead."""
    async with remembering(folder, transcripts=transcripts.open_service) as bench:
        berlin = await say(bench, BERLIN)
        clock.pass_days(30)
        yield bench, berlin, await say(bench, HAMBURG, supersedes=[berlin.id])


async def about(bench: Bench, person: str, **more: Any) -> list[str]:
    return [text for text in await texts(bench, f"where {person} lives", **more) if text.startswith(person)]


async def test_recall_has_what_holds_now_and_says_what_it_replaced(tmp_path: Path, clock: Clock) -> None:
    async with moved(tmp_path, clock) as (bench, berlin, hamburg):
        assert [(one.id, one.text, one.until) for one in hamburg.replaced] == [
            (berlin.id, BERLIN, "2026-03-31T11:59:59Z")
        ]
        assert (hamburg.conflicts_with, hamburg.may_replace, hamburg.note) == ([], [], "")
        found = await bench.call(Recall(query="where does Ann live"))
        assert [(one.text, one.stale, one.conflicts_with) for one in found.memories] == [(HAMBURG, "", [])]
        assert [one.id for one in found.memories[0].replaced] == [berlin.id]
        assert found.not_holding == 1
        assert {one.text: one.stale for one in await listed(bench)} == {HAMBURG: "", BERLIN: "replaced by a newer one"}
        (old,) = [one for one in await listed(bench) if one.text == BERLIN]
        assert (old.superseded_by, old.valid_until) == (hamburg.id, "2026-03-31T11:59:59Z")
        everything = await bench.call(SearchEverything(query="where does Ann live"))
        assert [hit.text for hit in everything.results] == [HAMBURG]
        assert set(await texts(bench, "Ann lives", include_expired=True)) == {BERLIN, HAMBURG}


async def test_as_of_has_what_held_then_and_nothing_first_said_later(tmp_path: Path, clock: Clock) -> None:
    async with moved(tmp_path, clock) as (bench, _, _):
        for moment, held in (
            ("2026-02-28", []), ("2026-03-01T11:59:00Z", []), ("2026-03-01", [BERLIN]), ("2026-03-30", [BERLIN]),
            ("2026-03-31T12:00:00Z", [HAMBURG]), ("2026-03-31", [HAMBURG]), ("today", [HAMBURG]), ("2027", [HAMBURG]),
        ):  # fmt: skip
            assert await texts(bench, "Ann lives", as_of=moment) == held, moment
        with pytest.raises(InvalidParams, match="is not a time") as failed:
            await recalled(bench, "Ann", as_of="whenever")
        assert failed.value.failure.field == "as_of"


async def test_times_are_conditions_of_the_search_so_many_others_hide_nothing(tmp_path: Path, clock: Clock) -> None:
    async with remembering(tmp_path) as bench:
        await say(bench, "The lamp is red")
        clock.pass_days(10)
        for n in range(60):
            await say(bench, f"The lamp of the lamp shop is lamp {n}", valid_from="2026-06-01" if n % 2 else None)
        assert await texts(bench, "lamp shop lamp", as_of="2026-03-02", limit=1) == ["The lamp is red"]
        for n in range(0, 60, 2):
            await bench.call(Forget(scope="user", query=f"lamp shop {n}", confirm=True))
        found = await bench.call(Recall(query="lamp shop lamp", limit=1))
        assert [one.text for one in found.memories] == ["The lamp is red"]
        assert found.not_holding == 30


async def test_stated_times_count_whenever_it_was_said(tmp_path: Path, clock: Clock) -> None:
    async with moved(tmp_path, clock) as (bench, _, hamburg):
        await say(bench, "Ben lives in Oslo", valid_from="2020-01-01", valid_until="2021-12-31")
        await say(bench, "Ben lives in Rome", valid_from="2026-05-01")
        assert await about(bench, "Ben") == []
        assert (await bench.call(Recall(query="Ben lives"))).not_holding == 3
        assert "Ben lives in Rome" not in [
            hit.text for hit in (await bench.call(SearchEverything(query="where does Ben live"))).results
        ]
        for moment, held in (
            ("2019-12-31", []), ("2020-01-01", ["Ben lives in Oslo"]), ("2021-12-31", ["Ben lives in Oslo"]),
            ("2022-01-01", []), ("2026-04-30", []), ("2026-05-01", ["Ben lives in Rome"]),
        ):  # fmt: skip
            assert await about(bench, "Ben", as_of=moment) == held, moment
        stale = {one.text: one.stale for one in await listed(bench) if "Ben" in one.text}
        assert stale == {"Ben lives in Oslo": "no longer valid", "Ben lives in Rome": "not valid yet"}
        clock.pass_days(60)
        assert await about(bench, "Ben") == ["Ben lives in Rome"]
        everything = await bench.call(SearchEverything(query="where does Ben live"))
        assert "Ben lives in Rome" in [hit.text for hit in everything.results]
        # A later correction of the begin moves the end of what it replaced.
        changed = await bench.call(UpdateMemory(id=hamburg.id, valid_from="2026-03-10"))
        assert changed.valid_from == "2026-03-10T00:00:00Z"
        assert await about(bench, "Ann", as_of="2026-03-09") == [BERLIN]
        assert await about(bench, "Ann", as_of="2026-03-10") == [HAMBURG]
        await bench.call(UpdateMemory(id=hamburg.id, valid_until="2026-05-01"))
        assert await about(bench, "Ann") == []
        await bench.call(UpdateMemory(id=hamburg.id, valid_until="none", valid_from="none"))
        assert await about(bench, "Ann") == [HAMBURG]
        assert await about(bench, "Ann", as_of="2026-03-10") == [BERLIN]


async def test_what_a_forgotten_memory_replaced_holds_again(tmp_path: Path, clock: Clock) -> None:
    async with moved(tmp_path, clock) as (bench, berlin, hamburg):
        munich = await say(bench, MUNICH, supersedes=[hamburg.id])
        # The middle of a chain: what it replaced is replaced by the next.
        await bench.call(Forget(id=hamburg.id))
        assert await texts(bench, "Ann lives") == [MUNICH]
        (found,) = await recalled(bench, "Ann lives")
        assert [one.id for one in found.replaced] == [berlin.id]
        await bench.call(Forget(id=munich.id))
        (found,) = await recalled(bench, "Ann lives")
        assert (found.text, found.valid_until, found.superseded_by, found.stale) == (BERLIN, "", "", "")


async def test_a_replaced_memory_stays_replaced_when_the_other_expires(tmp_path: Path, clock: Clock) -> None:
    async with remembering(tmp_path) as bench:
        berlin = await say(bench, BERLIN)
        clock.pass_days(1)
        await say(bench, HAMBURG, supersedes=[berlin.id], expires="10d")
        clock.pass_days(100)
        await say(bench, "Ben has a dog")
        assert [one.text for one in await listed(bench, include_expired=True)] == ["Ben has a dog", BERLIN]
        assert await texts(bench, "Ann lives") == []
        assert await texts(bench, "Ann lives", as_of="2026-03-01") == [BERLIN]


async def test_words_said_again_after_their_end_are_a_new_memory(tmp_path: Path, clock: Clock) -> None:
    async with moved(tmp_path, clock) as (bench, berlin, hamburg):
        clock.pass_days(30)
        again = await say(bench, BERLIN, supersedes=[hamburg.id])
        assert again.id != berlin.id
        assert again.merged_with is None
        assert await texts(bench, "Ann lives") == [BERLIN]
        for moment, held in (("2026-03-02", [BERLIN]), ("2026-04-02", [HAMBURG]), ("2026-05-02", [BERLIN])):
            assert await texts(bench, "Ann lives", as_of=moment) == held
        # Said while it holds, it is the same one; an earlier begin is learnt, a later one is not.
        clock.pass_days(1)
        same = await say(bench, BERLIN, valid_from="2026-04-25")
        assert (same.id, same.valid_from) == (again.id, "2026-04-25T00:00:00Z")
        assert (await say(bench, BERLIN, valid_from="2026-05-01")).valid_from == "2026-04-25T00:00:00Z"
        assert await texts(bench, "Ann lives", as_of="2026-04-26") == [BERLIN]


async def test_a_memory_replaced_before_counts_as_the_last_of_its_chain(tmp_path: Path, clock: Clock) -> None:
    async with moved(tmp_path, clock) as (bench, berlin, hamburg):
        munich = await say(bench, MUNICH, supersedes=[berlin.id])
        assert [one.id for one in munich.replaced] == [hamburg.id]
        assert await texts(bench, "Ann lives") == [MUNICH]
        # Repeated, it changes nothing.
        again = await say(bench, MUNICH, supersedes=[berlin.id])
        assert (again.id, [one.id for one in again.replaced]) == (munich.id, [hamburg.id])
        for id_ in (berlin.id, hamburg.id):
            with pytest.raises(InvalidParams, match=f"memory {munich.id} replaces {id_}; .*supersedes=\\[\\]"):
                await bench.call(UpdateMemory(id=id_, supersedes=[munich.id]))
        done = await bench.call(UpdateMemory(id=munich.id, supersedes=[]))
        assert done.replaced == []
        assert set(await texts(bench, "Ann lives")) == {MUNICH, HAMBURG}


@pytest.mark.parametrize(
    ("more", "name", "said"),
    [
        ({"supersedes": ["0a1b2c3d4e5f"]}, "supersedes", "there is no memory '0a1b2c3d4e5f'"),
        ({"supersedes": ["private"]}, "supersedes", "there is no memory"),
        ({"supersedes": ["project"]}, "supersedes", "has another scope .project:x."),
        ({"supersedes": ["berlin", "gone"]}, "supersedes", "there is no memory 'gone'"),
        ({"valid_from": "soon"}, "valid_from", "a duration"),
        ({"valid_until": "2 moons"}, "valid_until", "unknown unit"),
        ({"valid_from": "2026-02-02", "valid_until": "2026-02-01"}, "valid_until", "before it begins"),
    ],
)
async def test_wrong_times_and_ids_name_the_parameter_and_change_nothing(
    tmp_path: Path, clock: Clock, more: dict[str, Any], name: str, said: str
) -> None:
    async with remembering(tmp_path) as bench:
        ids = {
            "berlin": (await say(bench, BERLIN)).id,
            "private": (await say(bench, "Ann hides", "s1", scope="session")).id,
            "project": (await say(bench, "Ann codes", scope="project:x")).id,
        }
        before = await bench.call(MemoryExport())
        more = {key: [ids.get(each, each) for each in it] if key == "supersedes" else it for key, it in more.items()}
        dora = await say(bench, "Dora is here")
        with pytest.raises(LinckiaError, match=said) as failed:
            await say(bench, HAMBURG, "s2", **more)
        assert failed.value.failure.field == name
        with pytest.raises(LinckiaError, match=said) as failed:
            await bench.call(UpdateMemory(id=dora.id, text="Dora left", **more), session="s2")
        assert failed.value.failure.field == name
        assert (await bench.call(MemoryExport())).memories[:-1] == before.memories
        assert [one.text for one in await listed(bench)][:1] == ["Dora is here"]
        with pytest.raises(InvalidParams, match="is this memory itself"):
            await bench.call(UpdateMemory(id=dora.id, supersedes=[dora.id]))


async def test_a_statement_that_updates_another_names_it_and_hides_nothing(tmp_path: Path, clock: Clock) -> None:
    async with remembering(tmp_path) as bench:
        stays = await say(bench, "Ann is in Berlin")
        await say(bench, "Ann plays the cello")
        await say(bench, "Ben is in Berlin")
        moves = await say(bench, "Ann has moved to Hamburg")
        assert [(other.id, other.text) for other in moves.may_replace] == [(stays.id, "Ann is in Berlin")]
        assert moves.note == f'if it replaces them: memory_update id={moves.id} supersedes=["{stays.id}"]'
        assert {"Ann is in Berlin", "Ann has moved to Hamburg"} <= {*await texts(bench, "where is Ann")}
        done = await bench.call(UpdateMemory(id=moves.id, supersedes=[stays.id]))
        assert [one.id for one in done.replaced] == [stays.id]
        assert "Ann is in Berlin" not in await texts(bench, "where is Ann")


async def test_stale_memories_say_why(tmp_path: Path, clock: Clock) -> None:
    async with remembering(tmp_path) as bench:
        await say(bench, "The port is 8080")
        clock.pass_days(1)
        newer = await say(bench, "The port is 9090")

        async def stale() -> dict[str, str]:
            found = {one.text: one.stale for one in await recalled(bench, "which port")}
            assert found == {one.text: one.stale for one in await listed(bench)}
            return found

        contradicted = f"contradicted by a newer one: {newer.id}"
        assert await stale() == {"The port is 8080": contradicted, "The port is 9090": ""}
        clock.pass_days(365)
        assert await stale() == {"The port is 8080": contradicted, "The port is 9090": ""}
        clock.pass_days(1)
        assert (await stale())["The port is 9090"] == "not confirmed since 2026-03-02"
        await say(bench, "the port is 9090")
        assert (await stale())["The port is 9090"] == ""
        await say(bench, "The demo is soon", expires="1d")
        clock.pass_days(2)
        assert (await listed(bench, include_expired=True))[0].stale == "expired"


async def test_stale_days_of_zero_is_never(tmp_path: Path, clock: Clock) -> None:
    async with remembering(tmp_path, settings={"memory": {"stale_days": 0}}) as bench:
        await say(bench, "The port is 8080")
        clock.pass_days(9000)
        assert [one.stale for one in await listed(bench)] == [""]


async def test_exports_carry_times_and_replacements(tmp_path: Path, clock: Clock) -> None:
    async with moved(tmp_path / "a", clock) as (bench, berlin, hamburg):
        clock.pass_days(3)
        await say(bench, BERLIN, supersedes=[hamburg.id], valid_until="2030-01-01")
        await say(bench, "Ben lives in Oslo", valid_from="2020-01-01")
        every = await listed(bench)
        exported = await bench.call(MemoryExport())
    async with remembering(tmp_path / "b") as other:
        # A memory may arrive before the one that replaced it.
        for one in exported.memories:
            assert (await other.call(MemoryImport(memories=[one]))).changed == 1
        assert (await other.call(MemoryImport(memories=exported.memories))).changed == 0
        assert await listed(other) == every
        assert await other.call(MemoryExport()) == exported
        assert await about(other, "Ann") == [BERLIN]
        assert await about(other, "Ann", as_of="2026-03-02") == [BERLIN]
        await other.call(Forget(id=every[1].id))
        assert await about(other, "Ann") == [HAMBURG]
        half = ops.CarriedMemory(
            id="0a1b2c3d4e5f", scope="user", text="x", said=exported.memories[0].said, superseded_by=berlin.id
        )
        with pytest.raises(InvalidParams, match="give `superseded_by` with `superseded_ns`"):
            MemoryImport(memories=[half]).check()
