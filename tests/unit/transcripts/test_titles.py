"""The title that a log states is a conversation's, and it is found by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.transcripts.operations.carry import TranscriptExport, TranscriptRestore
from services.transcripts.operations.conversations import TranscriptDelete, TranscriptList
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, assistant, serving, user
from tests.unit.transcripts.test_layouts import (
    CHATGPT,
    CLAUDE,
    CLAUDE_AI,
    CODEX,
    GEMINI,
    GEMINI_LINES,
    claude,
    codex,
    contents,
    spoken,
    take_in,
)
from tests.unit.transcripts.test_listing import listed

CASES = Path(__file__).parents[4] / "shared/cases/reports/second/cases.json"


def shed(session: str = "s", *, of: str = "") -> list[Json]:
    said = [{"type": "text", "text": "Of larch."}]
    return [
        claude(f"{of}u1", None, "user", f"How do I begin{of}?", sessionId=session),
        claude(f"{of}a1", f"{of}u1", "assistant", said, id=f"{of}m1", sessionId=session),
    ]


def title(kind: str, field: str, text: str, session: str = "s") -> Json:
    return {"type": kind, field: text, "sessionId": session}


def own(text: str) -> Json:
    return title("custom-title", "customTitle", text)


def generated(text: str) -> Json:
    return title("ai-title", "aiTitle", text)


def summary(text: str, leaf: str) -> Json:
    return {"type": "summary", "summary": text, "leafUuid": leaf}


NAME = title("agent-name", "agentName", "Shed builder")
STATED: dict[str, tuple[list[Json], str]] = {
    "none": (shed(), "How do I begin?"),
    "the user's own": ([*shed(), own("Garden shed")], "Garden shed"),
    "at the beginning of the file": ([own("Garden shed"), *shed()], "Garden shed"),
    "one that the agent generated": ([*shed(), generated("Building a shed")], "Building a shed"),
    "the user's own, although one was generated later": ([*shed(), own("Garden shed"), generated("X")], "Garden shed"),
    "the latest": ([*shed(), own("Shed"), generated("X"), own("Garden shed"), summary("Y", "a1")], "Garden shed"),
    "a summary": ([*shed(), summary("A shed of larch", "a1")], "A shed of larch"),
    "a summary before its record": ([summary("A shed of larch", "a1"), *shed()], "A shed of larch"),
    "generated rather than a summary": ([summary("X", "a1"), generated("Building a shed"), *shed()], "Building a shed"),
    "an agent's name": ([*shed(), NAME, generated("X")], "Shed builder"),
    "one that was withdrawn": ([*shed(), own("Garden shed"), own("")], "How do I begin?"),
    "of several lines": ([*shed(), own("Garden\n  shed")], "Garden shed"),
}


@pytest.mark.parametrize(("records", "expected"), STATED.values(), ids=STATED)
async def test_a_stated_title_is_the_title(tmp_path: Path, records: list[Json], expected: str) -> None:
    for cut in range(len(records)):
        async with serving(tmp_path / str(cut)) as bench:
            taken = await take_in(bench, records, cut=cut)
            assert [one.title for one in await listed(bench)] == [expected], f"read up to record {cut} before"
            assert (taken.unreadable, taken.mended) == (0, 0)


async def found(bench: Bench, query: str) -> list[str]:
    return [one.title for one in (await bench.call(TranscriptList(query=query))).conversations]


async def test_the_reported_titles_are_used_and_found(tmp_path: Path) -> None:
    if not CASES.exists():
        pytest.skip("the shared cases are not beside this checkout")
    given: list[Json] = json.loads(CASES.read_text())["stated_titles"]
    records = json.loads(json.dumps(given).replace('"S1"', '"s"').replace('"LAST"', '"a1"'))
    async with serving(tmp_path) as bench:
        await take_in(bench, [*shed(), *records])
        assert [one.title for one in await listed(bench)] == ["Garden shed"]
        for query in ("garden", "Garden SHED", "building", "larch", "how begin"):
            assert await found(bench, query) == ["Garden shed"], query
        assert await found(bench, "castle") == []


async def test_a_summary_in_the_file_of_another_session_names_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, [summary("A shed of larch", "a1"), *shed("t", of="x")], "/t")
        await take_in(bench, shed(), "/s")
        assert {one.title for one in await listed(bench)} == {"A shed of larch", "How do I beginx?"}


def renamed(record: Json, **more: Any) -> list[Json]:
    return [{**record, **more}]


OTHERS: dict[str, tuple[list[Json], str]] = {
    "chatgpt": ([CHATGPT], "Arms"),
    "claude.ai": ([CLAUDE_AI], "Arms"),
    "chatgpt without one": (renamed(CHATGPT, title="New chat"), "How many arms?"),
    "messages with a title": ([{"title": "Arms", "messages": [user("How many arms?"), assistant("Five.")]}], "Arms"),
    "gemini": (renamed(GEMINI[0], summary="Arms of sea stars"), "Arms of sea stars"),
    "gemini lines": ([*GEMINI_LINES, {"$set": {"summary": "Arms of sea stars"}}], "Arms of sea stars"),
    "codex": ([*CODEX, codex("event_msg", type="thread_name_updated", thread_name="Arms")], "Arms"),
    "codex index": ([*CODEX[:6], *CODEX[6:], codex("session_meta", id="s", thread_name="Arms")], "Arms"),
}


@pytest.mark.parametrize(("records", "expected"), OTHERS.values(), ids=OTHERS)
async def test_titles_of_other_programs(tmp_path: Path, records: list[Json], expected: str) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, records)
        (one,) = await listed(bench)
        assert one.title == expected
        assert await found(bench, expected) == [expected]


def sub_agent(*, second: int, copied: bool) -> list[Json]:
    """A sub-agent's session of Codex that began at 10:00, and replied a while later."""
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}}
    meta = codex("session_meta", id="c", cwd="/w", source=source, timestamp="2026-03-01T10:00:00Z")
    before = [codex("session_meta", id="p", cwd="/w"), spoken("user", "Plan the shed"), spoken("assistant", "Planned.")]
    later = {"timestamp": f"2026-03-01T10:00:{second:02}Z"}
    return [
        meta, *(before if copied else []), spoken("user", "<task>\nMeasure the garden\n</task>"),
        {**spoken("assistant", "Ten metres."), **later}, {**spoken("user", "Measure again"), **later},
    ]  # fmt: skip


