"""OpenAI's Responses API.

https://platform.openai.com/docs/api-reference/responses

A server that stores conversations is sent only what is new, with the id of the reply before (`previous_response_id`) or
of the whole `conversation`: see `link`.

A model's reply consists of items (a text, tool calls). Consecutive items of the model form one message, both in the
reply and in the history that is sent back.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.transcripts.messages import ASSISTANT, Message, Turn, text_block, tool_result, tool_use
from services.transcripts.providers import openai, wire
from services.transcripts.providers.wire import Json, Unreadable, child, compact, items, kind, records, text

_CALLS = {
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "computer_call": "computer",
    "code_interpreter_call": "code_interpreter",
    "image_generation_call": "image_generation",
    "local_shell_call": "local_shell",
    "mcp_call": "mcp",
}


def request(body: Json) -> Turn:
    """Read a request. Raises Unreadable."""
    given = body.get("input")
    if isinstance(given, str):
        messages = [Message(role="user", content=[text_block(given)])]
    elif isinstance(given, list):
        messages = gathered(item for item in given if isinstance(item, dict))
    else:
        raise Unreadable(f"`input` is {kind(given)}, neither a string nor an array")
    return Turn(provider=openai.NAME, messages=messages, model=text(body, "model"), system=text(body, "instructions"))


def link(turn: Turn, request: Json, reply: Json) -> None:
    """Name the reply that a turn continues, and the names by which later turns continue it."""
    before, thread = text(request, "previous_response_id"), _id(request.get("conversation"))
    thread = thread or _id(reply.get("conversation"))
    turn.reply_id, turn.thread_id = (f"response/{name}" if name else "" for name in (text(reply, "id"), thread))
    turn.follows = f"response/{before}" if before else turn.thread_id


def _id(given: object) -> str:
    return text(given, "id") if isinstance(given, dict) else given if isinstance(given, str) else ""


def gathered(given: Iterable[Json]) -> list[Message]:
    """Combine items into messages."""
    messages: list[Message] = []
    for item in given:
        found = message(item)
        if found is None:
            continue
        if messages and found.role == ASSISTANT == messages[-1].role:
            messages[-1].extend(found)
        else:
            messages.append(found)
    # Thinking alone is not a message.
    return [found for found in messages if found.content or not found.thinking]


def message(item: Json) -> Message | None:
    """Read one item; None if it contains no message or call."""
    match item.get("type"):
        case "message" | None if text(item, "role"):
            return Message(role=text(item, "role"), content=openai.content(item.get("content")))
        case "function_call" | "custom_tool_call":
            given = item.get("arguments", item.get("input"))
            used = tool_use(text(item, "call_id", "id"), text(item, "name"), given)
            return Message(role=ASSISTANT, content=[used])
        case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" | "computer_call_output":
            return Message(role="tool", content=[tool_result(text(item, "call_id"), _output(item.get("output")))])
        case "reasoning":
            return Message(role=ASSISTANT, content=[], thinking=[item])
        case str() as name if name in _CALLS:
            arguments = {key: value for key, value in item.items() if key not in ("type", "id", "call_id", "status")}
            used = tool_use(text(item, "call_id", "id"), text(item, "name") or _CALLS[name], arguments)
            return Message(role=ASSISTANT, content=[used])
        case _:
            return None


def _output(given: object) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, list):
        return "\n".join(text(part, "text") or compact(part) for part in given if isinstance(part, dict))
    if isinstance(given, dict) and isinstance(given.get("content"), str | list):
        return _output(given["content"])
    return "" if given is None else compact(given)


def response(body: Json) -> list[Message]:
    """Read a reply. Raises Unreadable."""
    if not isinstance(body.get("output"), list):
        raise wire.refused(text(child(body, "error"), "message"), "`output` is missing or not an array")
    if body.get("status") in ("failed", "cancelled"):
        raise Unreadable(f"the reply {body['status']}: {text(child(body, 'error'), 'message')}")
    replies = gathered(records(body, "output"))
    if not replies and (said := text(body, "output_text")):
        replies = [Message(role=ASSISTANT, content=[text_block(said)])]
    for reply in replies:
        wire.replied(reply, body, "", None)
    if replies:
        stop_reason = text(child(body, "incomplete_details"), "reason") or text(body, "status")
        wire.replied(replies[-1], body, stop_reason, openai.tokens(child(body, "usage")))
    return replies


def assemble(events: list[Json], ending: str = "") -> Json:
    """Assemble the reply from a stream of events; with `ending`, a stream without its own end is taken as far as it is.

    Raises Unreadable if it is incomplete.
    """
    begun: Json = {}
    done: list[Json] = []
    streamed: dict[str, list[str]] = {}
    for event in events:
        match event.get("type"):
            case "response.completed" | "response.incomplete" | "response.failed":
                reply = child(event, "response")
                # Some servers omit items here that they have sent before.
                return reply if items(reply, "output") else {**reply, "output": done}
            case "response.created" | "response.in_progress":
                begun = child(event, "response")
            case "response.output_text.delta":
                streamed.setdefault(text(event, "item_id"), []).append(text(event, "delta"))
            case "response.output_item.done":
                done.append(child(event, "item"))
                streamed.pop(text(done[-1], "id"), None)
            case "error":
                raise wire.refused(text(event, "message"))
    if not ending or not (done or streamed):
        raise Unreadable(wire.BROKEN_OFF)
    rest = [
        {"type": "message", "role": ASSISTANT, "content": [{"type": "output_text", "text": "".join(parts)}]}
        for parts in streamed.values()
    ]
    return {**begun, "output": [*done, *rest], "status": "incomplete", "incomplete_details": {"reason": ending}}
