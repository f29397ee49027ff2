"""Session files of Claude Code: `projects/FOLDER/SESSION.jsonl`, a chain of records."""

from __future__ import annotations

from collections.abc import Iterator

from services.transcripts.layouts import seconds
from services.transcripts.messages import ASSISTANT, TEXT, TOOL_RESULT, TOOL_USE
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import anthropic
from services.transcripts.providers.wire import count
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
    key_of,
    marked,
    safe_name,
    speaker,
    time_of,
)

VERSION = "2.1.0"
"""The version of the agent whose format this is."""

_STOPS = frozenset({"end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal"})


def records(session: Session, part: Part) -> Iterator[Json]:
    """Yield the records for a part of a session."""
    parent = key_of(session, part.before) if part.before else None
    for turn in part.turns:
        key = key_of(session, turn.hash)
        yield _record(session, turn, parent, key)
        parent = key
    if part.is_last and session.title:
        yield {"type": "custom-title", "customTitle": session.title, "sessionId": session.id}


def _record(session: Session, turn: ReadTurn, parent: str | None, key: str) -> Json:
    role = speaker(turn)
    parts: list[Json] = [part for block in turn.content for part in _parts(role, block)]
    message: Json = {"role": role, "content": parts or [{"type": TEXT, "text": EMPTY}]}
    read = anthropic.message(message)
    if role == ASSISTANT:
        calls = any(part["type"] == TOOL_USE for part in parts)
        stop = turn.stop_reason if turn.stop_reason in _STOPS else "tool_use" if calls else "end_turn"
        message = {
            "id": f"msg_{turn.hash[:24]}", "type": "message", "model": turn.model, "stop_reason": stop,
            "stop_sequence": None, "usage": _usage(turn), **message,
        }  # fmt: skip
        read.model = turn.model
    elif [part["type"] for part in parts] == [TEXT]:
        message["content"] = parts[0]["text"]
    record = {
        "parentUuid": parent, "isSidechain": False, "userType": "external", "cwd": session.project,
        "sessionId": session.id, "version": VERSION, "gitBranch": "", "type": role, "message": message, "uuid": key,
        "timestamp": time_of(turn.at),
    }  # fmt: skip
    read.at = seconds(record["timestamp"])
    return marked(record, copy_of(turn, read))


def _usage(turn: ReadTurn) -> Json:
    figures = turn.usage or {}
    read, written = (count(figures, f"cache_{of}_input_tokens") for of in ("read", "creation"))
    return {
        "input_tokens": max(0, count(figures, "prompt_tokens") - read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": count(figures, "completion_tokens"),
    }


def _parts(role: str, block: Block) -> list[Json]:
    if block.type == TOOL_USE and role == ASSISTANT:
        return [
            {
                "type": TOOL_USE, "id": safe_name(block.tool_use_id), "name": safe_name(block.tool_name),
                "input": block.tool_input or {},
            }
        ]  # fmt: skip
    if block.type == TOOL_RESULT and role != ASSISTANT:
        result = {
            "type": TOOL_RESULT, "tool_use_id": safe_name(block.tool_result_id), "content": block.tool_output,
        }  # fmt: skip
        return [{**result, "is_error": True} if block.is_error else result]
    if role != ASSISTANT and is_picture(block):
        source = {"type": "base64", "media_type": block.media_type, "data": block.image_base64}
        return [{"type": "image", "source": source}]
    if role != ASSISTANT and block.media_type == "application/pdf" and block.image_base64:
        source = {"type": "base64", "media_type": block.media_type, "data": block.image_base64}
        return [{"type": "document", "source": source}]
    if role != ASSISTANT and is_linked(block):
        return [{"type": "image", "source": {"type": "url", "url": block.image_url}}]
    said = in_words(block)
    return [{"type": TEXT, "text": said}] if said.strip() else []
