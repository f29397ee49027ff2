"""Tokens that session files state are counted once for each call of a model, wherever in the file they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.transcripts.rig import Json, serving
from tests.unit.transcripts.test_layouts import claude, codex, item, spoken, take_in
from tests.unit.transcripts.test_listing import listed

META = codex("session_meta", id="s", cwd="/p")
MODEL = codex("turn_context", model="gpt-5.1-codex", cwd="/p")
ASK, ANSWER = spoken("user", "List them"), spoken("assistant", "Two.")
THOUGHT = item("reasoning", summary=[], encrypted_content="x")


def call(name: str) -> list[Json]:
    return [item("function_call", name="shell", arguments="{}", call_id=name)]


def output(name: str) -> list[Json]:
    return [item("function_call_output", call_id=name, output="x")]


def used(sent: int, answered: int, cached: int = 0) -> Json:
    return {"input_tokens": sent, "output_tokens": answered, "cached_input_tokens": cached,
            "total_tokens": sent + answered}  # fmt: skip


def event(total: Json | None, last: Json | None) -> Json:
    info = {"total_token_usage": total, "last_token_usage": last}
    return codex("event_msg", type="token_count", info={key: value for key, value in info.items() if value})


def record(id_: str, usage: Json) -> Json:
    return codex("token_usage_record", thread_id="s", turn_id="t", response_id=id_, usage=usage)


ONE, TWO = event(used(100, 10), used(100, 10)), event(used(250, 30), used(150, 20))
NONE = codex("event_msg", type="token_count", info=None, rate_limits={})
COMPACTED = event(used(250, 30), {"input_tokens": 0, "output_tokens": 0, "total_tokens": 9000})

CODEX_FILES: dict[str, list[Json]] = {
    "after the reply": [ASK, *call("a"), ONE, *output("a"), ANSWER, TWO],
    "after the tool's output": [ASK, *call("a"), *output("a"), ONE, ANSWER, TWO],
    "before the reply": [ASK, ONE, *call("a"), *output("a"), TWO, ANSWER],
    "after the next question": [ASK, *call("a"), *output("a"), ANSWER, ASK, ONE, TWO],
    "repeated": [ASK, NONE, *call("a"), ONE, ONE, *output("a"), ONE, ANSWER, TWO, TWO, COMPACTED, NONE],
    "sums alone": [ASK, *call("a"), event(used(100, 10), None), *output("a"), ANSWER, event(used(250, 30), None)],
    "last alone": [ASK, *call("a"), event(None, used(100, 10)), *output("a"), event(None, used(100, 10)), ANSWER,
                   event(None, used(150, 20))],
    "two calls of one size without a sum": [ASK, *call("a"), event(None, used(125, 15)), *output("a"), ANSWER,
                                            event(None, used(125, 15))],
    "flat": [ASK, *call("a"), codex("event_msg", type="token_count", **used(100, 10)), *output("a"), ANSWER,
             codex("event_msg", type="token_count", **used(150, 20))],
    "a compaction repeats replies": [ASK, *call("a"), ONE, *output("a"), ANSWER, TWO, codex(
        "compacted", message="", replacement_history=[ASK["payload"], spoken("assistant", "So far.")["payload"]])],
    "an event is missing": [ASK, *call("a"), *output("a"), ANSWER, TWO],
    "an event in the middle is missing": [ASK, *call("a"), event(used(50, 5), used(50, 5)), *output("a"), *call("b"),
                                          *output("b"), ANSWER, TWO],
    "the sum started again": [ASK, *call("a"), event(used(200, 25), used(200, 25)), *output("a"), ANSWER,
                              event(used(50, 5), used(50, 5))],
    "two calls of one reply": [ASK, *call("a"), *output("a"), *call("b"), *output("b"), ONE, ANSWER, TWO],
    "only thought": [ASK, THOUGHT, ONE, ASK, ANSWER, TWO],
    "records": [ASK, *call("a"), record("r1", used(100, 10)), ONE, *output("a"), ONE, ANSWER,
                record("r2", used(150, 20)), TWO],
    "records after events": [ASK, *call("a"), ONE, record("r1", used(100, 10)), *output("a"), ANSWER, TWO,
                             record("r2", used(150, 20))],
    "records repeated": [ASK, *call("a"), record("r1", used(100, 10)), record("r1", used(100, 10)), *output("a"),
                         ANSWER, record("r2", used(150, 20))],
    "records of a newer version": [ASK, *call("a"), ONE, *output("a"), MODEL, ANSWER, record("r2", used(150, 20)), TWO],
    "unknown lines": [ASK, codex("world_state", a=1), *call("a"), ONE, *output("a"), codex("inter_agent", b=[]), ANSWER,
                      TWO],
}  # fmt: skip


@pytest.mark.parametrize("lines", CODEX_FILES.values(), ids=CODEX_FILES)
async def test_codex_calls_are_counted_once_in_any_position(tmp_path: Path, lines: list[Json]) -> None:
    async with serving(tmp_path) as bench:
        result = await take_in(bench, [META, MODEL, *lines])
        assert (result.unreadable, result.problem) == (0, "")
        (one,) = await listed(bench)
        assert ((one.tokens.input, one.tokens.output), one.tokens.estimated) == ((250, 30), False)
        assert one.cost_usd == pytest.approx(250 * 1.25e-6 + 30 * 10e-6, abs=1e-6)


@pytest.mark.parametrize("lines", CODEX_FILES.values(), ids=CODEX_FILES)
async def test_codex_calls_are_counted_once_while_the_file_grows(tmp_path: Path, lines: list[Json]) -> None:
    whole = [META, MODEL, *lines]
    async with serving(tmp_path) as bench:
        for cut in range(3, len(whole)):
            await take_in(bench, whole, f"/{cut}", cut=cut)
            (one,) = await listed(bench)
            assert ((one.tokens.input, one.tokens.output), one.tokens.estimated) == ((250, 30), False), cut


@pytest.mark.parametrize("figure", [-5, 10**30, 1e300, "7", None, True])
async def test_impossible_token_counts_do_not_break_a_list(tmp_path: Path, figure: object) -> None:
    odd = {"input_tokens": figure, "output_tokens": figure}
    async with serving(tmp_path) as bench:
        await take_in(bench, [META, MODEL, ASK, ANSWER, event(odd, odd)])
        (one,) = await listed(bench)
        assert one.tokens.input >= 0


async def test_interrupted_codex_calls_are_estimated(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, [META, MODEL, ASK, *call("a"), ONE, *output("a"), ANSWER])
        (one,) = await listed(bench)
        assert one.tokens.estimated
        assert one.tokens.input > 100


async def test_a_forked_codex_session_counts_only_its_own_calls(tmp_path: Path) -> None:
    history = [ASK, *call("a"), ONE, *output("a"), ANSWER, TWO]
    fork = codex("session_meta", id="f", cwd="/fork", forked_from_id="s")
    more = [spoken("user", "And?"), spoken("assistant", "No more."), event(used(650, 35), used(400, 5))]
    async with serving(tmp_path) as bench:
        await take_in(bench, [META, MODEL, *history], "/s")
        await take_in(bench, [fork, META, MODEL, *history, *more], "/f")
        found = await listed(bench, sort="turns")
        assert [(one.project, one.tokens.input, one.tokens.output, one.tokens.estimated) for one in found] == [
            ("/fork", 400, 5, False), ("/p", 250, 30, False),
        ]  # fmt: skip


GEMINI_META = {"sessionId": "g", "projectHash": "p", "startTime": "x", "kind": "main"}


def gemini(id_: str, said: str, **tokens: int) -> Json:
    more: Json = {"model": "gemini-2.5-pro", "tokens": tokens} if tokens else {}
    kind = "gemini" if id_.startswith("m") else "user"
    return {"id": id_, "type": kind, "timestamp": "2026-03-01T10:00:00Z", "content": said, **more}


U1, U2 = gemini("u1", "How do tides work?"), gemini("u2", "And neap tides?")
M1, M2 = (
    gemini("m1", "The moon.", input=100, output=20, thoughts=30, total=150),
    gemini("m2", "Sun.", input=9, output=1),
)
GEMINI_FILES: dict[str, tuple[list[Json], tuple[int, int], int]] = {
    "set": ([{"$set": {"messages": [U1, M1]}}, U2, M2], (109, 51), 4),
    "set twice": ([{"$set": {"messages": [U1]}}, {"$set": {"messages": [U1, M1, U2], "lastUpdated": "y"}}, M2],
                  (109, 51), 4),
    "a checkpoint between": ([U1, M1, {"$set": {"messages": [U1, M1]}}, U2, {"$set": {"summary": "Tides"}}, M2],
                             (109, 51), 4),
    "a checkpoint with a rewritten message": (
        [U1, gemini("m1", "The"), {"$set": {"messages": [U1, M1, U2]}}, M2], (109, 51), 4),
    "rewritten in the middle": ([U1, gemini("m1", "The"), U2, M1, M2], (109, 51), 4),
    "rewritten late": ([U1, M1, gemini("u2", "And nap tides?"), M2, gemini("u3", "Thanks"), U2], (109, 51), 5),
    "rewritten twice": ([U1, gemini("m1", "T"), gemini("m1", "The", input=1), U2, M2, M1], (109, 51), 4),
    "tools": ([U1, gemini("m1", "The moon.", input=60, tool=40, output=20, thoughts=30), U2, M2], (109, 51), 4),
    "only thought": ([U1, gemini("m0", "", input=40, output=1, thoughts=1), U2, M2], (49, 3), 3),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "tokens", "turns"), GEMINI_FILES.values(), ids=GEMINI_FILES)
async def test_gemini_messages_are_kept_once_with_their_tokens(
    tmp_path: Path, lines: list[Json], tokens: tuple[int, int], turns: int
) -> None:
    whole = [GEMINI_META, *lines]
    for cut in (0, *range(2, len(whole))):
        async with serving(tmp_path / str(cut)) as bench:
            result = await take_in(bench, whole, cut=cut)
            assert (result.unreadable, result.problem) == (0, "")
            (one,) = await listed(bench)
            assert ((one.tokens.input, one.tokens.output), one.tokens.estimated, one.turns) == (tokens, False, turns), (
                cut
            )


async def test_a_gemini_checkpoint_is_a_conversation(tmp_path: Path) -> None:
    setup = {"role": "user", "parts": [{"text": "This is the Gemini CLI. We are setting up the context for our chat."}]}
    async with serving(tmp_path) as bench:
        for name, key in (("tides", "history"), ("stars", "clientHistory")):
            said = [
                {"role": "user", "parts": [{"text": f"Why {name}?"}]},
                {"role": "model", "parts": [{"text": "So."}]},
            ]
            await take_in(bench, [{key: [setup, *said], "authType": "x"}], f"/{name}")
        assert sorted(one.title for one in await listed(bench)) == ["Why stars?", "Why tides?"]


def block(kind: str, text: str) -> list[Json]:
    return [{"type": kind, kind: text}]


CLAUDE_FILES: dict[str, tuple[list[Json], int]] = {
    "only thought": ([claude("a1", "u1", "assistant", block("thinking", "Hm."), id="m1")], 1),
    "thought, then spoken as another message": (
        [claude("a1", "u1", "assistant", block("thinking", "Hm."), id="m1"),
         claude("a2", "a1", "assistant", block("text", "Five."), id="m2")], 2),
    "one message in two places": (
        [claude("a1", "u1", "assistant", block("text", "Five."), id="m1"),
         claude("u2", "a1", "user", "And?"),
         claude("a2", "a1", "assistant", block("text", "Or six."), id="m1")], 1),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "calls"), CLAUDE_FILES.values(), ids=CLAUDE_FILES)
async def test_claude_calls_without_text_are_counted_too(tmp_path: Path, lines: list[Json], calls: int) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, [claude("u1", None, "user", "How many arms?"), *lines])
        (one,) = await listed(bench)
        assert ((one.tokens.input, one.tokens.output), one.tokens.estimated) == ((7 * calls, 5 * calls), False)


async def test_a_claude_message_that_grows_is_counted_once_as_last_stated(tmp_path: Path) -> None:
    above = ("u1", "a1", "a2")
    parts = [claude(f"a{n}", above[n - 1], "assistant", block("text", f"{n}."), id="m1") for n in (1, 2, 3)]
    for n, part in enumerate(parts, 1):
        part["message"]["usage"] = {"input_tokens": 100, "output_tokens": 10 * n}
    whole = [claude("u1", None, "user", "How many arms?"), *parts, claude("u2", "a3", "user", "Thanks")]
    for cut in range(1, len(whole)):
        async with serving(tmp_path / str(cut)) as bench:
            await take_in(bench, whole, cut=cut)
            (one,) = await listed(bench)
            assert ((one.tokens.input, one.tokens.output), one.tokens.estimated, one.turns) == ((100, 30), False, 3), (
                cut
            )


@pytest.mark.parametrize(
    ("cache", "cost"),
    [
        ({"ephemeral_5m_input_tokens": 1_000_000}, 3.75),
        ({"ephemeral_1h_input_tokens": 1_000_000}, 6),
        ({"ephemeral_5m_input_tokens": 400_000, "ephemeral_1h_input_tokens": 600_000}, 0.4 * 3.75 + 0.6 * 6),
        ({}, 3.75),
    ],
)
async def test_claude_cache_writes_cost_by_their_duration(tmp_path: Path, cache: Json, cost: float) -> None:
    reply: dict[str, Any] = claude("a1", "u1", "assistant", block("text", "Five."), id="m1")
    reply["message"] |= {
        "model": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "usage": {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 1_000_000,
                  **({"cache_creation": cache} if cache else {})},
    }  # fmt: skip
    async with serving(tmp_path) as bench:
        await take_in(bench, [claude("u1", None, "user", "How many arms?"), reply])
        assert [one.cost_usd for one in await listed(bench)] == [pytest.approx(cost)]
