"""Anthropic's Messages API.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from typing import Any

from services.transcripts.messages import (
    ASSISTANT,
    Message,
    Turn,
    image,
    text_block,
    tool_result,
    tool_use,
    without_empty_text,
)
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import wire
from services.transcripts.providers.wire import Json, Unreadable, child, compact, count, records, text, usage

NAME = "anthropic"

_GROWING = ("text", "thinking", "signature")
"""The fields by which a streamed block grows, besides a call's arguments."""


def request(body: Json) -> Turn:
    """Read a request. Raises Unreadable."""
    return wire.turn_from(NAME, body, message, system=system(body.get("system")))


def system(given: object) -> str:
    """Read a system prompt, given as a text or as blocks."""
    if isinstance(given, str):
        return given
    return "\n".join(part for block in records({"": given}, "") if (part := text(block, "text")))


def message(item: Json) -> Message:
    """Read a message of a request or of a session file."""
    blocks, thinking = content(item.get("content"))
    return Message(role=text(item, "role") or "user", content=blocks, thinking=thinking)


def content(given: object) -> tuple[list[Block], list[Json]]:
    """Read content. Returns the blocks, and the thinking before them."""
    if isinstance(given, str):
        return [text_block(given)], []
    blocks: list[Block] = []
    thinking: list[Json] = []
    for item in given if isinstance(given, list) else []:
        if isinstance(item, str):
            blocks.append(text_block(item))
        elif isinstance(item, dict):
            if item.get("type") in ("thinking", "redacted_thinking"):
                thinking.append(item)
            else:
                blocks += block(item)
    return without_empty_text(blocks), thinking


def block(item: Json) -> list[Block]:
    """Read one content block; a tool result may include images."""
    match item.get("type"):
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            return [tool_use(text(item, "id"), text(item, "name"), item.get("input"))]
        case "tool_result" | "mcp_tool_result":
            return _result(item)
        case "image" | "document":
            return [_medium(item)]
        case str() as name if name.endswith("_tool_result"):
            return [tool_result(text(item, "tool_use_id"), compact(item.get("content")))]
        case _:
            return [text_block(text(item, "text"))]


def _medium(item: Json) -> Block:
    source = child(item, "source")
    if source.get("type") == "text":
        return text_block(text(source, "data"))
    return image(url=text(source, "url", "file_id"), data=text(source, "data"), media_type=text(source, "media_type"))


def _result(item: Json) -> list[Block]:
    given = item.get("content")
    said: list[str] = [given] if isinstance(given, str) else []
    media: list[Block] = []
    for part in given if isinstance(given, list) else []:
        if isinstance(part, dict) and part.get("type") in ("image", "document"):
            media.append(_medium(part))
        elif isinstance(part, dict):
            said.append(text(part, "text") or compact(part))
        else:
            said.append(compact(part))
    output = "\n".join(said) if isinstance(given, str | list | None) else compact(given)
    return [tool_result(text(item, "tool_use_id"), output, is_error=item.get("is_error") is True), *media]


def response(body: Json) -> list[Message]:
    """Read a reply. Raises Unreadable."""
    if not isinstance(body.get("content"), list | str):
        raise _refused(body, "`content` is missing or not an array")
    blocks, thinking = content(body["content"])
    reply = Message(role=text(body, "role") or ASSISTANT, content=blocks, thinking=thinking)
    return wire.replied(reply, body, text(body, "stop_reason"), tokens(child(body, "usage")))


def _refused(body: Json, otherwise: str = "") -> Unreadable:
    return wire.refused(text(child(body, "error"), "message", "type"), "" if "error" in body else otherwise)


def tokens(figures: Json) -> Json | None:
    """Read token usage; cache reads and writes are part of the prompt."""
    long, short = (count(child(figures, "cache_creation"), f"ephemeral_{of}_input_tokens") for of in ("1h", "5m"))
    written = max(count(figures, "cache_creation_input_tokens"), long + short)
    read = count(figures, "cache_read_input_tokens")
    sent, answered = count(figures, "input_tokens") + written + read, count(figures, "output_tokens")
    return usage(
        sent,
        answered,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=long,
        cache_read_input_tokens=read,
    )


def assemble(events: list[Json], ending: str = "") -> Json:
    """Assemble the reply from a stream of events; `ending` is the stop reason of a stream without its own.

    Raises Unreadable if it is incomplete.
    """
    reply: Json = {}
    blocks: dict[int, Json] = {}
    arguments: dict[int, list[str]] = {}
    ended = False
    for event in events:
        index = count(event, "index")
        match event.get("type"):
            case "message_start":
                reply = dict(child(event, "message"))
            case "content_block_start":
                blocks[index] = dict(child(event, "content_block"))
            case "content_block_delta":
                grown, delta = blocks.setdefault(index, {"type": "text"}), child(event, "delta")
                if delta.get("type") == "input_json_delta":
                    arguments.setdefault(index, []).append(text(delta, "partial_json"))
                # Citations and other additions are left out; the text is complete without them.
                for name in _GROWING:
                    if delta.get("type") == f"{name}_delta":
                        grown[name] = text(grown, name) + text(delta, name)
            case "message_delta":
                reply |= child(event, "delta")
                reply["usage"] = _greatest(child(reply, "usage"), child(event, "usage"))
            case "message_stop":
                ended = True
            case "error":
                raise _refused(event)
    if not ended and not reply.get("stop_reason"):
        if not (ending and blocks):
            raise Unreadable(wire.BROKEN_OFF)
        reply["stop_reason"] = ending
    for index, parts in arguments.items():
        if joined := "".join(parts):
            blocks[index]["input"] = joined
    reply["content"] = [blocks[index] for index in sorted(blocks)]
    return reply


def _greatest(before: Json, after: Json) -> Json:
    """Merge cumulative figures: some servers state all of them only at the end, others repeat zeros there."""
    merged = {**before, **{name: value for name, value in after.items() if value}}
    both = (name for name in before if isinstance(before[name], int) and isinstance(after.get(name), int))
    return {**merged, **{name: max(before[name], after[name]) for name in both}}


def write(messages: list[tuple[str, list[Block]]]) -> list[dict[str, Any]]:
    """Convert messages to the form of a request: tool results are the user's, and neighbours of one role merge."""
    written: list[dict[str, Any]] = []
    for role, blocks in messages:
        speaker = ASSISTANT if role == ASSISTANT else "user"
        parts = [part for block_ in blocks if (part := _written(block_)) is not None]
        if not parts:
            continue
        if written and written[-1]["role"] == speaker:
            written[-1]["content"] += parts
        else:
            written.append({"role": speaker, "content": parts})
    return written


def _written(block_: Block) -> dict[str, Any] | None:
    match block_.type:
        case "tool_use":
            return {
                "type": "tool_use", "id": block_.tool_use_id, "name": block_.tool_name, "input": block_.tool_input or {}
            }  # fmt: skip
        case "tool_result":
            result = {"type": "tool_result", "tool_use_id": block_.tool_result_id, "content": block_.tool_output}
            return {**result, "is_error": True} if block_.is_error else result
        case "image":
            source = {"type": "url", "url": block_.image_url}
            if data := block_.image_base64:
                source = {"type": "base64", "media_type": block_.media_type or "image/png", "data": data}
            return {"type": "document" if block_.media_type == "application/pdf" else "image", "source": source}
        case _:
            return {"type": "text", "text": block_.text} if block_.text else None
