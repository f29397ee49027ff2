"""A conversation that goes from one agent to the next, and back to the first, comes back with all its turns."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.transcripts.messages import image, text_block, tool_result, tool_use
from services.transcripts.operations.carry import Target
from services.transcripts.operations.conversations import TranscriptStats
from services.transcripts.writers import ReadTurn
from tests.unit.transcripts.rig import Json, serving
from tests.unit.transcripts.test_layouts import CLAUDE, CODEX, GEMINI_LINES, OLD_CODEX, claude, take_in
from tests.unit.transcripts.writers.rig import FORMATS, converted, listed, read, records, session, stored, told, turn

CHAINS = [("codex", "gemini", "claude"), ("gemini", "claude", "codex"), ("claude", "codex", "gemini")]

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
IDS = st.sampled_from(["", "a", "call_1", "x.y:z", "n" * 80, "ü"])
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
MEDIA = st.sampled_from(["", "image/png", "image/svg+xml", "application/pdf", "audio/wav"])
BLOCKS = st.one_of(
    st.builds(text_block, TEXTS | st.sampled_from(["<environment_context>", "/help", "```", "<task-notification>"])),
    st.builds(tool_use, IDS, IDS, OBJECTS),
    st.builds(tool_result, IDS, TEXTS, is_error=st.booleans()),
    st.builds(
        image, url=st.sampled_from(["", "https://x/y.png", "file-1"]), data=st.sampled_from(["", "iVBORw0KGgo=", "%"]),
        media_type=MEDIA,
    ),
)  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> list[ReadTurn]:
    found = []
    for number in range(draw(st.integers(1, 7))):
        role = draw(st.sampled_from(["user", "assistant", "tool", "function"]))
        of_reply: dict[str, Any] = {}
        if role == "assistant":
            of_reply = {
                "thinking": draw(st.lists(OBJECTS, max_size=1)),
                "usage": draw(st.none() | st.just({"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12})),
                "stop_reason": draw(st.sampled_from(["", "end_turn", "STOP"])),
            }
        content = draw(st.lists(BLOCKS, min_size=1, max_size=4))
        at, model = draw(st.floats(0, 4e9)), draw(st.sampled_from(["", "gpt-x", "<synthetic>"]))
        found.append(turn(number, role, *content, at=round(at, 6), model=model, **of_reply))
    return found


@pytest.mark.parametrize("agent", FORMATS)
@given(turns=conversations())
@settings(max_examples=150, deadline=None)
def test_a_layout_reads_the_very_turns_that_were_written(agent: str, turns: list[ReadTurn]) -> None:
    assert read(agent, records(agent, turns)) == told(turns)


@pytest.mark.parametrize("agent", FORMATS)
def test_the_formats_themselves_hold_texts_calls_results_and_times(agent: str) -> None:
    """The other agent sees the same, since it does not know the field."""
    turns = [
        turn(1, "user", text_block("How many arms has a sea star? ✨"), at=1_772_359_200.25),
        turn(2, "assistant", text_block("Let me look."), tool_use("t1", "Read", {"path": {"of": ["star", 1, None]}})),
        turn(3, "tool", tool_result("t1", "five\narms")),
        turn(4, "assistant", text_block("Five."), at=1_772_359_203.5),
        turn(5, "user", text_block("And this one?"), image(data="iVBORw0KGgo=", media_type="image/png")),
    ]
    found = read(agent, records(agent, turns), without_field=True)
    assert [("tool" if index == 2 else each[0], each[1], each[3]) for index, each in enumerate(found)] == [
        (each.role, each.content, each.at) for each in turns
    ]


def test_names_and_ids_that_an_api_refuses_are_replaced_alike_in_calls_and_results() -> None:
    turns = [turn(1, "assistant", tool_use("a.b:c", "mcp:x y", {"k": 1})), turn(2, "user", tool_result("a.b:c", "1"))]
    called, answered = (record["message"]["content"][0] for record in records("claude", turns)[:2])
    assert (called["id"], called["name"], answered["tool_use_id"]) == ("a_b_c", "mcp_x_y", "a_b_c")
    assert read("claude", records("claude", turns)) == told(turns)


def long_conversation(count: int) -> list[Json]:
    """A session file of Claude Code with all that such files have."""
    chance = random.Random(7)
    found: list[Json] = []
    parent: str | None = None
    for number in range(count // 4):
        names = [f"{kind}{number}" for kind in ("u", "a", "b", "r")]
        calls = [
            {"type": "tool_use", "id": f"t{number}-{each}", "name": chance.choice(["Read", "mcp__x__y"]),
             "input": {"path": "ü" * each, "deep": {"of": [each, None, {"é": 1.5, "∞": True}]}}}
            for each in range(chance.randint(1, 3))
        ]  # fmt: skip
        said = [{"type": "text", "text": f"Let me look at {number}: 日本語 🌊"}, *calls]
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
        output = "line\n" * chance.choice([1, 10, 20_000 if number % 100 == 0 else 3])
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": output, "is_error": chance.random() < 0.2}
            for call in calls
        ]
        if number % 50 == 0:
            results.append({"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}})  # fmt: skip
        typed = f"Question {number}" if number % 10 else [{"type": "text", "text": f"Q {number}"}, results[-1]]
        at = f"2026-03-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z"
        found += [
            claude(names[0], parent, "user", typed if isinstance(typed, str) else [typed[0]], timestamp=at),
            claude(names[1], names[0], "assistant", [thought, *said], id=f"m{number}", timestamp=at),
            claude(names[2], names[1], "user", results, timestamp=at),
            claude(names[3], names[2], "assistant", [{"type": "text", "text": "Done."}], id=f"n{number}", timestamp=at),
        ]
        parent = names[3]
    return found


FILES: dict[str, list[Json]] = {
    "claude": CLAUDE, "codex": CODEX, "old codex": OLD_CODEX, "gemini": GEMINI_LINES, "long": long_conversation(4000),
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
@pytest.mark.parametrize("name", FILES)
async def test_turns_come_back_from_a_chain_of_agents(tmp_path: Path, name: str, chain: tuple[str, ...]) -> None:
    async with serving(tmp_path / "0") as bench:
        await take_in(bench, FILES[name])
        before = [(one, await stored(bench, one)) for one in await listed(bench)]
    assert len(before) == 1
    for about, turns in before:
        first, given = told(turns), turns
        for number, agent in enumerate(chain, 1):
            # Nothing here knows the conversation but from the file of the agent before.
            async with serving(tmp_path / f"{number}") as bench:
                result = await take_in(bench, records(agent, given, session(about.title)), source=f"/{agent}")
                assert (result.unreadable, result.mended, result.problem) == (0, 0, "")
                (one,) = await listed(bench)
                given = await stored(bench, one)
                assert told(given) == first, agent
                assert one.title == about.title


@pytest.mark.parametrize("agent", FORMATS)
async def test_parts_of_a_conversation_are_converted_like_the_whole(
    tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, long_conversation(200))
        (one,) = await listed(bench)
        to = session(one.title)
        whole = await converted(bench, one, Target(agent), to)
        assert [json.loads(line) for line in whole.splitlines()] == records(agent, await stored(bench, one), to)
        monkeypatch.setattr("services.transcripts.transfer.PAGE_BYTES", 2000)
        assert await converted(bench, one, Target(agent), to) == whole


@pytest.mark.parametrize("agent", FORMATS)
async def test_a_copy_that_is_read_where_it_came_from_adds_nothing(tmp_path: Path, agent: str) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, CODEX)
        (before,) = await listed(bench)
        nodes = (await bench.call(TranscriptStats())).total_nodes
        copy = records(agent, await stored(bench, before))
        for cut in range(len(copy)):
            result = await take_in(bench, copy, source=f"/{agent}/{cut}", cut=cut)
            assert (result.nodes, result.mended) == (0, 0)
        assert (await bench.call(TranscriptStats())).total_nodes == nodes
        assert await listed(bench) == [before]


def said_next(agent: str, copy: list[Json], session_id: str) -> list[Json]:
    """What the agent adds to a session that it resumes."""
    if agent == "claude":
        last = [record["uuid"] for record in copy if "uuid" in record][-1]
        return [
            claude("x1", last, "user", "And a crab?", sessionId=session_id),
            claude("x2", "x1", "assistant", [{"type": "text", "text": "None."}], id="x", sessionId=session_id),
        ]
    if agent == "codex":

        def item(role: str, text: str) -> Json:
            kind = "output_text" if role == "assistant" else "input_text"
            payload = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
            return {"timestamp": "2026-03-02T10:00:00Z", "type": "response_item", "payload": payload}

        event = {"type": "user_message", "message": "And a crab?"}
        return [
            item("user", "And a crab?"),
            {"timestamp": "2026-03-02T10:00:00Z", "type": "event_msg", "payload": event},
            item("assistant", "None."),
        ]  # fmt: skip
    return [
        {"$set": {"sessionId": session_id}},
        {"id": "x1", "timestamp": "2026-03-02T10:00:00Z", "type": "user", "content": [{"text": "And a crab?"}]},
        {"id": "x2", "timestamp": "2026-03-02T10:00:00Z", "type": "gemini", "content": "None.", "model": "g"},
    ]


@pytest.mark.parametrize("agent", FORMATS)
async def test_what_is_said_after_it_continues_the_old_conversation(tmp_path: Path, agent: str) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, CLAUDE)
        (before,) = await listed(bench)
        turns = await stored(bench, before)
        to = session("Sea stars")
        copy = records(agent, turns, to)
        result = await take_in(bench, [*copy, *said_next(agent, copy, to.id)], source="/x", cut=len(copy))
        assert (result.nodes, result.mended) == (2, 0)
        found = {one.id: one for one in await listed(bench)}
        assert found.pop(before.id) == before
        (new,) = found.values()
        assert (new.turns, new.title) == (2, "Sea stars")
        # It is read with all that came before.
        whole = await stored(bench, new)
        assert told(whole)[:-2] == told(turns)
        assert [(each.role, each.content[0].text) for each in whole[-2:]] == [
            ("user", "And a crab?"), ("assistant", "None."),
        ]  # fmt: skip
        # And may go on in the next agent.
        again = await take_in(bench, records("gemini", whole), source="/y")
        assert again.nodes == 0


async def test_tokens_of_a_copy_are_not_counted_again_and_new_ones_are(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, GEMINI_LINES)
        (before,) = await listed(bench)
        to = session()
        copy = records("codex", await stored(bench, before), to)
        info = {"last_token_usage": {"input_tokens": 70, "output_tokens": 30, "total_tokens": 100}}
        spent = {"type": "event_msg", "payload": {"type": "token_count", "info": info}}
        await take_in(bench, [*copy, spent, *said_next("codex", copy, to.id)], source="/x")
        found = {one.id: one for one in await listed(bench)}
        assert found.pop(before.id) == before
        (new,) = found.values()
        assert (new.tokens.input, new.tokens.output) == (70, 30)
    # A Linckia that has only the copy counts nothing that another session spent.
    async with serving(tmp_path / "other") as bench:
        await take_in(bench, copy)
        (one,) = await listed(bench)
        assert (one.tokens.input, one.tokens.output, one.tokens.estimated) == (0, 0, False)


async def test_a_record_that_was_changed_is_a_turn_of_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, CLAUDE)
        (before,) = await listed(bench)
        copy = records("claude", await stored(bench, before))
        copy[0]["message"]["content"] = "How many arms has a crab?"
        assert (await take_in(bench, copy, source="/x")).nodes >= 1
        texts = [[block.text for each in await stored(bench, one) for block in each.content]
                 for one in await listed(bench)]  # fmt: skip
        assert any("How many arms has a crab?" in each for each in texts)
        assert before in await listed(bench)


@pytest.mark.parametrize("field", [
    7, "x", {}, {"turn": "z" * 64}, {"turn": "0" * 64, "content": [{"type": 3}]}, {"turn": "0" * 64, "then": 5},
    {"turn": "0" * 64, "at": "later"}, {"turn": "0" * 64, "role": ["user"]},
])  # fmt: skip
@pytest.mark.parametrize("agent", FORMATS)
def test_a_field_of_another_form_is_ignored(agent: str, field: object) -> None:
    turns = [turn(1, "user", text_block("Hello")), turn(2, "assistant", text_block("Hi"))]
    given = [{**record, "linckia": field} if "linckia" in record else record for record in records(agent, turns)]
    assert [each[:2] for each in read(agent, given)] == [each[:2] for each in told(turns)]
