"""Requests and replies of every provider become the same messages, streamed or not, repeated or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.transcripts.messages import Turn
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import Rejected, TurnPayload, turn_of

Json = dict[str, Any]


def turn(provider: str, request: Any, response: Any) -> Turn:
    return turn_of(TurnPayload(provider=provider, request=request, response=response))


def told(turn: Turn) -> list[tuple[str, list[Json]]]:
    """Return the role and blocks of each message; blocks leave out empty fields."""
    return [(message.role, [block_fields(block) for block in message.content]) for message in turn.messages]


def block_fields(block: Block) -> Json:
    fields = {name: getattr(block, name) for name in block.__struct_fields__ if getattr(block, name)}
    return {"text": fields["text"]} if set(fields) == {"type", "text"} else fields


def sse(*events: Json, named: bool = False) -> str:
    lines = [(f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join(lines) + ("" if named else "data: [DONE]\n\n")


ASKED: Json = {"model": "m", "messages": [{"role": "user", "content": "What time is it?"}]}
CALL = {"type": "tool_use", "tool_use_id": "c1", "tool_name": "now", "tool_input": {"zone": "UTC"}}

CHAT = {
    "id": "x", "model": "m-1",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": "Let me see.",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}],
    }}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12,
              "prompt_tokens_details": {"cached_tokens": 3}},
}  # fmt: skip
CHAT_STREAM = sse(
    {"id": "x", "model": "m-1", "object": "chat.completion.chunk",
     "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
    {"choices": [{"index": 0, "delta": {"content": "Let me"}}]},
    {"choices": [{"index": 0, "delta": {"content": " see."}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [
        {"index": 0, "id": "c1", "function": {"name": "now", "arguments": ""}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"zone": '}}]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '"UTC"}'}}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": CHAT["usage"]},
)  # fmt: skip

MESSAGES = {
    "id": "msg", "type": "message", "role": "assistant", "model": "m-1", "stop_reason": "tool_use",
    "content": [
        {"type": "thinking", "thinking": "A clock.", "signature": "s"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "now", "input": {"zone": "UTC"}},
    ],
    "usage": {"input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 7},
}  # fmt: skip
MESSAGES_STREAM = sse(
    {"type": "message_start", "message": {**MESSAGES, "content": [], "stop_reason": None,
                                          "usage": {"input_tokens": 2, "cache_read_input_tokens": 3}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "A clock."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": " see."}},
    {"type": "content_block_start", "index": 2,
     "content_block": {"type": "tool_use", "id": "c1", "name": "now", "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"zone": '}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"UTC"}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
    named=True,
)  # fmt: skip

OUTPUT = {
    "id": "r", "model": "m-1", "status": "completed",
    "output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"zone": "UTC"}'},
    ],
    "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 3}},
}  # fmt: skip
OUTPUT_STREAM = sse(
    {"type": "response.created", "response": {"id": "r"}},
    {"type": "response.output_text.delta", "delta": "Let"},
    *({"type": "response.output_item.done", "item": item} for item in OUTPUT["output"]),
    {"type": "response.completed", "response": OUTPUT},
    named=True,
)
RESPONSES_ASKED = {"model": "m", "input": "What time is it?", "instructions": "Be brief."}

CHATTED = {
    "model": "m-1", "done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 7,
    "message": {"role": "assistant", "content": "Let me see.",
                "tool_calls": [{"id": "c1", "function": {"name": "now", "arguments": {"zone": "UTC"}}}]},
}  # fmt: skip
CHATTED_STREAM = "\n".join(
    json.dumps(line)
    for line in (
        {"model": "m-1", "message": {"role": "assistant", "content": "Let me"}, "done": False},
        {"model": "m-1", "message": {"role": "assistant", "content": " see."}, "done": False},
        {**CHATTED, "message": {**CHATTED["message"], "content": ""}},  # type: ignore[dict-item]  # an object
    )
)

CONTENTS_ASKED: Json = {
    "model": "models/m", "contents": [{"role": "user", "parts": [{"text": "What time is it?"}]}],
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
}  # fmt: skip
CANDIDATE: Json = {
    "finishReason": "STOP",
    "content": {"role": "model", "parts": [
        {"text": "Hm.", "thought": True}, {"text": "Let me see."},
        {"functionCall": {"id": "c1", "name": "now", "args": {"zone": "UTC"}}},
    ]},
}  # fmt: skip
CONTENTS: Json = {
    "candidates": [CANDIDATE], "modelVersion": "m-1",
    "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "totalTokenCount": 12},
}  # fmt: skip
CHUNKS: list[Json] = [
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "Hm.", "thought": True}]}}]},
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "Let"}]}}], "usageMetadata": {}},
    {"candidates": [{"content": {"role": "model", "parts": [{"text": " me see."}]}}]},
    {**CONTENTS, "candidates": [{**CANDIDATE, "content": {"parts": CANDIDATE["content"]["parts"][2:]}}]},
]

EVERY = {
    "chat completions": ("openai", ASKED, CHAT),
    "chat completions, streamed": ("openai", ASKED, CHAT_STREAM),
    "chat completions, posted as text": ("openai", json.dumps(ASKED), json.dumps(CHAT)),
    "messages": ("anthropic", ASKED, MESSAGES),
    "messages, streamed": ("anthropic", ASKED, MESSAGES_STREAM),
    "messages, streamed with other line ends": ("anthropic", ASKED, MESSAGES_STREAM.replace("\n", "\r\n")),
    "responses": ("openai", RESPONSES_ASKED, OUTPUT),
    "responses, streamed": ("openai", RESPONSES_ASKED, OUTPUT_STREAM),
    "gemini": ("gemini", CONTENTS_ASKED, CONTENTS),
    "gemini, streamed": ("gemini", CONTENTS_ASKED, "".join(f"data: {json.dumps(each)}\r\n\r\n" for each in CHUNKS)),
    "gemini, the stream as an array": ("gemini", CONTENTS_ASKED, json.dumps(CHUNKS)),
    "gemini, as its command line wraps it": (
        "gemini",
        {"model": "m", "request": CONTENTS_ASKED},
        [{"response": each} for each in CHUNKS],
    ),
    "ollama": ("ollama", ASKED, CHATTED),
    "ollama, streamed": ("ollama", ASKED, CHATTED_STREAM),
    "ollama, the lines as a list": ("ollama", ASKED, [json.loads(line) for line in CHATTED_STREAM.split("\n")]),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_turn_is_the_same_whichever_api_it_went_through(name: str) -> None:
    found = turn(*EVERY[name])
    assert told(found) == [
        ("user", [{"text": "What time is it?"}]),
        ("assistant", [{"text": "Let me see."}, CALL]),
    ]
    reply = found.messages[-1]
    assert (found.model, reply.model, reply.reply) == ("m", "m-1", True)
    assert reply.stop_reason in ("tool_calls", "tool_use", "completed", "stop", "STOP")
    assert reply.usage is not None
    assert (reply.usage["prompt_tokens"], reply.usage["completion_tokens"], reply.usage["total_tokens"]) == (5, 7, 12)


def test_reasoning_is_kept_beside_the_message() -> None:
    for streamed in (MESSAGES, MESSAGES_STREAM):
        (_, reply) = turn("anthropic", ASKED, streamed).messages
        assert reply.thinking == [{"type": "thinking", "thinking": "A clock.", "signature": "s"}]


ECHOES: dict[str, tuple[str, Json, list[Json]]] = {
    "openai": ("openai", CHAT, [CHAT["choices"][0]["message"]]),  # type: ignore[index]  # a list
    "anthropic": ("anthropic", MESSAGES, [{"role": "assistant", "content": MESSAGES["content"][1:]}]),  # type: ignore[index]  # a list
    "ollama": ("ollama", CHATTED, [CHATTED["message"]]),  # type: ignore[list-item]  # an object
}


@pytest.mark.parametrize("provider", ECHOES)
def test_a_reply_and_its_echo_have_the_same_content(provider: str) -> None:
    name, reply, echo = ECHOES[provider]
    first = turn(name, ASKED, reply)
    again = turn(name, {"model": "m", "messages": [*ASKED["messages"], *echo]}, reply)
    assert again.messages[1].content == first.messages[1].content


def test_a_responses_reply_and_its_echo_have_the_same_content() -> None:
    echo = [{"role": "user", "content": "What time is it?"}, *OUTPUT["output"]]
    answered = {"type": "function_call_output", "call_id": "c1", "output": "12:00"}
    again = turn("openai", {"model": "m", "input": [*echo, answered]}, OUTPUT)
    assert again.messages[1].content == turn("openai", RESPONSES_ASKED, OUTPUT).messages[1].content
    assert told(again)[2] == ("tool", [{"type": "tool_result", "tool_result_id": "c1", "tool_output": "12:00"}])


def test_images_and_results_of_tools_are_kept() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    request = {
        "model": "m", "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "Look"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "is_error": True,
                                          "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
        ],
    }  # fmt: skip
    found = turn("anthropic", request, MESSAGES)
    assert found.system == "Be brief."
    assert told(found)[:2] == [
        ("user", [{"type": "image", "image_base64": "AAAA", "media_type": "image/png"}, {"text": "Look"}]),
        ("user", [{"type": "tool_result", "tool_result_id": "c1", "tool_output": "a\nb", "is_error": True}]),
    ]
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    seen = turn("openai", {"model": "m", "messages": [{"role": "user", "content": [part]}]}, CHAT)
    assert told(seen)[0] == ("user", [{"type": "image", "image_url": "https://example.org/a.png"}])


def test_the_provider_neutral_form_of_a_reply_is_accepted() -> None:
    block = {"type": "tool_use", "tool_use_id": "c1", "tool_name": "now", "tool_input": {"zone": "UTC"}}
    given = {"model": "m-1", "message": {"role": "assistant", "content": [{"type": "text", "text": "Hi"}, block]}}
    assert told(turn("anthropic", ASKED, given))[-1] == ("assistant", [{"text": "Hi"}, CALL])


def test_inline_data_of_gemini_is_left_out_and_tool_results_find_their_calls() -> None:
    contents = [
        {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA" * 100}}, {"text": "What?"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "a cat"}}}]},
    ]
    found = turn("gemini", {"contents": contents}, CONTENTS)
    assert told(found)[:3] == [
        ("user", [{"text": "[image/png of about 300 bytes, left out]"}, {"text": "What?"}]),
        ("assistant", [{"type": "tool_use", "tool_use_id": "look", "tool_name": "look"}]),
        ("tool", [{"type": "tool_result", "tool_result_id": "look", "tool_output": "a cat"}]),
    ]
    assert (found.model, found.provider) == ("m-1", "gemini")


def test_invalid_json_arguments_are_kept_as_text() -> None:
    broken = json.loads(json.dumps(CHAT).replace('{\\"zone\\": \\"UTC\\"}', '{\\"zone\\": \\"UT'))
    assert told(turn("openai", ASKED, broken))[-1][1][1]["tool_input"] == {"input": '{"zone": "UT'}


@pytest.mark.parametrize(
    ("provider", "request_", "response", "said"),
    [
        ("foo", ASKED, CHAT, r'^unsupported provider: "foo"$'),
        ("", ASKED, CHAT, r'^unsupported provider: ""$'),
        ("openai", None, CHAT, "cannot parse request: it is null"),
        ("openai", [], CHAT, "cannot parse request: it is an array"),
        ("openai", {}, CHAT, "cannot parse request: `messages` and `input`"),
        ("anthropic", {"messages": "x"}, MESSAGES, "cannot parse request: `messages`"),
        ("openai", ASKED, None, "cannot parse response: it is null"),
        ("openai", ASKED, {}, "cannot parse response: `choices` is missing or empty"),
        ("openai", ASKED, {"error": {"message": "no credit"}}, "the provider returned an error: no credit"),
        ("anthropic", ASKED, {"type": "error", "error": {"message": "busy"}}, "the provider returned an error: busy"),
        ("ollama", ASKED, {"error": "no such model"}, "the provider returned an error: no such model"),
        ("gemini", ASKED, CONTENTS, "cannot parse request: `contents` is missing or not an array"),
        ("gemini", CONTENTS_ASKED, {"promptFeedback": {"blockReason": "SAFETY"}}, "returned an error: SAFETY"),
        ("gemini", CONTENTS_ASKED, [{"error": {"message": "quota"}}], "the provider returned an error: quota"),
        ("gemini", CONTENTS_ASKED, CHUNKS[:3], "broke off"),
        ("openai", ASKED, CHAT_STREAM[: len(CHAT_STREAM) // 2], "cannot parse response"),
        ("anthropic", ASKED, MESSAGES_STREAM[: MESSAGES_STREAM.index("event: message_delta")], "broke off"),
        ("openai", RESPONSES_ASKED, OUTPUT_STREAM[: OUTPUT_STREAM.index("event: response.completed")], "broke off"),
        ("ollama", ASKED, CHATTED_STREAM.split("\n")[0], "broke off|cannot parse"),
        ("openai", ASKED, "", "cannot parse response"),
    ],
)
def test_invalid_turns_are_refused_with_the_reason(provider: str, request_: Any, response: Any, said: str) -> None:
    with pytest.raises(Rejected, match=said):
        turn(provider, request_, response)
