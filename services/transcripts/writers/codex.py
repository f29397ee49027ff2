"""Session files of the Codex CLI: `sessions/YYYY/MM/DD/rollout-TIME-SESSION.jsonl`, the items of the Responses API.

What the person and the model said is written as events too, which the agent shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from services.transcripts.layouts import seconds
from services.transcripts.layouts.copied import FIELD, Copied
from services.transcripts.messages import ASSISTANT, IMAGE, TEXT, TOOL_RESULT, TOOL_USE, Message
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import responses
from services.transcripts.writers import (
    EMPTY,
    Json,
    Part,
    ReadTurn,
    Session,
    copy_of,
    in_words,
    is_linked,
    is_picture,
    marked,
    safe_name,
    speaker,
    time_of,
)

VERSION = "0.130.0"
"""The version of the agent whose format this is."""


def records(session: Session, part: Part) -> Iterator[Json]:
    """Yield the records for a part of a session."""
    began = time_of(session.at)
    if part.is_first:
        about = {
            "session_id": session.id, "id": session.id, "timestamp": began, "cwd": session.project,
            "originator": "linckia", "cli_version": VERSION, "source": "cli", "base_instructions": None,
        }  # fmt: skip
        yield {"timestamp": began, "type": "session_meta", "payload": about}
    for turn in part.turns:
        yield from _turn(turn)
    if part.is_last and session.title:
        named = {"type": "thread_name_updated", "thread_id": session.id, "thread_name": session.title}
        yield {"timestamp": began, "type": "event_msg", "payload": named}


def _turn(turn: ReadTurn) -> Iterator[Json]:
    at, role = time_of(turn.at), speaker(turn)
    items = list(_items(role, turn.content))
    first = responses.message(items[0])
    read = Message(role="", content=[]) if first is None else first
    for item in items[1:]:
        if (more := responses.message(item)) is not None:
            read.extend(more)
    read.at = seconds(at)
    copy = copy_of(turn, read)
    for number, item in enumerate(items):
        if number:
            copy = Copied(turn=turn.hash, rest=copy.rest or copy.content is not None)
        yield marked({"timestamp": at, "type": "response_item", "payload": item}, copy)
        if (event := _event(item)) is not None:
            yield {"timestamp": at, "type": "event_msg", "payload": event, FIELD: {"turn": turn.hash}}


def _items(role: str, blocks: Sequence[Block]) -> Iterator[Json]:
    """Yield a turn's items; consecutive texts and images are one."""
    parts: list[Json] = []
    is_any = False
    for block in blocks:
        item = _item(role, block)
        if item is None:
            parts += _parts(role, block)
            continue
        if parts:
            yield {"type": "message", "role": role, "content": parts}
            parts = []
        yield item
        is_any = True
    if parts or not is_any:
        yield {"type": "message", "role": role, "content": parts or [_text(role, EMPTY)]}


def _item(role: str, block: Block) -> Json | None:
    if block.type == TOOL_USE and role == ASSISTANT:
        arguments = msgspec.json.encode(block.tool_input or {}).decode()
        name, id_ = safe_name(block.tool_name), safe_name(block.tool_use_id)
        return {"type": "function_call", "name": name, "arguments": arguments, "call_id": id_}
    if block.type == TOOL_RESULT and role != ASSISTANT:
        id_ = safe_name(block.tool_result_id)
        return {"type": "function_call_output", "call_id": id_, "output": block.tool_output}
    return None


def _parts(role: str, block: Block) -> list[Json]:
    if role != ASSISTANT and is_picture(block):
        return [{"type": "input_image", "image_url": f"data:{block.media_type};base64,{block.image_base64}"}]
    if role != ASSISTANT and is_linked(block):
        return [{"type": "input_image", "image_url": block.image_url}]
    said = in_words(block) if block.type in (IMAGE, TOOL_USE, TOOL_RESULT) else block.text
    return [_text(role, said)] if said else []


def _text(role: str, said: str) -> Json:
    return {"type": "output_text" if role == ASSISTANT else "input_text", "text": said}


def _event(item: Json) -> Json | None:
    if item["type"] != "message":
        return None
    said = "\n".join(part[TEXT] for part in item["content"] if TEXT in part)
    return {"type": "agent_message" if item["role"] == ASSISTANT else "user_message", "message": said}