@pytest.mark.parametrize("copied", [False, True])
async def test_a_sub_agent_is_named_by_its_task(tmp_path: Path, copied: bool) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, sub_agent(second=9, copied=copied))
        assert [one.title for one in await listed(bench)] == ["Measure the garden"]


@pytest.mark.parametrize(
    "said", ["<task>\nBuild a shed\n</task>", "<task>Build a shed</task>\n<environment_details>x</environment_details>",
             "<user_message>\n<task>Build a shed\nof larch</task></user_message>", "<task>\nBuild a shed"],
)  # fmt: skip
async def test_a_wrapper_is_not_the_title(tmp_path: Path, said: str) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, [claude("u1", None, "user", said)])
        assert [one.title for one in await listed(bench)] == ["Build a shed"]


@pytest.mark.parametrize("said", ["<b>bold</b> is what?", "<div> why", "a < b > c", "<x></x>"])
async def test_markup_in_a_question_stays_in_the_title(tmp_path: Path, said: str) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, [claude("u1", None, "user", said)])
        assert [one.title for one in await listed(bench)] == [said]


async def test_a_title_is_deleted_with_what_it_may_repeat(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, [*CLAUDE, own("Mine alone"), generated("Zebras all over")])
        (one,) = await listed(bench)
        await bench.call(TranscriptDelete(hash=one.hash))
        assert [one.title for one in await listed(bench)] == ["Mine alone"]
        assert not [file for file, data in contents(tmp_path / "transcripts") if b"Zebras" in data]
        await bench.call(TranscriptDelete(conversation=one.id))
        assert await listed(bench) == []
        assert not [file for file, data in contents(tmp_path / "transcripts") if b"Mine alone" in data]


async def test_a_secret_in_a_title_is_masked(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    async with serving(tmp_path) as bench:
        await take_in(bench, [*shed(), own(f"about {secret}"), summary(f"of {secret}", "nowhere")])
        assert [one.title for one in await listed(bench)] == ["about [redacted:github-token]"]
    assert not [file for file, data in contents(tmp_path) if secret.encode() in data]


async def test_titles_go_with_an_export(tmp_path: Path) -> None:
    async with serving(tmp_path / "from") as bench:
        await take_in(bench, [*shed(), own("Garden shed"), generated("Building")])
        await take_in(bench, shed("t", of="x"), "/t")
        exported = await bench.call(TranscriptExport())
    carried = [each.turn for each in exported.turns]
    assert [len(holder.titles) for turn in carried for holder in turn.conversations] == [2, 0, 0, 0]
    async with serving(tmp_path / "to") as bench:
        for _ in range(2):
            await bench.call(TranscriptRestore(turns=carried))
            assert {one.title for one in await listed(bench)} == {"Garden shed", "How do I beginx?"}
            assert await found(bench, "building") == ["Garden shed"]
