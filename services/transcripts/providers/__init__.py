"""Converts a request and its reply, in the format of any provider, to one turn of messages.

A reply may be the provider's JSON, the text of its stream, the list of the stream's objects, or the provider-neutral
form that capture tools send (`message.content` as blocks).
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import msgspec

from services.transcripts.messages import ASSISTANT, Message, Turn
from services.transcripts.operations.conversations import Block
from services.transcripts.providers import anthropic, gemini, ollama, openai, responses, wire
from services.transcripts.providers.wire import (
    Json,
    Unreadable,
    child,
    compact,
    decode,
    events,
    record,
    records,
    text,
)

_APIS: dict[str, ModuleType] = {each.NAME: each for each in (openai, anthropic, ollama, gemini)}


INTERRUPTED = "interrupted"
"""The stop reason of a reply whose stream broke off."""


class Rejected(ValueError):
    """The turn cannot be stored; the message says why, in words that clients know."""


class TurnPayload(msgspec.Struct, frozen=True):
    """A posted turn."""

    provider: str = ""
    agent_name: str = ""
    # The provider's own JSON; the provider's reader in `providers` validates it.
    request: Any = None
    response: Any = None
    project: str = ""
    partial: bool = False
    """True if the connection broke during the reply: what came of a stream is the reply."""


def turn_of(payload: TurnPayload) -> Turn:
    """Convert a payload to a turn. Raises Rejected."""
    if payload.provider not in _APIS:
        raise Rejected(f"unsupported provider: {msgspec.json.encode(payload.provider).decode()}")
    try:
        given = payload.request
        # Some clients post the body as its original text.
        body = record(decode(given) if isinstance(given, str) else given)
        api = _APIS[payload.provider]
        if api is openai and body.get("input") is not None and body.get("messages") is None:
            api = responses
        turn: Turn = api.request(body)
    except Unreadable as error:
        raise Rejected(f"cannot parse request: {error}") from None
    try:
        reply = _reply(api, payload.response, partial=payload.partial)
        replies = _replies(api, reply)
    except Unreadable as error:
        raise Rejected(f"cannot parse response: {error}") from None
    if api is responses:
        responses.link(turn, body, reply)
    turn.messages += replies
    if not turn.messages:
        raise Rejected("cannot parse request: it contains no messages")
    turn.model = turn.model or next((reply.model for reply in replies if reply.model), "")
    turn.agent = payload.agent_name
    turn.project = payload.project
    return turn


def _reply(api: ModuleType, given: object, *, partial: bool) -> Json:
    """Return the reply as one object, assembled if it was streamed."""
    ending = INTERRUPTED if partial else ""
    if isinstance(given, str):
        given, is_done = _read(given, partial=partial)
        ending = "stop" if is_done else ending
    if partial and isinstance(given, dict) and given.get("done") is False:
        given = [given]
    if isinstance(given, list):
        parts = [item for item in given if isinstance(item, dict)]
        if not parts:
            raise Unreadable("it is empty")
        # A stream of one line may be a reply that was not streamed.
        given = parts[0] if len(parts) == 1 and _is_whole(parts[0]) else api.assemble(parts, ending)
    return record(given)


def _replies(api: ModuleType, given: Json) -> list[Message]:
    if isinstance(child(given, "message").get("content"), list) and "choices" not in given:
        return _neutral(given)
    replies: list[Message] = api.response(given)
    return replies


def _read(body: str, *, partial: bool) -> tuple[object, bool]:
    """Read the text of a reply: JSON, or a stream. Also returns True if the stream says that it is complete."""
    if body.lstrip()[:1] in ("{", "["):
        # JSON lines are not valid JSON as a whole.
        with contextlib.suppress(Unreadable):
            return decode(body), False
    return events(body, partial=partial)


def _is_whole(event: Json) -> bool:
    # Not every server names the kind of its chunks.
    is_chunk = event.get("object") == "chat.completion.chunk" or any(
        "delta" in choice and "message" not in choice for choice in records(event, "choices")
    )
    return not is_chunk and not event.keys().isdisjoint(("choices", "content", "output"))


def _neutral(given: Json) -> list[Message]:
    said = child(given, "message")
    try:
        blocks = msgspec.convert([{"is_error": False, **block} for block in said["content"]], list[Block])
    except (msgspec.ValidationError, TypeError) as error:
        raise Unreadable(f"`message.content`: {compact(str(error))}") from None
    reply = Message(role=text(said, "role") or ASSISTANT, content=blocks)
    return wire.replied(reply, given, text(given, "stop_reason"), child(given, "usage") or None)
