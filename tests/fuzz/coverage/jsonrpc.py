"""JSON-RPC of clients: envelopes, batches, the calls that are answered without the SDK, the first messages."""

from __future__ import annotations

import contextlib
import functools
import json

from proto import ops
from proto.errors import InvalidParams
from proto.origin import Origin
from services.front.composite.run import Composites
from services.front.mounted.mounted import Mounted
from services.front.prompts import FilePrompts
from services.front.protocol import batch
from services.front.protocol.dispatch import FastPath
from services.front.protocol.handshake import Greeter
from services.front.protocol.messages import NotJson, error_message, is_call, read_envelope, readable_id, request_key
from services.front.protocol.notifier import Notifier
from services.front.protocol.served import Served
from services.front.protocol.session import McpSession
from services.front.surfaces.surface import Surface
from tests.unit.front.inprocess import InProcess
from tests.unit.front.operations import TABLE
from tests.unit.front.wire import META


def _call(name: str, arguments: object, **more: object) -> bytes:
    params = {"name": name, "arguments": arguments, **more}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


_INITIALIZE = {
    "protocolVersion": "2025-06-18", "capabilities": {"roots": {"listChanged": True}},
    "clientInfo": {"name": "fuzz", "version": "1"},
}  # fmt: skip

SEEDS = [
    json.dumps({"jsonrpc": "2.0", "id": "1", "method": "initialize", "params": _INITIALIZE}).encode(),
    json.dumps({"jsonrpc": "2.0", "id": 2, "method": "server/discover", "params": {"_meta": META}}).encode(),
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","id":3,"method":"ping","params":{}}',
    _call("echo", {"message": {"a": [1, 2.5, None, True]}}),
    _call("t_pair", {"text": "x", "count": 3}, _meta={"progressToken": 7, "traceparent": "00-1-2-3"}),
    _call("t_pair", {"text": "x"}, _meta=META),
    _call("query", {"steps": [{"op": "words", "params": {"a": "$prev"}}]}),
    b"[" + _call("t_string", {"colour": "blue"}) + b',{"jsonrpc":"2.0","id":2,"result":{}}]',
    b'{"jsonrpc":"2.0","id":4,"method":"x","params":"\\ud800"}',
    b'{"id":"\xb1"',
    b'{"jsonrpc":"1.0","id":"\\ud800"}',
    _call("t_pair", {"text": "x"}, _meta=META).replace(b"test", b"\x88"),
    b'{"id":"\x01"',
    b"data: {}\r\n\r\nevent: x\ndata: 1\ndata: 2\n\n",
]


@functools.cache
def _fast() -> FastPath:
    surface, dispatcher = Surface("all", TABLE), InProcess()
    composites = Composites(dispatcher, surface.steps)
    notifier = Notifier()
    mounted = Mounted(TABLE, {}, dispatcher, notifier.publish)
    return FastPath(Served(surface, composites, dispatcher, mounted, FilePrompts(), "1"))


@functools.cache
def _surface() -> Surface:
    return Surface("all", ops.load())


def read(data: bytes) -> None:
    """As a message or a batch of them, on an old and on a new connection."""
    readable_id(data)
    greeter, session = Greeter(_surface(), "1"), McpSession()
    for line in data.split(b"\n")[:8]:
        greeter.answer(line, session)
    messages = [data]
    if batch.is_batch(data):
        with contextlib.suppress(batch.Refused):
            messages = [part.data for part in batch.parts(data)]
    for message in messages:
        _message(message)


def _message(message: bytes) -> None:
    try:
        envelope = read_envelope(message)
    except NotJson as error:
        error_message(error.request_id, -32700, str(error))
        return
    if envelope is None:
        return
    request_key(envelope)
    if not is_call(envelope):
        return
    for modern in (False, True):
        call = _fast().recognise(envelope, Origin("client"), modern=modern)
        if call is None:
            continue
        try:
            call.operation.parse(call.arguments)
        except InvalidParams as error:
            _fast().failed(call, error)
