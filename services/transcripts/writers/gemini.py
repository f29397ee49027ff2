"""Session files of the Gemini CLI: `tmp/PROJECT/chats/session-TIME-ID.jsonl`, one message per line.

The results of tool calls are part of the model's message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from services.transcripts.layouts import seconds
from services.transcripts.layouts.gemini import Gemini
from services.transcripts.messages import ASSISTANT, IMAGE, TOOL_RESULT, TOOL_USE, Message
from services.transcripts.operations.conversations import Block
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


def records(session: Session, part: Part) -> Iterator[Json]:
    """Yield the records for a part of a session."""
    turns = part.turns
    if part.is_first:
        about = {
            "sessionId": session.id, "projectHash": hashlib.sha256(session.project.encode()).hexdigest(),
            "startTime": time_of(turns[0].at if turns else session.at), "lastUpdated": time_of(session.at),
            "kind": "main",
        }  # fmt: skip
        yield {**about, "summary": session.title} if session.title else about
    position = 0
    while position < len(turns):
        turn, results = turns[position], _results(turns, position)
        position += 1 + len(results)
        yield _record(turn, results, key_of(session, turn.hash))


def _results(turns: Sequence[ReadTurn], position: int) -> list[ReadTurn]:
    """Return the turns after a model's message that consist of results of its calls, each once."""
    turn = turns[position]
    waiting = [block.tool_use_id for block in turn.content if block.type == TOOL_USE]
    found: list[ReadTurn] = []
    if speaker(turn) != ASSISTANT or len(set(waiting)) < len(waiting):
        return found
    for each in turns[position + 1 :]:
        ids = [block.tool_result_id for block in each.content if block.type == TOOL_RESULT]
        if speaker(each) == ASSISTANT or len(ids) < len(each.content) or not set(ids) <= set(waiting):
            break
        waiting = [id_ for id_ in waiting if id_ not in ids]
        found.append(each)
    return found


def _record(turn: ReadTurn, results: Sequence[ReadTurn], key: str) -> Json:
    at, is_reply = time_of(turn.at), speaker(turn) == ASSISTANT
    parts = [part for block in turn.content for part in _parts(block, is_reply=is_reply)]
    record: Json = {"id": key, "timestamp": at, "type": "gemini" if is_reply else "user"}
    record["content"] = parts or ([] if is_reply and _called(turn) else [{"text": EMPTY}])
    if is_reply:
        record |= {"model": turn.model, "tokens": _tokens(turn)}
        if calls := [_call(block, at, results) for block in _called(turn)]:
            record["toolCalls"] = calls
    # The layout says how it reads the record without the field.
    layout = Gemini()
    steps = [*(layout.read(record) or []), *layout.flush()]
    read = steps[0].messages[0] if steps else Message(role=speaker(turn), content=[], at=seconds(at), model=turn.model)
    copy = copy_of(turn, read)
    answers = steps[1].messages[0].content if len(steps) > 1 else []
    for each in results:
        ids = [block.tool_result_id for block in each.content]
        told = Message(role="tool", content=[block for block in answers if block.tool_result_id in ids], at=seconds(at))
        copy.then.append(copy_of(each, told))
        copy.then[-1].ids = ids if copy.then[-1].content is None else []
    return marked(record, copy)


def _called(turn: ReadTurn) -> list[Block]:
    return [block for block in turn.content if block.type == TOOL_USE]


def _call(block: Block, at: str, results: Sequence[ReadTurn]) -> Json:
    answers = [each for turn in results for each in turn.content if each.tool_result_id == block.tool_use_id]
    call: Json = {
        "id": block.tool_use_id, "name": safe_name(block.tool_name), "args": block.tool_input or {},
        "status": "error" if any(each.is_error for each in answers) else "success", "timestamp": at,
    }  # fmt: skip
    if not answers:
        return {**call, "status": "cancelled"}
    shown = "\n".join(each.tool_output for each in answers)
    return {**call, "result": [_response(each, call["name"]) for each in answers], "resultDisplay": shown}


def _response(block: Block, name: str) -> Json:
    told = {"error" if block.is_error else "output": block.tool_output}
    return {"functionResponse": {"id": block.tool_result_id, "name": name, "response": told}}


def _parts(block: Block, *, is_reply: bool) -> list[Json]:
    if block.type == TOOL_USE and is_reply:
        return []
    if block.type == TOOL_RESULT and not is_reply:
        return [_response(block, safe_name(block.tool_result_id))]
    if not is_reply and is_picture(block):
        return [{"inlineData": {"mimeType": block.media_type, "data": block.image_base64}}]
    if not is_reply and block.media_type == "application/pdf" and block.image_base64:
        return [{"inlineData": {"mimeType": block.media_type, "data": block.image_base64}}]
    if not is_reply and is_linked(block):
        return [{"fileData": {"fileUri": block.image_url, "mimeType": block.media_type or "image/*"}}]
    said = in_words(block) if block.type in (IMAGE, TOOL_USE, TOOL_RESULT) else block.text
    return [{"text": said}] if said else []


def _tokens(turn: ReadTurn) -> Json | None:
    figures = turn.usage or {}
    sent, answered = count(figures, "prompt_tokens"), count(figures, "completion_tokens")
    if not figures:
        return None
    cached, total = count(figures, "cache_read_input_tokens"), count(figures, "total_tokens")
    return {"input": sent, "output": answered, "cached": cached, "total": total}
