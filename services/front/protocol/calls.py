"""Makes clients' calls, and converts their results and failures to wire form.

The front's own operations run here, all others go through the kernel.

Both the SDK's handlers and the fast path use these functions, so that they cannot diverge.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar, Unpack

import msgspec
import trio
from msgspec import UNSET, structs

from proto import keys
from proto.approvals import Rules, tool_of
from proto.errors import Executed, Failure, Forbidden, Kind, LinckiaError, Timeout, UnknownOperation
from proto.json_types import JsonObject
from proto.mcp import INTERNAL_ERROR, INVALID_PARAMS, MISSING_CAPABILITY, TASK
from proto.mounts import MountRequest
from proto.operation import CLIENT, Access, Operation, Params
from proto.origin import Origin
from proto.suggestions import did_you_mean
from proto.target import described
from proto.wire import frames
from proto.wire.frames import Event, new_trace
from proto.wire.front import SERVICE
from services.front import rate, refusals
from services.front.composite.answer import Composed
from services.front.excerpt import Excerpt, excerpt
from services.front.protocol.client_requests import CallRequests
from services.front.protocol.failures import ProtocolError, as_data, code_of, message_of
from services.front.protocol.messages import turn
from services.front.scratchpad import SHORT_CHARS, shortened
from services.front.surfaces.steps import PLACE, QUERY
from services.front.surfaces.surface import Surface, caches
from services.front.tasks import TaskHandle, Wanted, wanting
from services.front.terse import Terse
from services.runtime.calls import Outgoing
from services.runtime.dispatch import CallOptions, Dispatcher

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_USUAL = contextlib.nullcontext()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


T = TypeVar("T")

LocalHandler = Callable[[Any, Origin], Awaitable[object]]
"""Runs one of the front's own operations: takes the parameters and who calls, returns the result."""


class Events(Protocol):
    """The source of services' events for clients, and the sink of events between fronts."""

    def on_event(self, receive: Callable[[Event], Awaitable[None]]) -> None: ...

    def publish(self, topic: str, body: object) -> None: ...


async def run_locally(
    operation: Operation[Any], answer: Callable[[], Awaitable[T]], origin: Origin, *, limit_s: float | None = None
) -> T:
    """Run `answer` and return its result, with the checks that the kernel makes for calls of services.

    Raises:
        Forbidden: the caller or its grant does not allow the operation.
        Timeout: `limit_s`, by default the deadline of the operation, has passed.
    """
    if not operation.admits(origin.caller):
        raise Forbidden(f"{operation.name} may not be called by {origin.caller}")
    if origin.grant is not None and (refusal := operation.refusal(origin.grant)):
        refusals.note(origin, operation.name, Kind.FORBIDDEN.value, refusal)
        raise Forbidden(refusal)
    limit_s = operation.deadline_ms / 1000 if limit_s is None else limit_s
    with trio.move_on_after(limit_s):
        return await answer()
    executed = Executed.NO if operation.access is Access.READ else Executed.MAYBE
    raise Timeout(f"{operation.name}: did not finish within {limit_s:.3g} s", executed=executed)


