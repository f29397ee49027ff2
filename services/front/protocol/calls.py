"""Makes calls and converts their results and failures to wire form.

Both the SDK's handlers and the fast path use these functions, so that they cannot diverge.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, structs

from proto import keys
from proto.errors import Failure, InvalidParams, LinckiaError
from proto.json_types import JsonObject
from proto.mcp import MISSING_CAPABILITY
from proto.operation import Operation, Params
from proto.ops import Table
from proto.origin import Origin
from proto.suggestions import did_you_mean
from proto.wire.dispatch import Dispatcher
from proto.wire.frames import new_trace
from proto.wire.front import SERVICE
from services.front.composite.answer import Composed
from services.front.excerpt import Excerpt, excerpt
from services.front.long_messages import turn
from services.front.protocol.client_requests import CallRequests
from services.front.protocol.failures import ProtocolError, as_data, code_of, message_of
from services.front.protocol.messages import INTERNAL_ERROR, INVALID_PARAMS
from services.front.scratchpad import shortened
from services.front.surfaces.steps import PLACE, Category
from services.front.surfaces.surface import Surface, caches
from services.front.tasks import META, TaskHandle, Wanted, wanting

MAX_VALUES = 100
"""The protocol's limit for one completion."""

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_USUAL = contextlib.nullcontext()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def completed(origin: Origin, traceparent: object, key: object) -> Origin:
    """Return the origin of a request with what its `_meta` says, unchecked: an invalid trace context is ignored."""
    is_trace = isinstance(traceparent, str) and _TRACEPARENT.fullmatch(traceparent)
    trace = str(traceparent) if is_trace else new_trace()
    if key is UNSET or key is None:
        return structs.replace(origin, trace=trace)
    return structs.replace(origin, trace=trace, key=keys.given(key))


async def perform(
    dispatcher: Dispatcher,
    operation: Operation[object],
    params: Params[object],
    client_requests: CallRequests,
    origin: Origin,
    *,
    tasks: Wanted = Wanted.RESULT,
    written: bool = False,
) -> object:
    """Call `operation` for a client and return its value; cancellation cancels the handler.

    Args:
        origin: who calls; see `completed`.
        tasks: whether the client asks for, or understands, a task (`TaskHandle`) instead of the value.
        written: whether the value may be returned as JSON (`msgspec.Raw`).

    Raises:
        InputRequired: the client must answer questions and repeat the call.
        LinckiaError: the call failed.
    """
    try:
        with client_requests.scope, _USUAL if tasks is Wanted.RESULT else wanting(tasks, operation):
            value = await dispatcher.call(
                operation, params, origin=origin, client_requests=client_requests, written=written
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


def may_be_written(operation: Operation[object]) -> bool:
    """Whether only the JSON of this tool's result is needed on its way to a client."""
    return operation.text is None and not operation.is_content and not caches(operation)


def tool_parts(
    surface: Surface, operation: Operation[object], params: Params[object], value: object
) -> tuple[str, bytes]:
    """Return the text and the structured content (JSON) of a tool's result, shortened if it is long."""
    bounds = surface.bounds(operation)
    if bounds:
        value = excerpt(operation, params, value, getattr(params, "max_tokens", None))
    bare = _encode(value)
    text: object = value.get(operation.text) if operation.text is not None and isinstance(value, dict) else None
    if isinstance(value, Excerpt):
        return (f"{text}\n\n{_encode(value['more']).decode()}" if isinstance(text, str) else bare.decode()), bare
    structured = b'{"result":%b}' % bare if operation.wraps_result else bare
    text = text if isinstance(text, str) else bare.decode()
    return (text, structured) if bounds else shortened(operation, value, text, structured)


def tool_result(surface: Surface, operation: Operation[object], params: Params[object], value: object) -> JsonObject:
    """Return the value as the result of `tools/call` on a surface, in wire form."""
    if isinstance(value, Composed):
        return value.wire()
    if isinstance(value, TaskHandle):
        return handle_result(value)
    if operation.is_content:
        return {"isError": False, **plain(value)}
    text, structured = tool_parts(surface, operation, params, value)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": _decode(structured),
        "isError": False,
    }


def handle_result(handle: TaskHandle) -> JsonObject:
    """Return the result of a tool whose client asked for a task. It has no structured content, since that would have to
    have the form of the tool's own results."""
    task: JsonObject = msgspec.to_builtins(handle.task)
    return {
        "content": [{"type": "text", "text": _encode(task).decode()}],
        "isError": False,
        "_meta": {META: task},
    }


