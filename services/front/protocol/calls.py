"""One call, whichever way it came: from a client's arguments to the operation's value, and from there to wire form.

Both ways through the gateway, the SDK's and the fast one for ordinary calls, use these functions, so that they
cannot come to differ in what a result or a failure says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from proto.dispatch import Dispatcher
from proto.errors import LinckiaError
from proto.json_types import JsonObject
from proto.near import did_you_mean
from proto.operation import Operation, Params
from proto.surfaces.surface import Surface, caches
from services.front.composite.answer import Composed
from services.front.excerpt import Excerpt, excerpt
from services.front.protocol.client_requests import CallRequests
from services.front.scratchpad import shortened

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def accept_trace(value: object) -> str | None:
    """What a client sent as its traceparent, if that is what it is."""
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


async def perform(
    dispatcher: Dispatcher,
    operation: Operation[object],
    params: Params[object],
    client_requests: CallRequests,
    meta: Mapping[str, Any] | None,
    *,
    written: bool = False,
) -> object:
    """Call `operation` for a client and wait for its value; cancelling this cancels the handler.

    Args:
        written: whether the value may be JSON already (`msgspec.Raw`).

    Raises:
        InputRequired: the client must be asked, and make the call again.
        LinckiaError: of the kind that says what happened.
    """
    trace = accept_trace(meta.get("traceparent")) if meta else None
    try:
        with client_requests.scope:
            value = await dispatcher.call(
                operation, params, trace=trace, client_requests=client_requests, written=written
            )
            client_requests.finish()
            if not client_requests.asking:
                return value
    except LinckiaError:
        client_requests.finish()
        if not client_requests.asking:
            raise
    finally:
        client_requests.close()
    raise client_requests.input_required()


def bounded(surface: Surface, operation: Operation[object], params: Params[object], value: object) -> object:
    """The value as this surface answers it: cut, where it is too long and may be."""
    if not surface.bounds(operation):
        return value
    return excerpt(operation, params, value, getattr(params, "max_tokens", None))


def may_be_written(operation: Operation[object]) -> bool:
    """Whether nothing but the JSON of this tool's result is looked at on its way to a client."""
    return operation.text is None and not operation.is_content and not caches(operation)


def tool_parts(operation: Operation[object], value: object) -> tuple[str, bytes]:
    """The text and the structured content (JSON) of a tool's result, or of what stands for a long one."""
    bare = _encode(value)
    text: object = value.get(operation.text) if operation.text is not None and isinstance(value, dict) else None
    if isinstance(value, Excerpt):
        return (f"{text}\n\n{_encode(value['more']).decode()}" if isinstance(text, str) else bare.decode()), bare
    structured = b'{"result":%b}' % bare if operation.wraps_result else bare
    return shortened(operation, value, text if isinstance(text, str) else bare.decode(), structured)


def tool_result(operation: Operation[object], value: object) -> JsonObject:
    """The value as the result of `tools/call`, in wire form."""
    if isinstance(value, Composed):
        return value.wire()
    if operation.is_content:
        return {"isError": False, **plain(value)}
    text, structured = tool_parts(operation, value)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": _decode(structured),
        "isError": False,
    }


def encoded_tool_result(operation: Operation[object], value: object, tail: bytes) -> bytes:
    """`tool_result` as JSON at once; `tail` holds further members (`,"name":…`)."""
    if isinstance(value, Composed):
        return value.encoded(tail)
    text, structured = tool_parts(operation, value)
    return b'{"content":[{"type":"text","text":%b}],"structuredContent":%b,"isError":false%b}' % (
        _encode(text),
        structured,
        tail,
    )


def plain(value: object) -> JsonObject:
    """An object as JSON has it: bytes as base64, keys as text."""
    decoded = _decode(_encode(value))
    if not isinstance(decoded, dict):
        raise TypeError(f"a result of content must be an object, not {type(decoded).__name__}")
    return decoded


def resource_result(operation: Operation[object], uri: str, value: object) -> JsonObject:
    """The value as the result of `resources/read`: its text where the operation names one, bytes, else JSON."""
    if operation.is_content:
        return plain(value)
    if operation.text is not None and isinstance(value, Mapping):
        value = value[operation.text]
    content: JsonObject = {"uri": uri}
    if operation.resource is not None:
        content["mimeType"] = operation.resource.mime_type
    if isinstance(value, str):
        content["text"] = value
    elif isinstance(value, bytes):
        content["blob"] = _decode(_encode(value))
    else:
        content["text"] = _encode(value).decode()
    return {"contents": [content]}


def unknown_tool(name: str, known: Iterable[str]) -> MCPError:
    """For a tool that is not there, or not on this surface."""
    message = f"Unknown tool: {name}{did_you_mean(name, known)}"
    return MCPError(code=INVALID_PARAMS, message=message, data={"tool": name})