class LinkDispatcher(Dispatcher):
    """`services.runtime.dispatch.Dispatcher` over the front's link to the kernel.

    Args:
        local: handlers of the front's own operations, by name.
        rules: which calls wait for an approval, and so take longer.
        parent: the id of the call being served, if calls are made on behalf of its caller.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        local: Mapping[str, LocalHandler],
        rules: Rules | None = None,
        *,
        parent: int | None = None,
    ) -> None:
        self._outgoing = outgoing
        self._local = local
        self._rules = rules if rules else None
        self._parent = parent

    def for_call(self, parent: int) -> LinkDispatcher:
        """Return a dispatcher for calls made while serving the call `parent`."""
        return LinkDispatcher(self._outgoing, self._local, self._rules, parent=parent)

    async def call(self, operation: Operation[Any], params: Params[Any], **options: Unpack[CallOptions]) -> object:
        """See `services.runtime.dispatch.Dispatcher.call`."""
        origin, limit_s = options["origin"], options.get("timeout_s")
        is_client = origin.caller == CLIENT
        if is_client and (limit := rate.current.get()) is not None:
            limit.call(operation.name, origin)
        try:
            if operation.service == SERVICE:
                handler = self._local.get(operation.name)
                if handler is None:
                    raise UnknownOperation(f"the front has no handler for {operation.name!r}")
                result = await run_locally(operation, lambda: handler(params, origin), origin, limit_s=limit_s)
                return msgspec.to_builtins(result)
            routed = operation.routed
            if origin.key:
                keys.checked(origin.key)
            if not origin.trace:
                origin = structs.replace(origin, trace=frames.new_trace())
            tool = tool_of(params.method, params.name) if isinstance(params, MountRequest) else ""
            waits = self._rules is not None and is_client and self._rules.choose(routed, tool)
            answer = await self._outgoing.raw(
                routed.name, frames.pack_body(params), origin, parent=self._parent,
                limit_s=operation.deadline_ms / 1000 if limit_s is None else limit_s, target=described(params),
                client_requests=options.get("client_requests"),
                patience_s=self._rules.extra_s if self._rules is not None and waits else 0.0,
                outlasting=options.get("outlasting"),
            )  # fmt: skip
        except LinckiaError as error:
            raise operation.failure(error) from error.__cause__
        await turn(len(answer))
        value = operation.received(frames.plain(routed, answer, written=options.get("written", False)))
        # The caller will encode it.
        await turn(len(answer))
        return value


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
    operation: Operation[object], params: Params[object], value: object, *, bounds: bool, terse: Terse | None
) -> tuple[str, bytes]:
    """Return the text and the structured content (JSON) of a tool's result, shortened if it is long."""
    short = value if terse is None else terse(value)
    if bounds:
        short = excerpt(operation, params, short, getattr(params, "max_tokens", None))
    bare = _encode(short)
    whole = short if isinstance(short, Excerpt) else value
    text: object = whole.get(operation.text) if operation.text is not None and isinstance(whole, dict) else None
    if isinstance(short, Excerpt):
        return (f"{text}\n\n{_encode(short['more']).decode()}" if isinstance(text, str) else bare.decode()), bare
    structured = b'{"result":%b}' % bare if operation.wraps_result else bare
    text = text if isinstance(text, str) else bare.decode()
    return (text, structured) if bounds or len(text) < SHORT_CHARS else shortened(operation, value, text, structured)


def tool_result(surface: Surface, operation: Operation[object], params: Params[object], value: object) -> JsonObject:
    """Return the value as the result of `tools/call` on a surface, in wire form."""
    if isinstance(value, Composed):
        return value.wire()
    if isinstance(value, TaskHandle):
        return handle_result(value)
    if operation.is_content:
        return {"isError": False, **plain(value)}
    bounds, terse = surface.bounds(operation), surface.terse(operation)
    text, structured = tool_parts(operation, params, value, bounds=bounds, terse=terse)
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
        "_meta": {TASK: task},
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
    operation: Operation[object],
    params: Params[object],
    value: object,
    tail: bytes,
    before: bytes = b"",
    after: bytes = b"",
    *,
    bounds: bool,
    terse: Terse | None,
) -> bytes:
    """Like `tool_result`, but encoded to JSON; `tail` holds further members (`,"name":…`).

    `before` and `after` enclose it, so that a result of a hundred megabytes is not copied again for that.
    """
    if isinstance(value, Composed):
        return b"%b%b%b" % (before, value.encoded(tail), after)
    text, structured = tool_parts(operation, params, value, bounds=bounds, terse=terse)
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
    found = surface.steps.find(name) if QUERY in surface.callable else None
    hint = did_you_mean(name, surface.tools) if found is None else f"; `{name}` {surface.steps.spoken(PLACE[found[0]])}"
    return ProtocolError(INVALID_PARAMS, f"Unknown tool: {name}{hint}", {"tool": name})


def as_error(failure: Failure) -> ProtocolError:
    """Return the failure as the JSON-RPC error that the SDK sends."""
    data, code = as_data(failure), code_of(failure)
    if failure.code == MISSING_CAPABILITY:
        data["requiredCapabilities"] = {failure.data.get("capability", ""): {}}
    return ProtocolError(INTERNAL_ERROR if code is None else code, message_of(failure), data)
