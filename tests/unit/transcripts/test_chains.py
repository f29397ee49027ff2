"""Turns of an API that stores its conversations (Responses) are one conversation, although each sends only the new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.transcripts.operations.conversations import TranscriptDelete, TranscriptList, TranscriptStats
from services.transcripts.operations.intake import TranscriptRecord
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, post, serving
from tests.unit.transcripts.test_cases import turns
from tests.unit.transcripts.test_layouts import conversations, take_in
from tests.unit.transcripts.test_listing import listed

CASES = Path(__file__).parents[4] / "shared/cases/reports/second/cases.json"


def turn(asked: str, number: int, follows: int | None = None, **more: Any) -> Json:
    """A turn whose reply has this number; `follows` is the number of the reply before."""
    before = {} if follows is None else {"previous_response_id": f"resp_{follows}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"Reply {number}"}]}
    return {
        "provider": "openai",
        "request": {"model": "m", "input": asked, **before, **more},
        "response": {"id": f"resp_{number}", "model": "m", "status": "completed", "output": [said]},
    }


def told(*numbers: int) -> list[tuple[str, str]]:
    return [each for number in numbers for each in (("user", f"ask {number}"), ("assistant", f"Reply {number}"))]


def ask(number: int, follows: int | None = None, **more: Any) -> Json:
    return turn(f"ask {number}", number, follows, **more)


CHAINS: dict[str, tuple[list[Json], list[list[tuple[str, str]]], int]] = {
    "three turns": ([ask(1), ask(2, 1), ask(3, 2)], [told(1, 2, 3)], 1),
    "two answers to one reply": ([ask(1), ask(2, 1), ask(3, 1)], [told(1, 2), told(1, 3)], 1),
    "the same question to one reply twice": (
        [ask(1), turn("ask 2", 2, 1), turn("ask 2", 4, 1)],
        [told(1, 2), [*told(1), ("user", "ask 2"), ("assistant", "Reply 4")]],
        1,
    ),
    "a reply that was not recorded": ([ask(5, 4), ask(6, 5)], [told(5, 6)], 1),
    "two chains that begin alike": (
        [turn("hi", 1), turn("hi", 2), ask(3, 1), ask(4, 2)],
        [[("user", "hi"), ("assistant", "Reply 1"), *told(3)], [("user", "hi"), ("assistant", "Reply 2"), *told(4)]],
        1,
    ),
    "a conversation": ([ask(n, conversation="conv_1") for n in (1, 2, 3)], [told(1, 2, 3)], 1),
    "a conversation as an object": ([ask(n, conversation={"id": "conv_1"}) for n in (1, 2)], [told(1, 2)], 1),
    "two conversations": ([ask(1, conversation="a"), ask(2, conversation="b")], [told(1), told(2)], 2),
    "all delivered twice": (
        [ask(n, conversation="a") for n in (1, 2)] * 2 + [ask(3, 2), ask(3, 2), ask(4, conversation="a")],
        [told(1, 2, 3), told(1, 2, 4)],
        1,
    ),
}


@pytest.mark.parametrize(("given", "expected", "count"), CHAINS.values(), ids=CHAINS)
async def test_a_turn_continues_the_one_that_it_names(
    tmp_path: Path, given: list[Json], expected: list[list[tuple[str, str]]], count: int
) -> None:
    async with serving(tmp_path / "posted") as bench:
        for each in given:
            assert (await post(bench, each)).errors == []
        assert await conversations(bench) == sorted(expected)
        assert len(await listed(bench)) == count
    async with serving(tmp_path / "batch") as bench:
        await post(bench, given)
        assert await conversations(bench) == sorted(expected)
    async with serving(tmp_path / "file") as bench:
        await take_in(bench, given)
        assert await conversations(bench) == sorted(expected)
        assert (await take_in(bench, given, "/copy")).nodes == 0
        assert len(await listed(bench)) == count


async def test_a_chain_continues_after_a_restart(tmp_path: Path) -> None:
    for each in (ask(1), ask(2, 1), ask(3, 2)):
        async with serving(tmp_path) as bench:
            await post(bench, each)
            (one,) = await listed(bench)
    assert one.turns == 6


async def record(bench: Bench, each: Json, response: bytes) -> None:
    request = json.dumps(each["request"]).encode()
    result = await bench.call(TranscriptRecord(provider="openai", request=request, response=response))
    assert result.errors == []


def streamed(each: Json) -> bytes:
    events = [{"type": "response.created", "response": {**each["response"], "output": [], "status": "in_progress"}},
              {"type": "response.completed", "response": each["response"]}]  # fmt: skip
    return b"".join(b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


async def test_streamed_replies_are_continued(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for each in (ask(1), ask(2, 1)):
            await record(bench, each, streamed(each))
        (one,) = await listed(bench)
        assert await turns(bench, one) == told(1, 2)


async def test_a_reply_that_comes_later_is_continued_as_well(tmp_path: Path) -> None:
    background = {"id": "resp_1", "model": "m", "status": "queued", "output": []}
    async with serving(tmp_path) as bench:
        await record(bench, ask(1), json.dumps(background).encode())
        await post(bench, ask(2, 1))
        (one,) = await listed(bench)
        assert await turns(bench, one) == [("user", "ask 1"), *told(2)]


async def test_the_reported_chain_is_one_conversation(tmp_path: Path) -> None:
    if not CASES.exists():
        pytest.skip("the shared cases are not beside this checkout")
    async with serving(tmp_path) as bench:
        for number, each in enumerate(json.loads(CASES.read_text())["responses_api_chain"]):
            reply = ask(number)["response"] | {"id": each["response_id"]}
            await record(bench, each, json.dumps(reply).encode())
        (one,) = await listed(bench)
        assert [text for role, text in await turns(bench, one) if role == "user"] == [
            "why are yaks shaggy", "and musk oxen",
        ]  # fmt: skip


async def test_a_turn_after_a_deleted_reply_starts_a_conversation(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await post(bench, ask(1))
        (one,) = await listed(bench)
        await bench.call(TranscriptDelete(conversation=one.id))
        await post(bench, ask(2, 1))
        assert await conversations(bench) == [told(2)]
        assert (await bench.call(TranscriptStats())).total_nodes == 2
        assert (await bench.call(TranscriptList())).total == 1
