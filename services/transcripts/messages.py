"""A message as it is kept, whichever API it came through, and the text that it is read and found by."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from proto.ops.transcripts import Block

ASSISTANT = "assistant"

TEXT, IMAGE, TOOL_USE, TOOL_RESULT = "text", "image", "tool_use", "tool_result"


@dataclass(slots=True)
class Message:
    """One message, before it has a place in a conversation.

    `thinking` is what a model thought before it spoke, kept beside the content: APIs drop it from the history that is
    sent back, and a reply and its echo are one node. `model` is who said it, where that is known to be another than
    the request names. `reply` tells what a model answered from what a client repeated.
    """

    role: str
    content: list[Block]
    thinking: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    reply: bool = False
    stop_reason: str = ""
    usage: dict[str, Any] | None = None
    at: float | None = None


class Turn(msgspec.Struct, kw_only=True):
    """A request with its reply, or a piece of a conversation: messages in order."""

    provider: str
    messages: list[Message]
    model: str = ""
    agent: str = ""
    project: str = ""
    system: str = ""
    at: float | None = None


def text_block(text: str) -> Block:
    return Block(type=TEXT, is_error=False, text=text)


def tool_use(id_: str, name: str, arguments: object) -> Block:
    """A call of a tool; arguments that are no object are kept under `input`."""
    if isinstance(arguments, str):
        # What was cut short, or of a tool that takes plain text, stays as it is.
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            arguments = msgspec.json.decode(arguments) if arguments.strip() else None
    if arguments is not None and not isinstance(arguments, dict):
        arguments = {"input": arguments}
    return Block(type=TOOL_USE, is_error=False, tool_use_id=id_, tool_name=name, tool_input=arguments or None)


def tool_result(id_: str, output: str, *, is_error: bool = False) -> Block:
    return Block(type=TOOL_RESULT, is_error=is_error, tool_result_id=id_, tool_output=output)


def image(*, url: str = "", data: str = "", media_type: str = "") -> Block:
    """An image, or another medium that its media type names; a data URL is taken apart."""
    if url.startswith("data:") and ";base64," in url:
        head, _, data = url.partition(";base64,")
        media_type, url = head.removeprefix("data:").partition(";")[0], ""
    return Block(type=IMAGE, is_error=False, image_url=url, image_base64=data, media_type=media_type)


def without_empty_text(blocks: Sequence[Block]) -> list[Block]:
    """Empty texts say nothing beside other blocks, and clients put them in and leave them out as they like."""
    telling = [block for block in blocks if block.type != TEXT or block.text]
    return telling or list(blocks[:1])


def read_text(blocks: Iterable[Block]) -> str:
    """What was said and what tools put out, and which tools were called."""
    parts = (block.text or block.tool_output or (call_text(block) if block.tool_name else "") for block in blocks)
    return "\n".join(part for part in parts if part)


def call_text(block: Block) -> str:
    """A call of a tool on one line."""
    arguments = "" if block.tool_input is None else msgspec.json.encode(block.tool_input).decode()
    return f"Tool call: {block.tool_name}({arguments})"


def spoken_text(blocks: Iterable[Block]) -> str:
    """What was said and what tools put out: the text to search by meaning."""
    return "\n".join(part for block in blocks if (part := block.text or block.tool_output))


def calls_text(blocks: Iterable[Block]) -> str:
    """The tools that were called: found by words."""
    return "\n".join(call_text(block) for block in blocks if block.tool_name)