def whole_result(operation: Operation[object], value: object) -> JsonObject:
    """Like `tool_result`, but never shortened."""
    if operation.is_content:
        return {"isError": False, **plain(value)}
    text = value.get(operation.text) if operation.text is not None and isinstance(value, dict) else None
    return {
        "content": [{"type": "text", "text": text if isinstance(text, str) else _encode(value).decode()}],
        "structuredContent": {"result": value} if operation.wraps_result else value,
        "isError": False,
    }


async def encoded_tool_result(
    surface: Surface,
    operation: Operation[object],
    params: Params[object],
    value: object,
    tail: bytes,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """Like `tool_result`, but encoded to JSON; `tail` holds further members (`,"name":…`).

    `before` and `after` enclose it, so that a result of a hundred megabytes is not copied again for that.
    """
    if isinstance(value, Composed):
        return b"%b%b%b" % (before, value.encoded(tail), after)
    text, structured = tool_parts(surface, operation, params, value)
    await turn(len(structured))
    encoded = _encode(text)
    await turn(len(structured))
    return b'%b{"content":[{"type":"text","text":%b}],"structuredContent":%b,"isError":false%b}%b' % (
        before,
        encoded,
        structured,
        tail,
        after,
    )


def plain(value: object) -> JsonObject:
    """Return an object in JSON's types: bytes as base64, keys as text."""
    decoded = _decode(_encode(value))
    if not isinstance(decoded, dict):
        raise TypeError(f"a content result must be an object, not {type(decoded).__name__}")
    return decoded


def resource_result(operation: Operation[object], uri: str, value: object) -> JsonObject:
    """Return the value as the result of `resources/read`: the operation's text field, bytes, or JSON."""
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


def unknown_tool(name: str, surface: Surface) -> ProtocolError:
    """Return the error for a tool that this surface does not have; clients often mistake steps for tools."""
    found = surface.steps.find(name) if Category.QUERY in surface.tools else None
    hint = did_you_mean(name, surface.tools) if found is None else f"; `{name}` {PLACE[found[0]]}"
    return ProtocolError(INVALID_PARAMS, f"Unknown tool: {name}{hint}", {"tool": name})


def as_error(failure: Failure) -> ProtocolError:
    """Return the failure as the JSON-RPC error that the SDK sends."""
    data, code = as_data(failure), code_of(failure)
    if failure.code == MISSING_CAPABILITY:
        data["requiredCapabilities"] = {failure.data.get("capability", ""): {}}
    return ProtocolError(INTERNAL_ERROR if code is None else code, message_of(failure), data)


# Completion of arguments of prompts and resource templates.  An operation may name another one that completes its
# arguments (`completion=`), which must admit the front as its caller.  Without one, an argument with an `enum` is
# completed from it, and other arguments have no suggestions.


async def complete(
    table: Table,
    dispatcher: Dispatcher,
    operation: Operation[object],
    argument: str,
    value: str,
    context: Mapping[str, str],
    origin: Origin,
) -> list[str]:
    """Return values of `argument` that start with `value` or match it, the most likely first.

    Args:
        context: the arguments that were completed before.
        origin: who asks.

    Raises:
        InvalidParams: the operation has no such argument.
        LinckiaError: the completing operation failed.
    """
    schema = operation.input_schema
    properties: JsonObject = schema.get("properties", {})
    if argument not in properties:
        names = ", ".join(properties) or "none"
        text = f"{operation.name} has no argument `{argument}`; its arguments: {names}"
        raise InvalidParams(text, field="argument.name")
    listed = listed_values(properties[argument], schema.get("$defs", {}))
    # The provider is not in the table if its service is not served.
    provider = table.get(operation.completion or "")
    if listed or provider is None:
        return [v for v in listed if v.lower().startswith(value.lower())]
    params = provider.parse({"argument": argument, "value": value, "context": dict(context)})
    found = await dispatcher.call(provider, params, origin=structs.replace(origin, caller=SERVICE, key=""))
    return [str(v) for v in found] if isinstance(found, list) else []


def listed_values(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    """Return the values that a schema lists (`enum`, also behind a reference or in a union)."""
    if "$ref" in schema:
        return listed_values(definitions.get(schema["$ref"].rsplit("/", 1)[-1], {}), definitions)
    if "anyOf" in schema:
        return [value for branch in schema["anyOf"] for value in listed_values(branch, definitions)]
    return [str(value) for value in schema.get("enum", ()) if value is not None]


def completion_result(values: list[str]) -> JsonObject:
    """Return the result of `completion/complete`, in wire form."""
    return {"completion": {"values": values[:MAX_VALUES], "total": len(values), "hasMore": len(values) > MAX_VALUES}}
