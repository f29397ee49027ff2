"""Long results of mounted tools, shortened on surfaces whose answers are bounded."""

from __future__ import annotations

from typing import Any

import msgspec

from proto.json_types import JsonObject
from proto.operation import Operation, Params
from services.front.excerpt import Excerpt, excerpt

_encode = msgspec.json.Encoder().encode


def bounded(operation: Operation[Any], params: Params[Any], value: JsonObject, max_tokens: int | None) -> JsonObject:
    """Return the result of a tool with its text shortened; images and the like stay whole.

    The structured content of a shortened result is left out, since its text says the same. A result of a type that is
    not known here stays whole.
    """
    content = value.get("content", [])
    if not isinstance(content, list):
        return value
    blocks = [block for block in content if isinstance(block, dict)]
    texts = [text for block in blocks if (text := _text(block)) is not None]
    others = [block for block in blocks if _text(block) is None]
    structured = value.get("structuredContent")
    text = "\n\n".join(texts)
    whole: JsonObject = {"text": text} if texts or structured is None else {"structuredContent": structured}
    cut = excerpt(operation, params, whole, max_tokens)
    if not isinstance(cut, Excerpt):
        if structured is None or not isinstance(excerpt(operation, params, structured, max_tokens), Excerpt):
            return value
        return {name: member for name, member in value.items() if name != "structuredContent"}
    shown = cut.get("text")
    more = _encode(cut.get("more")).decode()
    said = f"{shown}\n\n{more}" if isinstance(shown, str) else _encode(cut).decode()
    kept = {name: member for name, member in value.items() if name != "structuredContent"}
    return {**kept, "content": [{"type": "text", "text": said}, *others]}


def _text(block: JsonObject) -> str | None:
    """Return the text of a text block or of an embedded text resource."""
    resource = block.get("resource")
    text = resource.get("text") if block.get("type") == "resource" and isinstance(resource, dict) else block.get("text")
    return text if isinstance(text, str) else None
