"""Google's Gemini API: `generateContent` and `streamGenerateContent`, also as wrapped by the Gemini CLI.

https://ai.google.dev/api/generate-content. Inline data (`inlineData`) is left out and replaced by a note. The CLI also
stores contents, `{role, parts}`, in its files: see `layouts.gemini`.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from services.transcripts.messages import (
    ASSISTANT,
    IMAGE,
    TOOL_RESULT,
    TOOL_USE,
    Message,
    Turn,
    image,
    text_block,
    tool_result,
    tool_use,
)
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

NAME = "gemini"


def request(body: Json) -> Turn:
    """Read a request. Raises Unreadable."""
    model = text(body, "model").removeprefix("models/")
    body = child(body, "request") or body
    instruction = child(body, "systemInstruction") or child(body, "system_instruction")
    given = body.get("contents")
    contents = [{"parts": [{"text": given}]}] if isinstance(given, str) else given
    system = "\n".join(part for item in records(instruction, "parts") if (part := text(item, "text")))
    turn = wire.turn_from(
        NAME, {"messages": contents}, _message, system=system, missing="`contents` is missing or not an array"
    )
    turn.model = model
    return turn


def _message(item: Json) -> Message:
    message = api_message(item)
    message.content = [_kept(block) for block in message.content]
    return message


def _kept(block: Block) -> Block:
    if block.type == IMAGE and block.image_base64:
        size = len(block.image_base64) * 3 // 4
        return text_block(f"[{block.media_type or 'data'} of about {size} bytes, left out]")
    if block.type == TOOL_USE and not block.tool_use_id:
        # The API identifies a call by its function's name if it has no id.
        return structs.replace(block, tool_use_id=block.tool_name)
    return block


def response(body: Json) -> list[Message]:
    """Read the first candidate of a reply. Raises Unreadable."""
    body = child(body, "response") or body
    first = next(records(body, "candidates"), None)
    if first is None:
        error = child(body, "error") or child(body, "promptFeedback")
        raise wire.refused(text(error, "message", "blockReason"), "`candidates` is missing or empty")
    reply = _message({"role": "model", **child(first, "content")})
    figures = child(body, "usageMetadata")
    answered = count(figures, "candidatesTokenCount") + count(figures, "thoughtsTokenCount")
    sent, total, cached = (count(figures, f"{of}TokenCount") for of in ("prompt", "total", "cachedContent"))
    tokens = usage(sent, answered, total, cache_read_input_tokens=cached)
    return wire.replied(reply, {"model": text(body, "modelVersion")}, text(first, "finishReason"), tokens)


def assemble(events: list[Json], ending: str = "") -> Json:
    """Assemble the reply from a stream; `ending` is the finish reason of a stream without its own.

    Raises Unreadable if it is incomplete.
    """
    whole: Json = {}
    parts: list[Any] = []
    reason = ""
    for event in (child(event, "response") or event for event in events):
        if "error" in event:
            return event
        whole |= event
        first = next(records(event, "candidates"), {})
        reason = text(first, "finishReason") or reason
        for part in items(child(first, "content"), "parts"):
            before: Any = parts[-1] if parts else None
            if _is_text(before) and _is_text(part) and before.get("thought") == part.get("thought"):
                parts[-1] = {**before, "text": before["text"] + part["text"]}
            else:
                parts.append(part)
    reason = reason or (ending if parts else "")
    if not reason and "promptFeedback" not in whole:
        raise Unreadable(wire.BROKEN_OFF)
    if reason:
        whole["candidates"] = [{"content": {"role": "model", "parts": parts}, "finishReason": reason}]
    return whole


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def api_message(record: Json) -> Message:
    """Read a `Content` of the API: `{role, parts}`."""
    blocks, thoughts = content(record.get("parts"))
    role = text(record, "role") or "user"
    if role == "model":
        return Message(role=ASSISTANT, content=blocks, thinking=thoughts)
    return Message(role="tool" if any(block.type == TOOL_RESULT for block in blocks) else role, content=blocks)


def content(given: object) -> tuple[list[Block], list[Json]]:
    """Read content. Returns the blocks, and the thinking before them."""
    if isinstance(given, str):
        return ([text_block(given)] if given else []), []
    blocks: list[Block] = []
    thoughts: list[Json] = []
    for part in given if isinstance(given, list) else [given]:
        if isinstance(part, str):
            blocks.append(text_block(part))
        elif isinstance(part, dict):
            if part.get("thought") is True:
                thoughts.append(part)
            else:
                blocks += part_blocks(part)
    return blocks, thoughts


def part_blocks(part: Json) -> list[Block]:
    if called := child(part, "functionCall"):
        return [tool_use(text(called, "id"), text(called, "name"), called.get("args"))]
    if answered := child(part, "functionResponse"):
        response = child(answered, "response")
        failed = "error" in response and "output" not in response
        output = response.get("error" if failed else "output", response)
        return [tool_result(text(answered, "id", "name"), compact(output), is_error=failed)]
    if data := child(part, "inlineData"):
        return [image(data=text(data, "data"), media_type=text(data, "mimeType"))]
    if file := child(part, "fileData"):
        return [image(url=text(file, "fileUri"), media_type=text(file, "mimeType"))]
    said = text(part, "text")
    return [text_block(said)] if said else []
