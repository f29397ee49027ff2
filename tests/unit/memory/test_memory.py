"""Memories are found at once, merged or stored beside those they contradict, confined to their scope, and forgotten."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from proto.errors import InvalidParams, LinckiaError
from proto.ops.memory import COLLECTION
from proto.ops.retrieve import RetrieveStatus
from services.memory import operations as ops
from services.memory.memory_db import Row
from services.memory.operations import Forget, MemoryExport, MemoryImport, Remember, UpdateMemory
from services.memory.recall import arranged
from services.transcripts import main as transcripts
from services.transcripts.operations.conversations import SearchEverything
from tests.in_process import Bench
from tests.unit.memory.rig import listed, recalled, remembering, say, texts
from tests.unit.transcripts.test_search import embedding
from tests.waiting import until

DAY_NS = 86_400_000_000_000


async def put(bench: Bench, text: str, *, days_ago: float = 0, expires_days: float | None = None, id_: str = "") -> str:
    """As an import takes it in: with times of its own."""
    now = time.time_ns()
    one = ops.CarriedMemory(
        id=id_ or f"{abs(hash(text)) % 16**12:012x}", scope="user", text=text,
        expires_ns=None if expires_days is None else now + int(expires_days * DAY_NS),
        said=[ops.CarriedSaid(at_ns=now - int(days_ago * DAY_NS), text=text)],
    )  # fmt: skip
    assert (await bench.call(MemoryImport(memories=[one]))).changed == 1
    return one.id


async def test_memories_are_found_at_once_and_after_any_death(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        kept = await say(bench, "The staging server listens on port 8080", tags=["ops"], source="turn abc")
        assert (kept.scope, kept.merged_with, kept.conflicts_with, kept.degraded) == ("user", None, [], [])
        (found,) = await recalled(bench, "which port is staging on")
        assert (found.id, found.tags, [said.source for said in found.said]) == (kept.id, ["ops"], ["turn abc"])
        for name in ("memory", "retrieve"):
            await bench.stop(name)
            await bench.start(name)
            assert [one.id for one in await recalled(bench, "staging port")] == [kept.id]
        assert await texts(bench, "ops") == [found.text]
        assert await texts(bench, "staging", until="2020-01-01") == []
        assert await texts(bench, "staging", since="2020-01-01") == [found.text]


async def test_a_repeated_statement_is_merged_and_keeps_both_times_and_sources(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        first = await say(bench, "User prefers dark mode", source="a", tags=["ui"])
        again = await say(bench, "user  prefers DARK mode.", source="b", tags=["looks"])
        assert again.merged_with is not None
        assert (again.id, again.merged_with.text) == (first.id, "User prefers dark mode")
        (one,) = await listed(bench)
        assert [(said.source, said.text) for said in one.said] == [("b", "user  prefers DARK mode."), ("a", "")]
        assert one.tags == ["ui", "looks"]
        # A call that a death has made the kernel repeat is no second saying.
        repeated = await say(bench, "user  prefers DARK mode.", source="b")
        assert (repeated.id, repeated.merged_with) == (first.id, None)
        assert len((await listed(bench))[0].said) == 2
        # What expired is not gone: said again, it holds again.
        old = await put(bench, "The office is closed", expires_days=-1)
        assert await texts(bench, "office") == []
        assert (await say(bench, "The office is closed")).id == old
        assert await texts(bench, "office") == ["The office is closed"]


PAIRS = [
    ("Production deployment is enabled", "Production deployment is disabled", "disabled"),
    ("Timeout is 30 seconds", "Timeout is 30 minutes", "minutes"),
    ("The freezer is at 18 C", "The freezer is at -18 C", "-18"),
    ("The parser is written in C", "The parser is written in C++", "C++"),
    ("Анна ест мясо", "Анна не ест мясо", "не"),
    ("我喜欢喝咖啡", "我不喜欢喝咖啡", "不喜欢"),
    ("コーヒーが好きです", "コーヒーが好きではありません", "ありません"),
    ("Me gusta el café", "No me gusta el café", "no"),
    ("나는 고기를 먹는다", "나는 고기를 먹지 않는다", "먹지"),
]


@pytest.mark.parametrize(("one", "other", "word"), PAIRS)
async def test_close_statements_are_kept_linked_found_and_forgotten_by_their_own_words(
    tmp_path: Path, one: str, other: str, word: str
) -> None:
    async with remembering(tmp_path) as bench:
        first = await say(bench, one)
        second = await say(bench, other)
        assert second.merged_with is None
        assert [each.id for each in (*second.conflicts_with, *second.similar_to)] == [first.id]
        assert {each.text for each in await listed(bench)} == {one, other}
        assert set(await texts(bench, one)) == {one, other}
        for each in await listed(bench):
            assert [*each.conflicts_with, *each.similar_to] == [second.id if each.id == first.id else first.id]
        gone = await bench.call(Forget(scope="user", query=word, confirm=True))
        assert [each.text for each in gone.memories] == [other]
        assert [(each.text, each.conflicts_with, each.similar_to) for each in await listed(bench)] == [(one, [], [])]


async def test_vectors_link_paraphrases_and_never_merge_them(tmp_path: Path) -> None:
    async with remembering(tmp_path, embed=embedding) as bench:
        first = await say(bench, "the cache of thumbnails grows without bounds")

        async def is_embedded() -> bool:
            return not (await bench.call(RetrieveStatus(collection=COLLECTION))).vectors_waiting

        await until(is_embedded)
        again = await say(bench, "the cache of thumbnails grows without bounds always")
        assert again.merged_with is None
        assert [other.id for other in again.similar_to] == [first.id]
        assert len(await listed(bench)) == 2


async def test_contradictions_are_kept_with_their_times_and_shown_newest_first(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        old = await put(bench, "The release is planned for March", days_ago=30)
        new = await say(bench, "The release is planned for April")
        assert [other.id for other in new.conflicts_with] == [old]
        third = await say(bench, "The release is not planned for March")
        assert {other.id for other in third.conflicts_with} == {old}
        found = await recalled(bench, "when is the release planned", limit=3)
        assert [one.id for one in found if one.id != third.id] == [new.id, old]
        assert {one.id: set(one.conflicts_with) for one in found} == {
            old: {new.id, third.id}, new.id: {old}, third.id: {old},
        }  # fmt: skip
        # A hit brings along its contradictions, and last similar memories, even if neither is a hit itself.
        assert [one.id for one in await recalled(bench, "April", limit=5)] == [new.id, old, third.id]
        await bench.call(Forget(id=old))
        assert [one.conflicts_with for one in await recalled(bench, "release")] == [[], []]


def test_better_matches_always_rank_first() -> None:
    def row(name: str, number: int, text: str) -> Row:
        return Row(
            tags=[], number=number, id=name, scope="user", owner="", place="user", text=text, at_ns=number,
            expires_ns=None,
        )  # fmt: skip

    said = ("the port is 8080", "a car", "a flat", "the port is 9090", "another port")
    rows = {name: row(name, number, said[number]) for number, name in enumerate(("old", "car", "flat", "new", "far"))}
    scores = {"old": 0.5, "car": 0.48, "flat": 0.46, "new": 0.45}
    conflicts = {"old": [rows["new"]], "new": [rows["old"]]}

    def names(query: str, similar: dict[str, list[Row]]) -> list[str]:
        return [each.id for each, _ in arranged(query, scores, rows, conflicts, similar)]

    # The query says nothing of what differs.
    assert names("which port is it", {"car": [rows["far"]]}) == ["new", "old", "car", "flat", "far"]
    assert names("is the port 8080", {}) == ["old", "car", "flat", "new"]
    scores["new"] = 0.35
    assert names("which port is it", {}) == ["old", "car", "flat", "new"]
    conflicts.clear()
    assert names("which port is it", {"old": [rows["new"]]}) == ["old", "car", "flat", "new"]


async def test_each_of_many_numbered_things_is_found_first(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        for form, ask, answers in (
            ("The keeper of tower {n} is called K{n}", "who is the keeper of tower {n}", "K{n}"),
            ("Printer on floor {n} has address 10.0.0.{n}", "address of the printer on floor {n}", "10.0.0.{n}"),
            ("Release 2.{n} came out on 2026-03-{n:02}", "when did release 2.{n} come out", "2026-03-{n:02}"),
        ):
            for n in range(1, 25):
                kept = await say(bench, form.format(n=n))
                assert kept.conflicts_with == []
            for n in range(1, 25):
                assert (await texts(bench, ask.format(n=n)))[0] == form.format(n=n), answers.format(n=n)


async def test_expired_memories_are_not_recalled_listed_only_on_request_and_purged_later(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        await say(bench, "The demo is on Friday", expires="12h")
        over = await put(bench, "The demo room is taken", expires_days=-2)
        await put(bench, "The demo of last year went well", expires_days=-200)
        assert await texts(bench, "demo") == ["The demo is on Friday"]
        assert set(await texts(bench, "demo room", include_expired=True)) >= {"The demo room is taken"}
        assert [one.text for one in await listed(bench)] == ["The demo is on Friday"]
        assert [one.expired for one in await listed(bench, include_expired=True)] == [True, True, False]
        await bench.stop("memory")
        await bench.start("memory")
        assert next(one.id for one in await listed(bench, include_expired=True)) == over
        assert len(await listed(bench, include_expired=True)) == 2
        await bench.call(UpdateMemory(id=over, expires="never"))
        assert "The demo room is taken" in await texts(bench, "demo")


async def test_scopes_keep_projects_and_sessions_apart(tmp_path: Path) -> None:
    async with remembering(tmp_path, transcripts=transcripts.open_service) as bench:
        await say(bench, "Tests run with pytest", scope="project:alpha")
        await say(bench, "Tests run with unittest", scope="project:beta")
        await say(bench, "User runs tests before each commit")
        own = await say(bench, "Tests of this branch are red", "s1", scope="session")
        assert own.expires
        await say(bench, "Tests of the talk are green", "s1", scope="session:talk")
        user = "User runs tests before each commit"
        assert set(await texts(bench, "tests", scope="project:alpha")) == {"Tests run with pytest", user}
        assert await texts(bench, "tests", scope="user") == [user]
        assert set(await texts(bench, "tests", "s1", scope="session")) == {
            "Tests of this branch are red", "Tests of the talk are green",
        }  # fmt: skip
        assert await texts(bench, "tests", "s2", scope="session") == []
        assert await texts(bench, "tests", "s2", scope="session:talk") == ["Tests of the talk are green"]
        assert len(await texts(bench, "tests", "s1")) == 5
        assert len(await texts(bench, "tests", "s2")) == 3
        assert [one.text for one in await listed(bench, scope="project:beta")] == ["Tests run with unittest"]
        assert len(await listed(bench, "s2")) == 3
        with pytest.raises(LinckiaError, match="there is no memory"):
            await bench.call(UpdateMemory(id=own.id, text="Tests are green"), session="s2")
        assert (await bench.call(Forget(id=own.id), session="s2")).forgotten == 0
        for session, count in (("s1", 5), ("s2", 3)):
            everything = await bench.call(SearchEverything(query="tests"), session=session)
            assert len([hit for hit in everything.results if hit.corpus.value == "memory"]) == count


async def test_scopes_are_trimmed_and_an_unknown_one_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    operation = ops.Remember.__operation__  # type: ignore[attr-defined]  # set by the declaration
    async with remembering(tmp_path) as bench:
        await bench.call(operation.parse({"text": "Tests run with pytest", "scope": " project:alpha\n"}))
        assert [one.scope for one in await listed(bench, scope="project:alpha ")] == ["project:alpha"]
        for scope in ("project:alphas", "project:Alpha"):
            found = await bench.call(ops.Recall(query="tests", scope=scope))
            of_scope = await bench.call(ops.ListMemories(scope=scope))
            for answer in (found, of_scope):
                assert answer.memories == []
                assert answer.note == f"no memory has the scope {scope!r}; scopes with memories: project:alpha"


async def test_correcting_a_memory_updates_its_contradictions(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        first = await say(bench, "Erik works at Siemens")
        second = await say(bench, "Erik works at Bosch", tags=["people"])
        assert [other.id for other in second.conflicts_with] == [first.id]
        with pytest.raises(LinckiaError, match=f"memory {first.id} already says that"):
            await bench.call(UpdateMemory(id=second.id, text="Erik works at siemens"))
        changed = await bench.call(UpdateMemory(id=second.id, text="Fiona works at Bosch", tags=[]))
        assert changed.conflicts_with == []
        assert [other.id for other in (await bench.call(UpdateMemory(id=second.id, tags=[]))).similar_to] == []
        (found,) = await recalled(bench, "Bosch")
        assert (found.text, found.tags, found.said[1].text) == ("Fiona works at Bosch", [], "Erik works at Bosch")
        assert await texts(bench, "Siemens") == ["Erik works at Siemens"]
        again = await bench.call(UpdateMemory(id=second.id, text="Fiona works at Bosch", tags=[]))
        assert (again.id, again.conflicts_with) == (changed.id, [])
        assert len((await recalled(bench, "Bosch"))[0].said) == 2


async def test_forgotten_memories_are_in_no_file_and_forgetting_many_needs_confirmation(tmp_path: Path) -> None:
    async with remembering(tmp_path) as bench:
        one = await say(bench, "The password hint is zanzibar1")
        for n in range(3):
            await say(bench, f"Old project fact {n} about quagga{n}", scope="project:old")
        await say(bench, "Old project budget is 500", scope="project:old")
        gone = await bench.call(Forget(id=one.id))
        assert (gone.forgotten, gone.search_pending, [each.text for each in gone.memories]) == (
            1, 0, ["The password hint is zanzibar1"],
        )  # fmt: skip
        assert (await bench.call(Forget(id=one.id))).forgotten == 0
        asked = await bench.call(Forget(scope="project:old", query="fact"))
        assert (asked.forgotten, len(asked.memories)) == (0, 3)
        assert "confirm=true" in asked.note
        assert len(await listed(bench, scope="project:old")) == 4
        done = await bench.call(Forget(scope="project:old", query="Fact", confirm=True))
        assert done.forgotten == 3
        assert [one.text for one in await listed(bench)] == ["Old project budget is 500"]
        assert await texts(bench, "quagga1") == []
        kept = [path for path in tmp_path.rglob("*") if path.is_file()]  # noqa: ASYNC240  # a few small files
        assert kept
        assert [path for path in kept if b"zanzibar1" in path.read_bytes() or b"quagga1" in path.read_bytes()] == []


def test_a_single_symbol_counts_as_content() -> None:
    for text in ("👍", "❤️", "→ ★", "½"):
        Remember(text=text).check()
    for text in ("…", "?! --", "+ = ^"):
        with pytest.raises(InvalidParams, match="has no content"):
            Remember(text=text).check()


@pytest.mark.parametrize(
    ("call", "field", "said"),
    [
        ({"text": "…"}, "text", "has no content"),
        ({"text": "?! -- +"}, "text", "has no content"),
        ({"text": "x" * 2001}, "text", "2000"),
        ({"text": "fact", "scope": "team"}, "scope", "scope"),
        ({"text": "fact", "scope": "session"}, "scope", "in no session"),
        ({"text": "fact", "expires": "soon"}, "expires", "a duration"),
        ({"text": "fact", "expires": "2 moons"}, "expires", "unknown unit; write .* mo .months."),
        ({"text": "fact", "expires": "6 m"}, "expires", "unknown unit"),
        ({"text": "fact", "expires": "1.5 h"}, "expires", "a duration"),
        ({"text": "fact", "expires": "2001-01-01"}, "expires", "has passed"),
    ],
)
async def test_bad_input_names_the_field_and_keeps_nothing(
    tmp_path: Path, call: dict[str, str], field: str, said: str
) -> None:
    async with remembering(tmp_path) as bench:
        operation = ops.Remember.__operation__  # type: ignore[attr-defined]  # set by the declaration
        with pytest.raises(InvalidParams, match=said) as failed:
            await bench.call(operation.parse(call))
        assert failed.value.failure.field == field
        assert await listed(bench) == []


async def test_lists_continue_by_cursor_and_exports_are_imported_once(tmp_path: Path) -> None:
    async with remembering(tmp_path / "a") as bench:
        for n in range(5):
            await say(bench, f"Fact number {n} of many", source=str(n))
        first = await bench.call(ops.ListMemories(limit=3))
        rest = await bench.call(ops.ListMemories(limit=3, cursor=first.next_cursor))
        assert (first.total, len(first.memories), len(rest.memories), rest.next_cursor) == (5, 3, 2, "")
        every = first.memories + rest.memories
        exported = await bench.call(MemoryExport())
        assert (await bench.call(MemoryExport(after=exported.next))).memories == []
    async with remembering(tmp_path / "b") as other:
        assert (await other.call(MemoryImport(memories=exported.memories))).changed == 5
        assert (await other.call(MemoryImport(memories=exported.memories))).changed == 0
        assert await listed(other) == every
        assert await other.call(MemoryExport()) == exported
        assert (await recalled(other, "number 3"))[0].text == "Fact number 3 of many"
