"""Contents of the Gemini API, `{role, parts}`, which the Gemini CLI keeps in its files as well."""

from __future__ import annotations

from proto.ops.transcripts import Block
from services.transcripts.messages import ASSISTANT, Message, image, text_block, tool_result, tool_use
from services.transcripts.providers.wire import Json, child, compact, text


def api_message(record: Json) -> Message:
    """A `Content` of the API: `{role, parts}`."""
    blocks, thoughts = content(record.get("parts"))
    role = text(record, "role") or "user"
    if role == "model":
        return Message(role=ASSISTANT, content=blocks, thinking=thoughts)
    return Message(role="tool" if any(block.type == "tool_result" for block in blocks) else role, content=blocks)


def content(given: object) -> tuple[list[Block], list[Json]]:
    """Blocks, and what was thought before them."""
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
