"""OpenAI's Chat Completions API and compatible ones.

https://platform.openai.com/docs/api-reference/chat
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

NAME = "openai"


def request(body: Json) -> Turn:
    """Read a request. Raises Unreadable."""
    return wire.turn_from(NAME, body, message, missing="`messages` and `input` are missing or not an array")


def message(item: Json) -> Message:
    """Read a message of a request, a reply or an export."""
    role = text(item, "role") or "user"
    if role in ("tool", "function") and (text(item, "tool_call_id") or text(item, "name")):
        given = item.get("content")
        output = given if isinstance(given, str) else "\n".join(block.text for block in content(given))
        return Message(role=role, content=[tool_result(text(item, "tool_call_id", "name"), output)])
    blocks = content(item.get("content"))
    if refusal := text(item, "refusal"):
        blocks.append(text_block(refusal))
    for called in records(item, "tool_calls"):
        function = child(called, "function") or child(called, "custom")
        given = function.get("arguments", function.get("input"))
        blocks.append(tool_use(text(called, "id"), text(function, "name"), given))
    if function := child(item, "function_call"):
        blocks.append(tool_use("", text(function, "name"), function.get("arguments")))
    thought = text(item, "reasoning_content", "reasoning")
    thinking = [{"type": "reasoning", "text": thought}] if thought else []
    return Message(role=role, content=without_empty_text(blocks), thinking=thinking)


def content(given: object) -> list[Block]:
    """Read a message's content: a text, or parts."""
    if isinstance(given, str):
        return [text_block(given)]
    parts = [part for part in given if isinstance(part, str | dict)] if isinstance(given, list) else []
    return [text_block(part) if isinstance(part, str) else _part(part) for part in parts]


def _part(part: Json) -> Block:
    match part.get("type"):
        case "image_url" | "input_image" | "image":
            where = part.get("image_url")
            url = text(where, "url") if isinstance(where, dict) else where if isinstance(where, str) else ""
            return image(url=url or text(part, "file_id"))
        case "input_audio":
            audio = child(part, "input_audio")
            return image(data=text(audio, "data"), media_type=f"audio/{text(audio, 'format') or 'wav'}")
        case "file" | "input_file":
            file = child(part, "file") or part
            return image(url=text(file, "file_data", "file_url", "file_id", "filename"))
        case _:
            # Assistants put the text into an object.
            return text_block(text(part, "text", "refusal", "content") or text(child(part, "text"), "value"))


def response(body: Json) -> list[Message]:
    """Read a reply, using the first choice. Raises Unreadable."""
    choices = items(body, "choices")
    if not choices or not isinstance(choices[0], dict):
        error = body.get("error") or ""
        said = text(error, "message") if isinstance(error, dict) else compact(error)
        raise wire.refused(said, "`choices` is missing or empty")
    choice = choices[0]
    reply = message({"role": ASSISTANT, **child(choice, "message")})
    return wire.replied(reply, body, text(choice, "finish_reason"), tokens(child(body, "usage")))


def tokens(figures: Json) -> Json | None:
    details = child(figures, "prompt_tokens_details") or child(figures, "input_tokens_details")
    sent, cached = count(figures, "prompt_tokens", "input_tokens"), count(details, "cached_tokens")
    answered, total = count(figures, "completion_tokens", "output_tokens"), count(figures, "total_tokens")
    return usage(sent, answered, total, cache_read_input_tokens=cached)


def assemble(events: list[Json], ending: str = "") -> Json:
    """Assemble the reply from a stream of chunks. Some servers give no finish reason; `ending` is used then.

    Raises Unreadable if it is incomplete.
    """
    reply: Json = {}
    streamed: dict[str, list[str]] = {}
    calls = _Calls()
    reason = ""
    for event in events:
        if event.get("error"):
            return event
        reply |= {key: value for key in ("id", "model", "usage") if (value := event.get(key))}
        for choice in records(event, "choices"):
            if count(choice, "index"):
                continue
            delta = child(choice, "delta")
            for key in ("content", "refusal", "reasoning_content", "reasoning"):
                if said := text(delta, key):
                    streamed.setdefault(key, []).append(said)
            for called in records(delta, "tool_calls"):
                calls.add(called)
            reason = text(choice, "finish_reason") or reason
    reason = reason or (ending if streamed or calls.calls else "")
    if not reason:
        raise Unreadable(wire.BROKEN_OFF)
    whole: Json = {"role": ASSISTANT, **{key: "".join(parts) for key, parts in streamed.items()}}
    if calls.calls:
        whole["tool_calls"] = calls.calls
    return {**reply, "choices": [{"index": 0, "message": whole, "finish_reason": reason}]}


class _Calls:
    """Tool calls that grow piece by piece.

    Servers differ: some send each call whole and all with one index or none, repeat id and name in every piece, or add
    the whole call again at the end.
    """

    def __init__(self) -> None:
        self.calls: list[Json] = []
        self._at: dict[int | None, Json] = {}

    def add(self, delta: Json) -> None:
        """Add a piece to the call that it belongs to."""
        id_, index = text(delta, "id"), count(delta, "index") if "index" in delta else None
        call = self._at.get(index) or (self.calls[-1] if self.calls and index is None and not id_ else None)
        if call is None or (id_ and call["id"] and call["id"] != id_):
            call = next((each for each in self.calls if id_ and each["id"] == id_), None)
        if call is None:
            call = {"id": id_, "function": {"name": "", "arguments": ""}}
            self.calls.append(call)
        self._at[index] = call
        call["id"] = call["id"] or id_
        function, piece = call["function"], child(delta, "function")
        if (name := text(piece, "name")) != function["name"]:
            function["name"] += name
        if not _is_repeated(function["arguments"], given := text(piece, "arguments")):
            function["arguments"] += given


def _is_repeated(arguments: str, piece: str) -> bool:
    """Return True if a piece repeats the whole arguments, or is them as JSON text in a string."""
    if not arguments.endswith("}") or piece[:1] not in ("{", '"'):
        return False
    try:
        repeated, whole = wire.decode(piece), wire.decode(arguments)
        return bool(whole == (wire.decode(repeated) if isinstance(repeated, str) else repeated))
    except Unreadable:
        return False


def write(messages: list[tuple[str, list[Block]]]) -> list[dict[str, Any]]:
    """Convert messages to the form of a request: each tool result is a separate message."""
    written: list[dict[str, Any]] = []
    for role, blocks in messages:
        results = [block for block in blocks if block.type == "tool_result"]
        written += (
            {"role": "tool", "tool_call_id": block.tool_result_id, "content": block.tool_output} for block in results
        )
        calls = [_call(block) for block in blocks if block.type == "tool_use"]
        rest = [block for block in blocks if block.type in ("text", "image")]
        if not (calls or rest):
            continue
        said: str | list[dict[str, Any]] | None
        if all(block.type == "text" for block in rest):
            said = "\n".join(block.text for block in rest) if rest else None
        else:
            said = [_written(block) for block in rest]
        written.append({"role": role, "content": said, **({"tool_calls": calls} if calls else {})})
    return written


def _call(block: Block) -> dict[str, Any]:
    function = {"name": block.tool_name, "arguments": compact(block.tool_input or {})}
    return {"id": block.tool_use_id, "type": "function", "function": function}


def _written(block: Block) -> dict[str, Any]:
    if block.type == "text":
        return {"type": "text", "text": block.text}
    media_type = block.media_type or "image/png"
    url = f"data:{media_type};base64,{block.image_base64}" if block.image_base64 else block.image_url
    return {"type": "image_url", "image_url": {"url": url}}
