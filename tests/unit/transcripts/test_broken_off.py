"""Replies that end without their end are stored as far as they came."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from services.transcripts.operations.conversations import TranscriptNode, TranscriptStats
from services.transcripts.operations.intake import IngestResult, TranscriptRecord
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user
from tests.unit.transcripts.test_layouts import conversations

ASKED: Json = {"model": "m", "messages": [user("How many arms?")]}
TOLD = [[("user", "How many arms?"), ("assistant", "Five arms")]]


def sse(*events: Json | str) -> str:
    return "".join(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events)


def chunk(text: str, **more: Any) -> Json:
    return {"model": "m", "choices": [{"index": 0, "delta": {"content": text}, **more}]}


CHAT = (chunk("Five "), chunk("arms"))
MESSAGES = (
    {"type": "message_start", "message": {"model": "m", "role": "assistant", "usage": {"input_tokens": 3}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Five "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "arms"}},
)
RESPONSE = (
    {"type": "response.created", "response": {"id": "resp_1", "model": "m", "output": [], "status": "in_progress"}},
    {"type": "response.output_text.delta", "item_id": "i", "delta": "Five "},
    {"type": "response.output_text.delta", "item_id": "i", "delta": "arms"},
)
GEMINI = tuple(
    {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}]} for text in ("Five ", "arms")
)
OLLAMA = "".join(
    json.dumps({"model": "m", "message": assistant(text), "done": False}) + "\n" for text in ("Five ", "arms")
)
STREAMS: dict[str, tuple[str, Json, str]] = {
    "openai": ("openai", ASKED, sse(*CHAT)),
    "anthropic": ("anthropic", ASKED, sse(*MESSAGES)),
    "responses": ("openai", {"model": "m", "input": "How many arms?"}, sse(*RESPONSE)),
    "gemini": ("gemini", {"contents": [{"role": "user", "parts": [{"text": "How many arms?"}]}]}, sse(*GEMINI)),
    "ollama": ("ollama", ASKED, OLLAMA),
}


async def record(bench: Bench, provider: str, request: Json, reply: bytes, **more: Any) -> IngestResult:
    body = json.dumps(request).encode()
    return await bench.call(TranscriptRecord(provider=provider, request=body, response=reply, **more))


@pytest.mark.parametrize("cut", ["", 'data: {"choices": [{"de', "data: ", "dat", '{"model'])
@pytest.mark.parametrize(("provider", "request_", "stream"), STREAMS.values(), ids=STREAMS)
async def test_a_stream_whose_connection_broke_is_stored_as_far_as_it_came(
    tmp_path: Path, provider: str, request_: Json, stream: str, cut: str
) -> None:
    if (provider == "ollama" and "data" in cut) or (provider != "ollama" and cut.startswith("{")):
        return
    async with serving(tmp_path) as bench:
        result = await record(bench, provider, request_, (stream + cut).encode(), partial=True)
        assert (result.errors, result.accepted) == ([], 1)
        assert await conversations(bench) == TOLD
        node = await bench.call(TranscriptNode(hash=result.head_hash))
        assert node is not None
        assert node.stop_reason.lower() == "interrupted"
        # Without such a break, half a reply is not a reply.
        assert "broke off" in (await record(bench, provider, request_, stream.encode())).errors[0]


async def test_a_compressed_stream_that_broke_off_is_stored(tmp_path: Path) -> None:
    data = gzip.compress(sse(*CHAT).encode())[:-12]
    async with serving(tmp_path) as bench:
        await record(bench, "openai", ASKED, data, response_encoding="gzip", partial=True)
        ((_, (_, said)),) = await conversations(bench)
        assert said.startswith("Five")


@pytest.mark.parametrize(
    "stream",
    [
        sse(*CHAT, "[DONE]"),
        sse(*CHAT, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, "[DONE]"),
        sse(*CHAT, chunk("", finish_reason=None), "[DONE]"),
        sse(*CHAT, "[DONE]").replace("data: ", "data:"),
    ],
)
async def test_a_stream_that_ends_with_done_alone_is_whole(tmp_path: Path, stream: str) -> None:
    async with serving(tmp_path) as bench:
        assert (await record(bench, "openai", ASKED, stream.encode())).errors == []
        assert await conversations(bench) == TOLD
        posted = await post(bench, {"provider": "openai", "request": ASKED, "response": stream})
        assert (posted.errors, posted.nodes) == ([], 0)


async def test_an_empty_stream_is_not_stored_as_a_reply(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        for stream in (sse("[DONE]"), sse(chunk(""), "[DONE]"), ": wait\n\n", "data: {"):
            assert (await record(bench, "openai", ASKED, stream.encode(), partial=True)).accepted == 0
        assert (await bench.call(TranscriptStats())).total_nodes == 0


async def test_the_next_request_continues_a_partially_stored_reply(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await record(bench, "openai", ASKED, sse(*CHAT).encode(), partial=True)
        await post(bench, payload([user("How many arms?"), assistant("Five arms"), user("Go on")], "Yes"))
        assert await conversations(bench) == [[*TOLD[0], ("user", "Go on"), ("assistant", "Yes")]]
