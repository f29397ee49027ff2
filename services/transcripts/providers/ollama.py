"""Ollama's own API: `/api/chat`, and `/api/generate`.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

from services.transcripts.messages import ASSISTANT, Message, Turn, image, text_block, tool_result, tool_use
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import wire
from services.transcripts.providers.wire import (
    Json,
    Unreadable,
    child,
    compact,
    count,
    items,
    records,
    text,
    usage,
)

NAME = "ollama"


def request(body: Json) -> Turn:
    """Read a request. Raises Unreadable."""
    if isinstance(body.get("prompt"), str) and "messages" not in body:
        asked = {"role": "user", "content": body["prompt"], "images": body.get("images")}
        return wire.turn_from(NAME, {**body, "messages": [asked]}, message, system=text(body, "system"))
    return wire.turn_from(NAME, body, message)


def message(item: Json) -> Message:
    role = text(item, "role") or "user"
    said = text(item, "content")
    if role == "tool":
        return Message(role=role, content=[tool_result(text(item, "tool_call_id", "tool_name", "name"), said)])
    blocks: list[Block] = [text_block(said)] if said else []
    blocks += (image(data=data) for data in items(item, "images") if isinstance(data, str))
    for called in records(item, "tool_calls"):
        function = child(called, "function")
        blocks.append(tool_use(text(called, "id"), text(function, "name"), function.get("arguments")))
    thought = text(item, "thinking")
    return Message(role=role, content=blocks, thinking=[{"type": "thinking", "thinking": thought}] if thought else [])


def response(body: Json) -> list[Message]:
    """Read a reply. Raises Unreadable."""
    if isinstance(body.get("response"), str) and "message" not in body:
        body = {**body, "message": {"role": ASSISTANT, "content": body["response"], "thinking": body.get("thinking")}}
    if not isinstance(body.get("message"), dict):
        raise wire.refused(compact(body.get("error") or ""), "`message` is missing")
    if body.get("done") is False:
        raise Unreadable(wire.BROKEN_OFF)
    reply = message({"role": ASSISTANT, **body["message"]})
    stop_reason = text(body, "done_reason") or ("stop" if body.get("done") is True else "")
    prompt, completion = count(body, "prompt_eval_count"), count(body, "eval_count")
    tokens = usage(prompt, completion, total_duration_ns=count(body, "total_duration"))
    return wire.replied(reply, body, stop_reason, tokens)


def assemble(events: list[Json], ending: str = "") -> Json:
    """Assemble the reply from a stream of lines; `ending` is the reason of a stream without its own.

    Raises Unreadable if it is incomplete.
    """
    whole: Json = {"role": ASSISTANT, "content": "", "thinking": "", "tool_calls": [], "images": []}
    for event in events:
        if event.get("error"):
            return event
        part = child(event, "message") or {"content": event.get("response"), "thinking": event.get("thinking")}
        whole["role"] = text(part, "role") or whole["role"]
        whole["content"] += text(part, "content")
        whole["thinking"] += text(part, "thinking")
        whole["tool_calls"] += items(part, "tool_calls")
        whole["images"] += items(part, "images")
        if event.get("done") is True:
            return {**event, "message": whole}
    if ending and any(whole[key] for key in ("content", "thinking", "tool_calls", "images")):
        return {**events[-1], "message": whole, "done": True, "done_reason": ending}
    raise Unreadable(wire.BROKEN_OFF)
