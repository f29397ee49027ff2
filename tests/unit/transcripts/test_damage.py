"""A session file that was damaged loses what cannot be read, nothing else, and the import names it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.transcripts.providers.wire import objects
from tests.unit.transcripts.rig import Json, serving
from tests.unit.transcripts.test_layouts import CODEX, CODEX_TOLD, claude, conversations, take_in
from tests.unit.transcripts.test_listing import listed

U1 = claude("u1", None, "user", "Question 1")
A1 = claude("a1", "u1", "assistant", [{"type": "text", "text": "Answer 1"}], id="m1")
U2 = claude("u2", "a1", "user", "Question 2")
A2 = claude("a2", "u2", "assistant", [{"type": "text", "text": "Answer 2"}], id="m2")
TOLD = [[("user", "Question 1"), ("assistant", "Answer 1"), ("user", "Question 2"), ("assistant", "Answer 2")]]


def text(*records: Json) -> str:
    return "".join(json.dumps(record) for record in records)


DAMAGED: dict[str, Sequence[Json | str]] = {
    "two records on one line": [U1, text(A1, U2), A2],
    "all records on one line": [text(U1, A1, U2, A2)],
    "a torn record before": [U1, A1, '{"type":"pr-link","sessionId":"s","prNu' + text(U2), A2],
    "torn in a string": [U1, A1, '{"type":"last-prompt","sessionId":"s","text":"go {"a' + text(U2), A2],
    "torn after a nested object": [U1, A1, '{"type":"x","sessionId":"s","data":{"a":{"b":1}},"c' + text(U2), A2],
    "torn before and after": [U1, A1, '{"type":"x"' + text(U2) + '{"parentUuid":"u2","typ', A2],
    "null bytes": [U1, A1, "\0" * 300, U2, A2],
    "null bytes before a record": [U1, A1, "\0" * 300 + text(U2), A2],
    "a record is lost": [U1, A1, '{"type":"user","uuid":"u', {**U2, "parentUuid": "lost"}, A2],
    "a parent that is not there": [U1, A1, {**U2, "parentUuid": "gone"}, A2],
    "a parent that is the record itself": [U1, A1, {**U2, "parentUuid": "u2"}, A2],
    "a boundary whose parent is not there": [
        U1, A1,
        {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None, "logicalParentUuid": "gone",
         "sessionId": "s"},
        {**U2, "parentUuid": "b"}, A2],
}  # fmt: skip


@pytest.mark.parametrize("records", DAMAGED.values(), ids=DAMAGED)
async def test_records_after_damage_continue_the_last_turn_and_the_damage_is_named(
    tmp_path: Path, records: Sequence[Json | str]
) -> None:
    async with serving(tmp_path) as bench:
        result = await take_in(bench, records)
        assert await conversations(bench) == TOLD
        assert [one.turns for one in await listed(bench)] == [4]
        assert result.unreadable + result.mended >= 1
        assert result.problem


async def test_a_lost_record_between_two_parts_is_mended_as_well(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        result = await take_in(bench, [U1, A1, {**U2, "parentUuid": "lost"}, A2], cut=2)
        assert await conversations(bench) == TOLD
        assert (result.mended, "lost" in result.problem) == (1, True)


@pytest.mark.parametrize("kind", ["compact_boundary", "microcompact_boundary"])
async def test_a_compaction_of_claude_is_one_conversation(tmp_path: Path, kind: str) -> None:
    about = {"type": "system", "subtype": kind, "sessionId": "s", "parentUuid": None, "uuid": "b"}
    boundary = {**about, "content": "Conversation compacted", "logicalParentUuid": "a1"}
    summary = claude("c", "b", "user", "Summary: one question.", isCompactSummary=True)
    async with serving(tmp_path) as bench:
        result = await take_in(bench, [U1, A1, boundary, summary, {**U2, "parentUuid": "c"}, A2])
        (one,) = await listed(bench)
        assert (one.turns, one.title, result.problem) == (5, "Question 1", "")
        assert await conversations(bench) == [[*TOLD[0][:2], ("user", "Summary: one question."), *TOLD[0][2:]]]


async def test_damaged_lines_of_codex_lose_nothing_that_is_whole(tmp_path: Path) -> None:
    torn = '{"timestamp":"2026-03-01T10:00:00.000Z","type":"event_msg","payload":{"type":"tok'
    records: list[Json | str] = [*CODEX[:9], torn + text(CODEX[9], CODEX[10]), *CODEX[11:]]
    async with serving(tmp_path) as bench:
        result = await take_in(bench, records)
        assert await conversations(bench) == CODEX_TOLD
        assert (result.unreadable, "2 complete records" in result.problem) == (1, True)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"a": 1}{"b": {"c": 2}}', [{"a": 1}, {"b": {"c": 2}}]),
        ('{"a": {"x": 1}, "t{"b": 2}', [{"b": 2}]),
        ('{"a": 1} {"b": 2', [{"a": 1}]),
        ('{"a": "{\\"b\\": 1}", "c', []),
        ('{"a": [{"b": 1}, {"b": 2}, {"c', []),
        ("\0\0", []),
        ("", []),
        ('{"a": NaN}{"b": 2}', [{"b": 2}]),
        ("{" * 5000, []),
    ],
)
def test_whole_objects_are_found_on_a_damaged_line(line: str, found: list[Json]) -> None:
    assert objects(line) == found
